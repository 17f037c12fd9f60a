"""What is read out of a live cache, and how a fresh one is filled.

A window layer keeps the tokens that it still sees, which rarely begin with a block. Of a cache that
was not followed block by block, the first block that a boundary needs is therefore held in part: it
must not become the page of that block, which other boundaries need whole. Such a prefix is
*packed*: behind its last block it has another one, with a key of its own and no tokens, whose
window pages begin with that part. As much as a page has room for is missing at most.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from hybrid_pages._core import PageClass
from hybrid_pages.transformers import layers
from hybrid_pages.transformers.layout import KEYS, CacheTensor, Layout

States = Mapping[CacheTensor, torch.Tensor]
"""Recurrent states at one boundary, each with the batch row in front."""

_MOST = 1 << 16
_MARK = b"packed"


class Packed:
    """Which prefixes were stored packed: a hint where to look, and no promise. The last 65536."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, bytes], None] = OrderedDict()

    def add(self, namespace: int, last: bytes) -> None:
        """Notes a prefix by the key of its last block."""
        self._known[namespace, last] = None
        self._known.move_to_end((namespace, last))
        if len(self._known) > _MOST:
            self._known.popitem(last=False)

    def drop(self, namespace: int, last: bytes) -> None:
        """Forgets a prefix that is gone."""
        self._known.pop((namespace, last), None)

    def deepest(
        self, namespace: int, keys: Sequence[bytes], *, first: int, limit: int
    ) -> Iterator[int]:
        """How many blocks the packed prefixes of more than ``first`` blocks have, deepest first."""
        for blocks in range(limit, first, -1):
            if (namespace, keys[blocks - 1]) in self._known:
                yield blocks

    def clear(self) -> None:
        self._known.clear()


def chain(keys: Sequence[bytes]) -> list[bytes]:
    """The keys of a packed prefix. No full block has the last one: what it is a digest of has
    another length."""
    return [*keys, hashlib.blake2b(keys[-1] + _MARK, digest_size=32).digest()]


def packed_part(layout: Layout, item: PageClass, blocks: int) -> tuple[int, int]:
    """The tokens [first, end) that the last page of a packed prefix holds, of one class."""
    window = layout.geometry.groups[item.groups[0]].window_tokens
    if window is None or item.window_blocks is None:
        return 0, 0
    first = max(0, blocks * layout.block_tokens - (window - 1))
    return first, max(first, (blocks + 1 - item.window_blocks) * layout.block_tokens)


def boundary_of(layout: Layout, cache: Any, blocks: int) -> tuple[int, bool]:
    """The deepest boundary, of at most so many blocks, whose windows a cache still holds, and
    whether it has to be packed."""
    held = {item.index: first_held(layout, item.index, cache) for item in _windows(layout)}
    size = layout.block_tokens
    for end in range(blocks, 0, -1):
        parts = [(held[item.index], packed_part(layout, item, end)[0]) for item in _windows(layout)]
        if all(first <= needed for first, needed in parts):
            whole = all(
                held[item.index] <= max(0, end - (item.window_blocks or 0)) * size
                for item in _windows(layout)
            )
            return end, not whole
        if any(first > end * size for first, _ in parts):
            break
    return 0, False


def first_held(layout: Layout, class_index: int, cache: Any) -> int:
    """The first token that all layers of a class still have."""
    return max(
        layers.tokens(cache.layers[spec.layer]).first
        for spec in layout.class_tensors(class_index)
        if spec.kind == KEYS
    )


def fill(cache: Any, tensors: Mapping[CacheTensor, torch.Tensor], seen: int) -> None:
    """Writes tensors into a fresh cache, and says so in its flags.

    seen: tokens. Keys and values are of the last of them, at least of those that a window sees.
    """
    # States first, as models do that have both in one layer.
    for spec, tensor in tensors.items():
        if spec.is_state:
            layers.write_state(cache.layers[spec.layer], spec.kind, spec.index, tensor)
    keys = {spec.layer: tensor for spec, tensor in tensors.items() if spec.kind == KEYS}
    for spec, tensor in tensors.items():
        if not spec.is_state and spec.kind != KEYS:
            layers.write_tokens(cache.layers[spec.layer], keys[spec.layer], tensor, seen)


