"""A real VllmConfig, and vLLM's own plan of the KV cache, for a model that has no weights."""

from __future__ import annotations

import copy
import functools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from vllm.config import KVEventsConfig, KVTransferConfig, VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models import ModelRegistry
from vllm.utils.math_utils import cdiv
from vllm.v1.core.kv_cache_utils import (
    generate_scheduler_kv_cache_config,
    resolve_cache_hit_alignment_tokens,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import KVCacheConfig

from .shapes import Shape
from .speculation import Speculation, flag_draft_groups
from .stages import specs_of

try:
    from vllm.v1.core import kv_cache_planning as planning
except ImportError:  # vLLM 0.32 plans in kv_cache_utils
    from vllm.v1.core import kv_cache_utils as planning

MAX_MODEL_LEN = 352
_ARCHITECTURE = "SimulatedHybridForCausalLM"


class SimulatedHybridForCausalLM(torch.nn.Module):
    """A hybrid model that is never loaded, as far as vLLM's registry looks at it."""

    is_hybrid = True
    supports_mamba_prefix_caching = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return input_ids

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return input_ids

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: VllmConfig) -> tuple:
        return ()

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: VllmConfig) -> tuple:
        return ()

    @classmethod
    def get_mamba_state_copy_func(cls) -> tuple:
        return ()


class PlainBackend:
    """Stands in for a backend whose tokens lie where the strides of a page say, as
    :class:`~simulation.memory.LayerMemory` writes them."""


PlainBackend.__module__ = "vllm.v1.attention.backends.flash_attn"
PlainBackend.__qualname__ = "FlashAttentionBackend"


class PlainLayer:
    """Stands in for a layer of a model."""

    def get_attn_backend(self) -> type[PlainBackend]:
        return PlainBackend


def save_model(folder: Path, architecture: str) -> None:
    """Writes the configuration of a small model without weights."""
    model = {
        "architectures": [architecture],
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 512,
        "max_position_embeddings": 4 * MAX_MODEL_LEN,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(model))


@functools.cache
def _base() -> VllmConfig:
    ModelRegistry.register_model(_ARCHITECTURE, SimulatedHybridForCausalLM)
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), _ARCHITECTURE)
        return EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            max_model_len=MAX_MODEL_LEN,
            enable_prefix_caching=True,
            disable_hybrid_kv_cache_manager=False,
            max_num_batched_tokens=1024,
            max_num_seqs=8,
        ).create_engine_config()


def engine_config(
    shape: Shape,
    *,
    blocks: int,
    batched_tokens: int,
    requests: int,
    ranks: int,
    async_scheduling: bool,
    connector: dict[str, Any] | None,
    retention: int | None = 0,
    events: KVEventsConfig | None = None,
    speculation: Speculation | None = None,
    priorities: bool = False,
    context: int = 1,
    run: int = 1,
    stages: int = 1,
) -> VllmConfig:
    """A VllmConfig as the engine core has it after start-up."""
    config = copy.deepcopy(_base())
    config.cache_config.block_size = shape.block_tokens
    config.cache_config.mamba_block_size = shape.block_tokens
    config.cache_config.mamba_cache_mode = "align"
    config.cache_config.kv_cache_layout = shape.layout
    config.cache_config.num_gpu_blocks = blocks
    config.cache_config.prefix_cache_retention_interval = retention
    config.scheduler_config.max_num_batched_tokens = batched_tokens
    config.scheduler_config.max_num_scheduled_tokens = None
    config.scheduler_config.max_num_seqs = requests
    config.scheduler_config.async_scheduling = async_scheduling
    config.scheduler_config.scheduler_cls = None
    config.scheduler_config.policy = "priority" if priorities else "fcfs"
    config.parallel_config.tensor_parallel_size = ranks
    config.parallel_config.decode_context_parallel_size = context
    config.parallel_config.cp_kv_cache_interleave_size = run
    config.parallel_config.pipeline_parallel_size = stages
    config.parallel_config.world_size = ranks * stages
    config.kv_events_config = events
    config.compilation_config.static_forward_context = {
        name: PlainLayer() for name in shape.specs()
    }
    if speculation is not None:
        speculation.configure(config)
    if connector is not None:
        config.kv_transfer_config = KVTransferConfig(**{"kv_role": "kv_both", **connector})
    return config


def plan_kv_caches(
    config: VllmConfig,
    shape: Shape,
    match_unit: int | None = None,
    pool: float = 0.0,
    split: Sequence[int] = (),
) -> tuple[KVCacheConfig, list[KVCacheConfig], int, int]:
    """vLLM's plan for the scheduler and for each worker, the block size and the hash size.

    pool: how many times the blocks that vLLM needs to start there are, if not as configured.
    split: the pipeline stage of each layer, if there are several.
    """
    register_all_kvcache_specs(config)
    groups = planning.get_kv_cache_groups(config, shape.specs())
    flag_draft_groups(config, groups, shape.specs())
    if len(groups) > 1:  # one group alone has no finer hashes than its blocks
        config.cache_config.prefix_match_unit = match_unit
    # vLLM would not start with fewer blocks than one request of full length may need.
    specs = [group.kv_cache_spec for group in groups]
    needed = 1 + sum(
        cdiv(spec.max_memory_usage_bytes(config), spec.page_size_bytes) for spec in specs
    )
    planned = int(needed * pool) or config.cache_config.num_gpu_blocks
    config.cache_config.num_gpu_blocks = max(planned, needed)
    workers = []
    for rank in range(config.parallel_config.world_size):
        stage, here = rank // config.parallel_config.tensor_parallel_size, groups
        if split:
            own = specs_of(shape.specs(), split, stage)
            here = planning._project_kv_cache_groups_to_worker(groups, own)
        page = planning._pool_bytes_per_block(config, here)
        worker = planning.get_kv_cache_config_from_groups(
            config, copy.deepcopy(here), page * config.cache_config.num_gpu_blocks
        )
        worker.kv_cache_layout = shape.layout
        workers.append(worker)
    scheduler = generate_scheduler_kv_cache_config(workers)
    # As the engine core does: the scheduler ends prefill steps at multiples of it.
    config.cache_config.block_size = min(
        group.kv_cache_spec.block_size
        for group in scheduler.kv_cache_groups
        if group.kv_cache_spec.prefix_cacheable
    )
    block_tokens, hash_tokens = resolve_kv_cache_block_sizes(scheduler, config)
    alignment = resolve_cache_hit_alignment_tokens(scheduler, config, block_tokens, hash_tokens)
    for plan in (scheduler, *workers):
        plan.hash_block_size = hash_tokens
        plan.cache_hit_alignment_tokens = alignment
    return scheduler, workers, block_tokens, hash_tokens
