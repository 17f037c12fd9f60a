"""Random models of each family, built by vLLM without memory: its layers, blocks and groups against
the plan of their config.json alone."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import vllm.distributed.parallel_state as parallel
from vllm.config import VllmConfig, get_layers_from_vllm_config, set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import registry
from vllm.platforms import current_platform
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

from hybrid_pages.models.blocks import CachePlan, plan
from hybrid_pages.models.choices import Choices
from hybrid_pages.models.config import Config, ModelError
from hybrid_pages.models.families import layers_of
from hybrid_pages.models.layers import RecurrentState
from random_models import FAMILIES

try:
    from vllm.v1.core import kv_cache_planning as planning
except ImportError:
    from vllm.v1.core import kv_cache_utils as planning

pytestmark = pytest.mark.every_version

ROUNDS = 6


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = tmp_path_factory.mktemp("ranks") / "store"
    with set_current_vllm_config(VllmConfig()):
        parallel.init_distributed_environment(1, 0, store.as_uri(), 0, "gloo")
        parallel.initialize_model_parallel(1, 1)
    yield
    parallel.destroy_model_parallel()
    parallel.destroy_distributed_environment()


@pytest.fixture(autouse=True)
def a_processor_with_everything(monkeypatch: pytest.MonkeyPatch, one_rank: None) -> None:
    for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported", "_is_avx512_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: True)
    monkeypatch.setattr(registry, "_run_in_subprocess", lambda made: made())
    monkeypatch.setattr(parallel, "_EP", parallel._EP or parallel._TP)


def specs_of(config: Any) -> dict[str, Any]:
    """What the layers of the real model keep, as vLLM's workers ask them."""
    dtype = torch.get_default_dtype()
    with set_current_vllm_config(config), torch.device("meta"):
        torch.set_default_dtype(config.model_config.dtype)
        try:
            initialize_model(config)
        finally:
            torch.set_default_dtype(dtype)
        current_platform.update_block_size_for_backend(config)
        layers = get_layers_from_vllm_config(config, AttentionLayerBase)
        return {
            name: layer.get_kv_cache_spec(config)
            for name, layer in layers.items()
            if not getattr(layer, "kv_sharing_target_layer_name", None)
        }


def kept(spec: Any) -> tuple[int, int | None]:
    """Bytes of a state, or of a token; and the window."""
    if hasattr(spec, "shapes"):
        sizes = zip(spec.shapes, spec.dtypes, strict=True)
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in sizes), None
    return spec.real_page_size_bytes // spec.block_size, getattr(spec, "sliding_window", None)


def planned(
    folder: Path, ranks: int, options: dict[str, Any], device: str, drafts: int = 0
) -> CachePlan:
    choices = Choices(
        ranks=ranks,
        kv_dtype=options["kv_cache_dtype"],
        ssm_dtype=options["mamba_ssm_cache_dtype"],
        dtype=options["dtype"],
        state_dtype="float32",
        drafts=drafts,
    )
    layers = layers_of(Config.read(folder / "config.json"), choices)
    return plan(layers, ranks=ranks, device=device, block_size=options.get("block_size"))


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.parametrize("family", FAMILIES)
def test_the_plan_is_what_vllm_makes_of_a_model(monkeypatch, tmp_path, family, seed):
    random = Random(f"{family} {seed}")
    values = FAMILIES[family](random)
    (tmp_path / "config.json").write_text(json.dumps(values))
    ranks, device = random.choice([1, 1, 2, 4]), random.choice(["cpu", "cuda"])
    options: dict[str, Any] = dict(
        kv_cache_dtype=random.choice(["auto", "auto", "fp8"]),
        mamba_ssm_cache_dtype=random.choice(["auto", "auto", "float32", "bfloat16"]),
        dtype=random.choice(["auto", "bfloat16"]),
    )
    if family == "falcon-h1" and options["mamba_ssm_cache_dtype"] == "bfloat16":
        options["mamba_ssm_cache_dtype"] = "float32"  # as vLLM makes it on CPUs, unlike others
    if block := random.choice([None, 32, 64, 128]):
        options["block_size"] = block
    if device == "cuda" and family != "deepseek":  # kernels with blocks of 16 tokens
        options.setdefault("block_size", 16)
        sizes = staticmethod(lambda *_: [MultipleOf(16)])
        monkeypatch.setattr(CPUAttentionBackend, "get_supported_kernel_block_sizes", sizes)
    if family == "deepseek":  # on CPUs, vLLM keeps latents in one type and one kind of block
        options |= dict(kv_cache_dtype="auto", block_size=block or 32)
        device = "cpu"
    drafts = random.choice([0, 0, 2])
    guess = dict(method="ngram", num_speculative_tokens=drafts, prompt_lookup_max=3)
    config = EngineArgs(
        model=str(tmp_path),
        speculative_config=guess if drafts else None,
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        language_model_only=True,
        enable_prefix_caching=True,
        **options,
    ).create_engine_config()
    config.parallel_config.tensor_parallel_size = ranks
    monkeypatch.setattr(parallel.get_tp_group(), "world_size", ranks)
    config.cache_config.kv_cache_layout = config.cache_config.kv_cache_layout or "LBNHC"
    specs = specs_of(config)
    groups = planning.get_kv_cache_groups(config, dict(specs))
    found = planned(tmp_path, ranks, options, device, drafts)
    assert Counter(
        (layer.nbytes, None)
        if isinstance(layer, RecurrentState)
        else (layer.token_bytes, layer.window)
        for layer in found.layers
    ) == Counter(map(kept, specs.values()))
    assert sorted((group.block_tokens, len(group.layers)) for group in found.groups) == sorted(
        (group.kv_cache_spec.block_size, len(group.layer_names)) for group in groups
    )


def test_ranks_that_vllm_cannot_start_with_are_refused(monkeypatch, tmp_path):
    values = FAMILIES["falcon-h1"](Random(1)) | dict(mamba_n_groups=2)
    (tmp_path / "config.json").write_text(json.dumps(values))
    options = dict(kv_cache_dtype="auto", mamba_ssm_cache_dtype="auto", dtype="auto")
    config = EngineArgs(model=str(tmp_path), load_format="dummy").create_engine_config()
    config.parallel_config.tensor_parallel_size = 4
    monkeypatch.setattr(parallel.get_tp_group(), "world_size", 4)
    with pytest.raises(AssertionError, match="does not divide num_groups"):
        specs_of(config)
    with pytest.raises(ModelError, match="the groups of Mamba-2"):
        planned(tmp_path, 4, options, "cpu")
