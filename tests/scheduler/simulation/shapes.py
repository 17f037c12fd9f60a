"""KV cache shapes of hybrid models, small enough to run thousands of steps per second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod

import torch
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum as Kind
from vllm.v1.kv_cache_interface import (
    CircularBufferSpec,
    FullAttentionSpec,
    KVCacheSpec,
    KVQuantMode,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

BLOCK_TOKENS = 16
PAGE_BYTES = 1024
DRAFT = "draft.layers."

State = tuple[tuple[int, ...], torch.dtype]

bf16, f32 = torch.bfloat16, torch.float32


def attention() -> FullAttentionSpec:
    return FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=2, head_size=8, dtype=bf16)


def one_head() -> FullAttentionSpec:
    return replace(attention(), num_kv_heads=1)


def padded_attention() -> FullAttentionSpec:
    return replace(attention(), page_size_padded=PAGE_BYTES + 512)


def large_gdn() -> MambaSpec:
    return recurrent(Kind.GDN_ATTN, ((3, 60), bf16), ((3, 9, 9), f32), page_bytes=PAGE_BYTES + 512)


def latent() -> MLAAttentionSpec:
    return MLAAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=32, dtype=bf16)


def fp8() -> FullAttentionSpec:
    """One scale per layer, among the weights."""
    return replace(
        attention(), head_size=16, dtype=torch.uint8, kv_quant_mode=KVQuantMode.FP8_PER_TENSOR
    )


def per_token_head(mode: KVQuantMode, dtype: torch.dtype) -> FullAttentionSpec:
    """Two float32 scales behind each token's keys and values in a head, as in Triton's backend."""
    return replace(
        attention(), head_size=12, dtype=dtype, kv_quant_mode=mode, state_content_bytes=32
    )


def int8() -> FullAttentionSpec:
    return per_token_head(KVQuantMode.INT8_PER_TOKEN_HEAD, torch.int8)


def int4() -> FullAttentionSpec:
    return replace(per_token_head(KVQuantMode.INT4_PER_TOKEN_HEAD, torch.uint8), head_size=24)


def fp8_window() -> SlidingWindowSpec:
    return replace(
        window(40),
        head_size=12,
        dtype=torch.uint8,
        state_content_bytes=32,
        kv_quant_mode=KVQuantMode.FP8_PER_TOKEN_HEAD,
    )


def nvfp4() -> FullAttentionSpec:
    """Keys and values in slots of their own, each with its block scales, as in FlashInfer."""
    return replace(
        attention(),
        dtype=torch.uint8,
        num_head_slots=4,
        state_content_bytes=16,
        kv_quant_mode=KVQuantMode.NVFP4,
    )


def fp8_latent() -> MLAAttentionSpec:
    """Latents, rotary part and scales of a token in one piece."""
    return replace(
        latent(),
        dtype=torch.uint8,
        state_content_bytes=64,
        kv_quant_mode=KVQuantMode.FP8_PER_TENSOR,
        cache_dtype_str="fp8_ds_mla",
    )


def nvfp4_latent() -> MLAAttentionSpec:
    return replace(
        fp8_latent(), kv_quant_mode=KVQuantMode.NVFP4_DS_MLA, cache_dtype_str="nvfp4_ds_mla"
    )


def window(tokens: int, heads: int = 2, block_tokens: int = BLOCK_TOKENS) -> SlidingWindowSpec:
    return SlidingWindowSpec(
        block_size=block_tokens,
        num_kv_heads=heads,
        head_size=8,
        dtype=bf16,
        sliding_window=tokens,
    )


def compressed(tokens: int = 4) -> MLAAttentionSpec:
    """One state for several tokens, as in DeepSeek V4 and Qwen4."""
    return replace(latent(), head_size=16 * tokens * 2, tokens_per_state=tokens)


def ring(tokens: int = 4) -> CircularBufferSpec:
    """The tokens that are not yet compressed."""
    return CircularBufferSpec(
        block_size=tokens,
        num_kv_heads=1,
        head_size=PAGE_BYTES // tokens // 4,
        dtype=f32,
        head_size_v=0,
    )


def narrow_window() -> SlidingWindowMLASpec:
    """The states of a compressor, which needs those of the tokens before."""
    return SlidingWindowMLASpec(
        block_size=4, num_kv_heads=1, head_size=64, dtype=f32, sliding_window=8
    )


def latent_window() -> SlidingWindowMLASpec:
    return SlidingWindowMLASpec(
        block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=32, dtype=bf16, sliding_window=40
    )


def recurrent(kind: Kind, *states: State, page_bytes: int = PAGE_BYTES) -> MambaSpec:
    content = sum(prod(shape) * dtype.itemsize for shape, dtype in states)
    assert content <= page_bytes, (content, page_bytes)
    return MambaSpec(
        block_size=BLOCK_TOKENS,
        shapes=tuple(shape for shape, _ in states),
        dtypes=tuple(dtype for _, dtype in states),
        page_size_padded=page_bytes,
        mamba_type=kind,
        mamba_cache_mode="align",
    )


def gdn() -> MambaSpec:
    return recurrent(Kind.GDN_ATTN, ((3, 40), bf16), ((2, 8, 8), f32))


def mamba1() -> MambaSpec:
    return recurrent(Kind.MAMBA1, ((20, 3), bf16), ((20, 8), f32))


def mamba2() -> MambaSpec:
    return recurrent(Kind.MAMBA2, ((3, 36), bf16), ((4, 6, 8), f32))


def exporting(make: Callable[[], MambaSpec], alignment: int = 1) -> Callable[[], MambaSpec]:
    """Kernels that hand over a prompt's last boundary from inside its last step.

    alignment: tokens; how far from the step's start such a boundary may lie is a multiple of it.
    """

    def exports() -> MambaSpec:
        return replace(
            make(), num_prefill_checkpoint_blocks=1, prefill_checkpoint_alignment=alignment
        )

    return exports


def short_conv() -> MambaSpec:
    return recurrent(Kind.SHORT_CONV, ((2, 30), bf16))


def kda() -> MambaSpec:
    return recurrent(
        Kind.GDN_ATTN, ((3, 10), bf16), ((3, 10), bf16), ((3, 10), bf16), ((2, 8, 8), f32)
    )


@dataclass(frozen=True)
class Shape:
    """The layers of a model, each by its maker, and how vLLM is to lay them out."""

    name: str
    layers: tuple[Callable[[], KVCacheSpec], ...]
    layout: str = "LBNHC"
    kernel_tokens: int | None = None
    """Tokens in a kernel block of the attention groups, if blocks are divided."""
    draft_layers: tuple[Callable[[], KVCacheSpec], ...] = ()
    """The layers that make drafts, behind those of the model."""
    drafts: int = 0
    block_tokens: int = field(default=BLOCK_TOKENS, init=False)
    """As ``--block-size`` says; vLLM may choose others."""

    @property
    def has_windows(self) -> bool:
        return any(isinstance(spec, SlidingWindowSpec) for spec in self.specs().values())

    @property
    def has_tails(self) -> bool:
        """Whether a state inside a block can be stored: pages have all that its tokens left."""
        specs = self.specs().values()
        return any(isinstance(spec, MambaSpec) for spec in specs) and all(
            spec.tokens_per_state <= 1 for spec in specs
        )

    @property
    def thins_out(self) -> bool:
        """Whether vLLM's own cache can keep less than everything."""
        return any(
            isinstance(spec, SlidingWindowSpec | MambaSpec) for spec in self.specs().values()
        )

    @property
    def exports(self) -> bool:
        """Whether kernels write states from inside a step."""
        specs = (spec for spec in self.specs().values() if isinstance(spec, MambaSpec))
        return any(spec.num_prefill_checkpoint_blocks for spec in specs)

    def specs(self) -> dict[str, KVCacheSpec]:
        specs = {f"model.layers.{i}": make() for i, make in enumerate(self.layers)}
        for i, make in enumerate(self.draft_layers):
            spec = make()
            if hasattr(spec, "is_draft"):  # since vLLM 0.33
                spec = replace(spec, is_draft=True)
            specs[f"{DRAFT}{i}"] = spec
        return specs


