"""The plan of the KV cache: groups, specs, kernels."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec

Kind = Literal["attention", "window", "recurrent"]


def layer_spec(group: "KVCacheGroupSpec", layer: str) -> "KVCacheSpec":
    """The spec of one layer: groups of one type and several sizes have one for each layer."""
    from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

    spec = group.kv_cache_spec
    return spec.kv_cache_specs[layer] if isinstance(spec, UniformTypeKVCacheSpecs) else spec


def group_spec(group: "KVCacheGroupSpec") -> "KVCacheSpec":
    """The spec of a group's first layer, or of one of another pipeline stage's layers if the group
    has none here."""
    from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

    if group.layer_names:
        return layer_spec(group, group.layer_names[0])
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return next(iter(spec.kv_cache_specs.values()))
    return spec


def kind_of(spec: "KVCacheSpec") -> Kind | None:
    """The kind of a layer's cache; None for one that the connector does not know.

    Attention is told by the exact class: subclasses such as chunked or sink attention keep other
    bytes, or other blocks.
    """
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        MambaSpec,
        MLAAttentionSpec,
        SlidingWindowMLASpec,
        SlidingWindowSpec,
    )

    if isinstance(spec, MambaSpec):
        return "recurrent"
    kinds: dict[type, Kind] = {
        FullAttentionSpec: "attention",
        MLAAttentionSpec: "attention",
        SlidingWindowSpec: "window",
        SlidingWindowMLASpec: "window",
    }
    return kinds.get(type(spec))


def is_scratch(spec: "KVCacheSpec") -> bool:
    """Whether a layer's cache is of no use at a boundary: a ring of the tokens that are not yet
    compressed into one state, of which a boundary has none. vLLM's own hits go without it, too."""
    from vllm.v1.kv_cache_interface import CircularBufferSpec

    return isinstance(spec, CircularBufferSpec)


def is_latent(spec: "KVCacheSpec") -> bool:
    """Whether a page holds MLA's latent vectors, not keys and values."""
    from vllm.v1.kv_cache_interface import MLAAttentionSpec, SlidingWindowMLASpec

    return isinstance(spec, MLAAttentionSpec | SlidingWindowMLASpec)


PAGE_FORMATS = (
    "NONE",
    "FP8_PER_TENSOR",
    "FP8_PER_TOKEN_HEAD",
    "INT8_PER_TOKEN_HEAD",
    "INT4_PER_TOKEN_HEAD",
    "NVFP4",
    "NVFP4_DS_MLA",
)
"""Formats of attention pages that are tested, as ``KVQuantMode`` names them. The scales of each lie
inside the page or belong to the weights."""


def page_format(spec: "KVCacheSpec") -> str:
    """The format of an attention layer's pages; ``NONE`` if they are not quantised."""
    return str(spec.kv_quant_mode.name)


def page_format_of(cache_dtype: str) -> str:
    """The format of attention pages with a ``kv_cache_dtype``; ``NONE`` if not quantised."""
    from vllm.v1.kv_cache_interface import get_kv_quant_mode

    return str(get_kv_quant_mode(cache_dtype).name)


def is_compressed(spec: "KVCacheSpec") -> bool:
    """Whether a layer's block has no state for each of its tokens, or vLLM cuts a hit of it to
    whole blocks, since it computes the last tokens of the hit again."""
    if kind_of(spec) == "recurrent":
        return False
    return bool(spec.prefix_replay_tokens) or spec.tokens_per_state != 1


def block_tokens(spec: "KVCacheSpec", context: int) -> int:
    """The tokens of a layer's block, on all ranks together that divide a context.

    context: the number of these ranks (``--decode-context-parallel-size``). Each keeps some of the
    tokens of a page, but a state as a whole.
    """
    return int(spec.block_size * (context if spec.dcp_sharded else 1))


def window_tokens(spec: "KVCacheSpec") -> int:
    """How far back a sliding window's pages are kept."""
    return int(spec.sliding_window + spec.extra_retained_tokens)


def exports_states(spec: "KVCacheSpec") -> bool:
    """Whether the kernels of a recurrent layer export a prefill's last boundary state from inside
    the step that runs past it; see :data:`DIFFERENCES` for which layers do."""
    return bool(spec.num_prefill_checkpoint_blocks)


def hash_tokens(config: "KVCacheConfig") -> int | None:
    """Tokens that a prefix hash covers; None for whole blocks."""
    return config.hash_block_size


def steps_ahead(config: "VllmConfig") -> int:
    """Steps that the engine plans before it waits for the first of them: one for each pipeline
    stage, and one more if it schedules asynchronously."""
    return int(config.max_concurrent_batches)


def draft_slots(config: "VllmConfig") -> int:
    """How many tokens of a step each request takes for a draft model, beside its own."""
    found = config.speculative_config
    return 0 if found is None else int(found.max_num_new_slots_for_drafting)


def conv_state_layout() -> str:
    """How convolution states lie in memory: set by the environment, not by the configuration."""
    from vllm.model_executor.layers.mamba.mamba_utils import get_conv_state_layout

    return str(get_conv_state_layout())


def kernels_of(config: "VllmConfig", layers: Iterable[str]) -> list[str]:
    """The kernels that compute the caches of layers, chosen when the model was made: backends, on a
    CPU with the instructions that the order of bytes depends on, and the variants of custom
    operators. Known in a worker's process; empty elsewhere."""
    from torch.nn import Module
    from vllm.model_executor.custom_op import CustomOp

    made, found = config.compilation_config.static_forward_context, set()
    for layer in filter(None, map(made.get, layers)):
        instructions = getattr(layer, "isa", None)
        backend = _named(layer.get_attn_backend())
        found.add(backend if instructions is None else f"{backend}.{instructions}")
        for module in layer.modules() if isinstance(layer, Module) else ():
            method = vars(module).get("_forward_method") if isinstance(module, CustomOp) else None
            if method is not None:  # a function, a method, or what compiles one
                name = getattr(method, "__name__", type(method).__name__)
                found.add(f"{_named(type(module))}.{name}")
    return sorted(found)


def _named(item: type) -> str:
    return f"{item.__module__}.{item.__qualname__}"
