"""Block sizes and groups as vLLM chooses them, and the sizes of pages and checkpoints.

Restates ``vllm/platforms/interface.py: _align_hybrid_block_size``,
``vllm/model_executor/layers/attention/attention.py: get_kv_cache_spec`` and
``vllm/v1/core/kv_cache_planning.py: get_kv_cache_groups``, without drafts, for one layout of memory
(not the block-outermost ones).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from hybrid_pages.models.config import ModelError, RanksError
from hybrid_pages.models.layers import Attention, Layer, RecurrentState

DEFAULT_BLOCK = {"cuda": 16, "cpu": 128}
"""vLLM's block size without ``--block-size``, by device: ``CacheConfig.DEFAULT_BLOCK_SIZE``, and
``vllm/platforms/cpu.py``."""
_LATENT_BLOCK = 128
"""The blocks of hybrid models with latent attention are multiples of this many tokens."""
_EXPORT_TOKENS = {"always": 1, "flashinfer": 64, "flashkda": 16}
"""Blocks are multiples of this many tokens, by the kernels that export states
(``get_prefill_checkpoint_alignment``)."""
_CPU_LATENT = 16

WholeBlocksOnly = Literal["no_states", "drafts", "context", "narrow_window"]
"""Why requests resume at multiples of N alone: the model has no recurrent layers, the engine
guesses tokens, ranks divide a context, or a sliding window is narrower than a block."""

KERNEL_TOKENS = {"cuda": 16, "cpu": 32}
"""Blocks of attention kernels are multiples of this many tokens, by device
(``get_supported_kernel_block_sizes`` of FlashAttention, of FlashInfer and of the CPU's kernel)."""


@dataclass(frozen=True)
class LayerGroup:
    """Layers that share a block table."""

    layers: tuple[Layer, ...]
    block_tokens: int
    """The tokens of an engine block."""
    block_bytes: int
    """The size of an engine block in one layer on one rank, padding included."""
    places: tuple[Layer, ...]
    """What each rank's part of an entry has room for: of layers of each size, as many as the
    pipeline stage that has the most of them (``hybrid_pages/vllm/layout/stages.py``)."""
    context: int = 1
    """How many ranks keep the tokens of an engine block in turn."""

    @property
    def is_recurrent(self) -> bool:
        """Whether the layers are recurrent."""
        return isinstance(self.layers[0], RecurrentState)

    @property
    def window(self) -> int | None:
        """The width of the layers' sliding window, in tokens; None for other layers."""
        first = self.layers[0]
        return first.window if isinstance(first, Attention) else None

    def entry_blocks(self, n: int) -> int:
        """The engine blocks of an entry of n tokens (``hybrid_pages/vllm/layout/grid.py``)."""
        if self.is_recurrent:
            return 1
        per_block = n // self.block_tokens
        if self.window is None:
            return per_block
        unseen = max(0, n - self.window + 1) // self.block_tokens
        return max(1, per_block - unseen)

    def entry_bytes(self, n: int) -> int:
        """The size of an entry of n tokens on one rank, without the engine's padding."""
        return self._bytes_of(self.places, n)

    def layer_bytes(self, n: int) -> int:
        """The size of an entry of n tokens in all layers, each on one rank, without padding."""
        return self._bytes_of(self.layers, n)

    def padding_bytes(self, n: int) -> int:
        """The unused bytes in the engine blocks of an entry of n tokens, each layer on one rank."""
        return self.entry_blocks(n) * self.block_bytes * len(self.layers) - self.layer_bytes(n)

    def _bytes_of(self, layers: Iterable[Layer], n: int) -> int:
        tokens = self.entry_blocks(n) * self.block_tokens // self.context
        return sum(
            layer.nbytes if isinstance(layer, RecurrentState) else tokens * layer.token_bytes
            for layer in layers
        )


@dataclass(frozen=True)
class CachePlan:
    """The blocks that vLLM makes of a model's cache, and the sizes that follow from them."""

    layers: tuple[Layer, ...]
    groups: tuple[LayerGroup, ...]
    ranks: int
    """The tensor ranks of each pipeline stage."""
    block_tokens: int
    """N, the tokens of a page, and between checkpoints."""
    exports: bool
    """Whether the kernels export states from inside a step."""
    alternative: tuple[int, str] | None = field(default=None)
    """N with other kernels, where vLLM has a choice, and the name of those."""
    stages: int = 1
    """The pipeline stages."""
    context: int = 1
    """How many tensor ranks divide a context."""

    def rank_bytes(self, *, recurrent: bool) -> int:
        """The size of a rank's part of a checkpoint or of a page, without the engine's padding."""
        return sum(
            group.entry_bytes(self.block_tokens)
            for group in self.groups
            if group.is_recurrent == recurrent
        )

    def bytes_of(self, *, recurrent: bool) -> int:
        """The size of a checkpoint or of a page on all ranks of all stages together, without the
        engine's padding."""
        return self.stages * self.ranks * self.rank_bytes(recurrent=recurrent)

    def zero_bytes(self, *, recurrent: bool) -> int:
        """The zeros in a checkpoint or in a page: the places of layers that only other stages
        have."""
        own = sum(
            group.layer_bytes(self.block_tokens)
            for group in self.groups
            if group.is_recurrent == recurrent
        )
        return self.bytes_of(recurrent=recurrent) - self.ranks * own

    @property
    def page_bytes(self) -> int:
        """The size of a page on all ranks: everything of N tokens but recurrent states."""
        return self.bytes_of(recurrent=False)

    @property
    def checkpoint_bytes(self) -> int:
        """The size of a checkpoint on all ranks: the states of all recurrent layers."""
        return self.bytes_of(recurrent=True)

    @property
    def padding_bytes(self) -> int:
        """The unused bytes in the engine blocks of a checkpoint, on all ranks."""
        return self.ranks * sum(
            group.padding_bytes(self.block_tokens) for group in self.groups if group.is_recurrent
        )

    @property
    def bytes_per_token(self) -> int:
        """The size of one token's keys and values in all layers on all ranks, windows included."""
        found = sum(layer.token_bytes for layer in self.layers if isinstance(layer, Attention))
        return self.ranks * found // self.context

    def whole_blocks_only(self, drafts: int = 0) -> WholeBlocksOnly | None:
        """Why requests resume at multiples of N alone; None if also where earlier ones ended.

        Restates ``no_tails`` and ``wants_tails`` of ``hybrid_pages/vllm/layout/grid.py``. Whether
        the attention kernels are known, only a running engine tells.

        drafts: tokens that are guessed per step.
        """
        n = self.block_tokens
        if not self.checkpoint_bytes:
            return "no_states"
        if drafts:
            return "drafts"
        if self.context > 1:
            return "context"
        windows = (group for group in self.groups if group.window is not None)
        if any(group.entry_blocks(n) < n // group.block_tokens for group in windows):
            return "narrow_window"
        return None

    def kept_bytes(self, tokens: int, checkpoints: int = 1, tails: int = 0) -> int:
        """The bytes that are kept to resume a prompt at its last boundary, and at some ends.

        These are the pages of all blocks, of window layers only those that the window still sees,
        and the checkpoints. The page of a block that is not full takes as much as another.

        tokens: of the prompt. checkpoints: how many are kept. tails: how many of them are inside
        blocks; each has a page of its own.
        """
        n = self.block_tokens
        blocks = tokens // n
        total = checkpoints * self.checkpoint_bytes if blocks or tails else 0
        for group in self.groups:
            if not group.is_recurrent:
                seen = blocks
                if group.window is not None:
                    seen = min(blocks, max(1, -(-(group.window - 1) // n)))
                total += self.stages * self.ranks * (seen + tails) * group.entry_bytes(n)
        return total


def plan(
    layers: Sequence[Layer],
    *,
    ranks: int = 1,
    device: str = "cuda",
    block_size: int | None = None,
    exports: bool = False,
    stages: Sequence[int] | None = None,
    context: int = 1,
) -> CachePlan:
    """The blocks that vLLM makes of a model's layers.

    Args:
        layers: of all pipeline stages, each on one rank.
        ranks: number of tensor-parallel ranks in each stage.
        device: ``cuda`` or ``cpu``.
        block_size: ``--block-size``; None for the default.
        exports: where there is a choice, whether kernels are used that export states from inside a
            step (FlashInfer's and FlashKDA's).
        stages: how many of the layers are in each pipeline stage, in order; None for one stage.
        context: how many ranks divide a context (``--decode-context-parallel-size``).

    Raises:
        RanksError: ranks would divide the context of a sliding window.
        ModelError: no attention layer, or blocks that vLLM cannot make.
    """

    counts = stages or (len(layers),)
    places = [stage for stage, count in enumerate(counts) for _ in range(count)]

    def made(exports: bool) -> CachePlan:
        found = _plan(layers, places, ranks, device, block_size, exports)
        found = replace(found, stages=len(counts))
        return _divided(found, context) if context > 1 else found

    found = made(exports)
    exported = {layer.export for layer in layers if isinstance(layer, RecurrentState)}
    names = {"flashinfer": "FlashInfer", "flashkda": "FlashKDA"}
    other = next((names[kind] for kind in sorted(exported) if kind in names), None)
    if other is None:
        return found
    n = made(not exports).block_tokens
    return replace(found, alternative=(n, "other kernels" if exports else other))


def _plan(
    layers: Sequence[Layer],
    stages: Sequence[int],
    ranks: int,
    device: str,
    block_size: int | None,
    exports: bool,
) -> CachePlan:
    attention = [layer for layer in layers if isinstance(layer, Attention)]
    states = [layer for layer in layers if isinstance(layer, RecurrentState)]
    if not attention:
        raise ModelError("expected layers of attention, found none: vLLM caches no prefixes then")
    latent = any(layer.latent for layer in attention)
    kernel = _CPU_LATENT if latent and device == "cpu" else KERNEL_TOKENS[device]
    block = block_size or DEFAULT_BLOCK[device]
    # On a CPU, vLLM itself lengthens the blocks of models with states to a multiple.
    if block % kernel and not (states and device == "cpu"):
        raise ModelError(
            f"--block-size: expected a multiple of {kernel}, of which attention kernels for "
            f"{device} make blocks, found {block}"
        )
    exporting = bool(states) and all(
        state.export == "always" or (exports and state.export != "never") for state in states
    )
    padded = None
    if states:
        token = max(layer.token_bytes for layer in attention)
        step = max(kernel, block, _LATENT_BLOCK if latent else 0)
        if exporting:
            step = math.lcm(step, *(_EXPORT_TOKENS[state.export] for state in states))
        largest = max(state.nbytes for state in states)
        wanted = kernel * -(-step * -(-largest // (step * token)) // kernel)
        block = max(block, wanted)
        padded = block * token
    specs = [
        replace(_spec(layer, block, kernel, padded), stage=stage)
        for layer, stage in zip(layers, stages, strict=True)
    ]
    groups = _groups(specs)
    return CachePlan(
        layers=tuple(layers),
        groups=groups,
        ranks=ranks,
        block_tokens=math.lcm(*(group.block_tokens for group in groups)),
        exports=exporting,
    )


def _divided(found: CachePlan, context: int) -> CachePlan:
    """A plan in which ranks keep the tokens of each page in turn, and each keeps whole states
    (``resolve_dcp_kv_block_size`` of ``vllm/v1/core/kv_cache_utils.py``)."""
    if any(group.window is not None for group in found.groups):
        raise RanksError(
            f"--decode-context-parallel-size: expected 1 for a model with sliding windows, found "
            f"{context}"
        )
    groups = tuple(
        group
        if group.is_recurrent
        else replace(group, block_tokens=group.block_tokens * context, context=context)
        for group in found.groups
    )
    n = math.lcm(*(group.block_tokens for group in groups))
    return replace(found, groups=groups, block_tokens=n, context=context)


@dataclass(frozen=True)
class _Spec:
    """vLLM's ``KVCacheSpec`` of a layer."""

    layer: Layer
    block_tokens: int
    page_bytes: int
    stage: int = 0
    """The pipeline stage that the layer is in."""


def _spec(layer: Layer, block: int, kernel: int, padded: int | None) -> _Spec:
    if isinstance(layer, RecurrentState):
        return _Spec(layer, block, padded or layer.nbytes)
    if layer.window is not None:
        # The largest block of the window's own kernel that fits into a page.
        block = max(kernel, block // kernel * kernel)
    return _Spec(layer, block, block * layer.token_bytes)


def _groups(specs: Sequence[_Spec]) -> tuple[LayerGroup, ...]:
    """``get_kv_cache_groups``: one group if all layers are of one type, or else groups of equally
    many layers."""
    if _is_one_type(specs):
        return (_group(specs),)
    specs = _of_one_page(specs)
    buckets: dict[tuple[object, ...], list[_Spec]] = {}
    for spec in specs:
        buckets.setdefault((spec.layer, spec.block_tokens, spec.page_bytes), []).append(spec)
    counts = [len(bucket) for bucket in buckets.values()]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = []
    for bucket in buckets.values():
        number = -(-len(bucket) // size)
        groups += [_group(bucket[start::number]) for start in range(number)]
    return tuple(groups)


def _group(specs: Sequence[_Spec]) -> LayerGroup:
    return LayerGroup(
        tuple(spec.layer for spec in specs),
        specs[0].block_tokens,
        max(spec.page_bytes for spec in specs),
        _places(specs),
    )


def _places(specs: Sequence[_Spec]) -> tuple[Layer, ...]:
    """Of layers of each size, as many as the stage that has the most of them."""
    most: dict[int, list[Layer]] = {}
    by_stage: dict[tuple[int, int], list[Layer]] = {}
    for spec in specs:
        layer = spec.layer
        size = layer.nbytes if isinstance(layer, RecurrentState) else layer.token_bytes
        here = by_stage.setdefault((spec.stage, size), [])
        here.append(layer)
        most[size] = max(most.get(size, here), here, key=len)
    return tuple(layer for layers in most.values() for layer in layers)


def _is_one_type(specs: Iterable[_Spec]) -> bool:
    """Whether all layers are of one type: full attention, one window, or states of one size.

    Restates ``UniformTypeKVCacheSpecs.is_uniform_type``.
    """
    kinds = {
        (
            isinstance(spec.layer, RecurrentState),
            spec.layer.window if isinstance(spec.layer, Attention) else spec.page_bytes,
            isinstance(spec.layer, Attention) and spec.layer.latent,
            spec.block_tokens,
        )
        for spec in specs
    }
    return len(kinds) == 1


def _of_one_page(specs: Sequence[_Spec]) -> list[_Spec]:
    """Layers whose pages have one size: smaller ones get more tokens, or else padding.

    Restates ``unify_kv_cache_spec_page_size``.
    """
    largest = max(spec.page_bytes for spec in specs)
    found = []
    for spec in specs:
        times, rest = divmod(largest, spec.page_bytes)
        if isinstance(spec.layer, RecurrentState) or rest:
            if isinstance(spec.layer, Attention) and spec.layer.latent:
                raise ModelError(
                    f"latent pages of {spec.page_bytes} bytes beside pages of {largest}: vLLM can "
                    "neither fill nor pad them, and allocates as for full attention"
                )
            found.append(replace(spec, page_bytes=largest))
        else:
            found.append(replace(spec, block_tokens=spec.block_tokens * times, page_bytes=largest))
    return found