def _hybrid(state: Callable[[], KVCacheSpec], page: Callable[[], KVCacheSpec]) -> tuple:
    return (state, state, state, page) * 2


EXPORTING = exporting(mamba2)  # as every layer of vLLM's MambaMixer2
GDN = Shape("gdn", _hybrid(gdn, attention))
UNEQUAL = (
    # vLLM gives layers with smaller pages more tokens in a block, as in Gemma 4 31B and E4B.
    Shape("gemma4-31b", (one_head, *[lambda: window(40)] * 3) * 2),
    Shape("gemma4-e4b", (attention, *[lambda: window(40, heads=1)] * 3) * 2),
    Shape("gemma4-kernel-blocks", (one_head, lambda: window(40)) * 2, kernel_tokens=8),
    Shape("gemma4-heads-first", (one_head, lambda: window(40)) * 2, layout="LBHNC"),
    # A page of 3 heads is no multiple of one of 2: the smaller one is padded.
    Shape("window-padded", (attention, lambda: window(40, 3), lambda: window(24, 1))),
    Shape("three-sizes", (lambda: window(40, 6), attention, lambda: window(40, 3))),
    Shape("gdn-window-unequal", (gdn, gdn, lambda: window(40, heads=1), attention) * 2),
    Shape("mamba2-window-unequal", (EXPORTING, lambda: window(40, heads=1), attention)),
    Shape("gdn-one-head", (gdn, attention, one_head)),
    Shape("compressed-ring", (latent, compressed, ring)),
    Shape("compressed-windows", (compressed, narrow_window, latent_window)),
    Shape("gdn-compressed-ring", (gdn, gdn, latent, compressed, ring)),
)
"""Groups whose engine blocks hold different numbers of tokens."""

