"""How each backend's kernels place the tokens of a page in its bytes."""

from typing import TYPE_CHECKING, Literal

from hybrid_pages.vllm.versions.plan import page_format

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheSpec

Placement = Literal["strides", "columns", "tiles"]
"""Where a token's bytes lie in a page.

strides: in the token's cells, as the tensor's strides say. columns: a head's keys before its
values, the keys with a row for each dimension and a column for each token, the values with a row
for each token. tiles: keys and values in tiles for AMX, of words of two items.
"""

_BACKENDS = "vllm.v1.attention.backends."

BY_STRIDES = frozenset(
    _BACKENDS + name
    for name in (
        "flash_attn.FlashAttentionBackend",
        "flash_attn_diffkv.FlashAttentionDiffKVBackend",
        "flashinfer.FlashInferBackend",
        "flex_attention.FlexAttentionBackend",
        "triton_attn.TritonAttentionBackend",
        "triton_attn_diffkv.TritonAttentionDiffKVBackend",
        "triton_flash_attn.TritonFlashAttentionBackend",
        "triton_flashinfer.TritonFlashInferBackend",
        "mla.cpu_mla.CPUMLABackend",
        "mla.cutlass_mla.CutlassMLABackend",
        "mla.flashattn_mla.FlashAttnMLABackend",
        "mla.flashinfer_mla.FlashInferMLABackend",
        "mla.flashmla.FlashMLABackend",
        "mla.triton_mla.TritonMLABackend",
    )
)
"""Backends that write a token's bytes where the tensor's strides say."""

CPU = _BACKENDS + "cpu_attn.CPUAttentionBackend"
"""The backend whose pages depend on the instructions that it uses."""

BY_INSTRUCTIONS: dict[str, Placement] = {"vec": "columns", "vec16": "columns", "amx": "tiles"}
"""What the CPU's backend does with each set of instructions, as ``_get_attn_isa`` names them."""

_IN_CELLS = (
    "NONE",
    "FP8_PER_TENSOR",
    "FP8_PER_TOKEN_HEAD",
    "INT8_PER_TOKEN_HEAD",
    "INT4_PER_TOKEN_HEAD",
)
"""Formats that keep a token's scales among its own bytes, or among the weights."""


def placement(config: "VllmConfig", layer: str, spec: "KVCacheSpec") -> Placement | None:
    """Where the kernels of an attention layer place a page's tokens; None if that is not known.

    A page of which it is not known can only be stored whole.
    """
    made = config.compilation_config.static_forward_context.get(layer)
    if made is None or page_format(spec) not in _IN_CELLS or spec.tokens_per_state != 1:
        return None
    backend = made.get_attn_backend()
    name = f"{backend.__module__}.{backend.__qualname__}"
    if name in BY_STRIDES:
        return "strides"
    if name == CPU:
        return BY_INSTRUCTIONS.get(getattr(made, "isa", ""))
    return None