class Reader:
    """Reads blocks and states out of a live cache.

    packed: of how many blocks the prefix is, if it is packed.
    """

    def __init__(
        self, layout: Layout, cache: Any, states: States | None, packed: int | None = None
    ) -> None:
        self._size, self._cache, self._states = layout.block_tokens, cache, states or {}
        # Asked once per layer: the count of a static one may lie on a device.
        self._held: dict[int, layers.Tokens] = {}
        self._packed = packed
        self._parts = {} if packed is None else _parts(layout, packed)

    def __call__(self, spec: CacheTensor, block: int, count: int) -> torch.Tensor:
        if spec.is_state:
            return self._states[spec].detach()
        held = self._held.get(spec.layer)
        if held is None:
            held = self._held[spec.layer] = layers.tokens(self._cache.layers[spec.layer])
        tensor = (held.keys if spec.kind == KEYS else held.values).detach()[0]
        if block + count - 1 != self._packed:
            return self._whole(tensor, block * self._size - held.first, count)
        page = tensor.new_zeros((1, *spec.shape))
        first, end = self._parts.get(spec, (0, 0))
        page[0, :, : end - first] = tensor[:, first - held.first : end - held.first]
        return torch.cat([self._whole(tensor, block * self._size - held.first, count - 1), page])

    def _whole(self, tensor: torch.Tensor, start: int, count: int) -> torch.Tensor:
        if not count:
            return tensor.new_empty((0, tensor.shape[0], self._size, tensor.shape[2]))
        row = tensor[:, start : start + count * self._size]
        return row.unflatten(1, (count, self._size)).transpose(0, 1)


class Writer:
    """Collects the first blocks in tensors of its own; a cache sees them when they are whole.

    packed: whether there is another block behind them, that of a packed prefix.
    """

    def __init__(self, layout: Layout, blocks: int, *, packed: bool = False) -> None:
        self._size, self._blocks = layout.block_tokens, blocks
        self._parts = _parts(layout, blocks) if packed else {}
        self._packed = packed
        # The token that a tensor's first place is for.
        self._first: dict[CacheTensor, int] = {}
        self._tensors: dict[CacheTensor, torch.Tensor] = {}
        for item in layout.geometry.classes:
            window = 1 if item.kind == "recurrent" else item.window_blocks or blocks
            for spec in layout.class_tensors(item.index):
                first = max(0, blocks - window) * self._size
                if spec in self._parts:
                    first = self._parts[spec][0]
                shape = spec.shape
                if not spec.is_state:
                    heads, size, dim = spec.shape
                    shape = (heads, blocks * size - first, dim)
                self._first[spec] = first
                self._tensors[spec] = torch.empty((1, *shape), dtype=spec.dtype, device=spec.device)

    def __call__(self, spec: CacheTensor, block: int, staged: torch.Tensor) -> None:
        target = self._tensors[spec]
        if spec.is_state:
            target.copy_(staged, non_blocking=target.is_cuda)
            return
        count, cuda = staged.shape[0], target.is_cuda
        if self._packed and block + count - 1 == self._blocks:
            first, end = self._parts.get(spec, (0, 0))
            target[0, :, : end - first].copy_(staged[-1, :, : end - first], non_blocking=cuda)
            count -= 1
        start = block * self._size - self._first[spec]
        row = target[0, :, start : start + count * self._size]
        if count:
            pages = row.unflatten(1, (count, self._size)).transpose(0, 1)
            pages.copy_(staged[:count], non_blocking=cuda)

    def adopt(self, cache: Any) -> None:
        """Writes the collected tensors into a fresh cache, and says so in its flags."""
        fill(cache, self._tensors, self._blocks * self._size)


def _windows(layout: Layout) -> list[PageClass]:
    return [item for item in layout.geometry.classes if item.window_blocks is not None]


def _parts(layout: Layout, blocks: int) -> dict[CacheTensor, tuple[int, int]]:
    return {
        spec: packed_part(layout, item, blocks)
        for item in _windows(layout)
        for spec in layout.class_tensors(item.index)
    }