SHAPES = {
    shape.name: shape
    for shape in (
        GDN,
        Shape("gdn-heads-first", _hybrid(gdn, attention), layout="LBHNC"),
        Shape("gdn-block-outermost", _hybrid(gdn, attention), layout="BLNHC"),
        Shape("gdn-block-outermost-heads-first", _hybrid(gdn, attention), layout="BLHNC"),
        Shape("gdn-kernel-blocks", _hybrid(gdn, attention), kernel_tokens=4),
        Shape("gdn-kernel-blocks-heads-first", _hybrid(gdn, attention), "LBHNC", 8),
        Shape("gdn-window", (gdn, gdn, lambda: window(40), attention) * 2),
        Shape("window-attention", (lambda: window(24), attention) * 2),
        Shape("mamba1", _hybrid(mamba1, attention)),
        Shape("mamba2", (EXPORTING, EXPORTING, attention)),
        Shape("mamba2-window", (EXPORTING, lambda: window(40), attention)),
        Shape("gdn-exports", _hybrid(exporting(gdn, BLOCK_TOKENS), attention)),
        Shape("kda-exports", _hybrid(exporting(kda, 4), latent)),
        Shape("short-conv", (short_conv, attention, short_conv)),
        Shape("kda-latent", _hybrid(kda, latent)),
        Shape("kda-latent-kernel-blocks", _hybrid(kda, latent), kernel_tokens=4),
        Shape("two-recurrent-kinds", (gdn, EXPORTING, attention)),
        Shape("two-exporting-kinds", (exporting(gdn), EXPORTING, attention)),
        Shape("attention-only", (attention, attention)),
        Shape("heads-differ", (attention, one_head, attention)),
        Shape("padded-attention", _hybrid(large_gdn, padded_attention)),
        Shape("fp8", _hybrid(gdn, fp8)),
        Shape("fp8-heads-first", _hybrid(gdn, fp8), layout="LBHNC"),
        Shape("fp8-and-bf16", (gdn, fp8, gdn, attention)),
        Shape("int8", _hybrid(gdn, int8)),
        Shape("int4-kernel-blocks", _hybrid(gdn, int4), kernel_tokens=4),
        Shape("fp8-window", (gdn, gdn, fp8_window, int8)),
        Shape("nvfp4", _hybrid(gdn, nvfp4)),
        Shape("fp8-latent", _hybrid(kda, fp8_latent)),
        Shape("nvfp4-latent", _hybrid(kda, nvfp4_latent)),
        Shape("pages-differ", (gdn, attention, one_head) * 2, layout="BLNHC"),
        *UNEQUAL,
    )
}
