"""Copies blocks and states between live caches and the arena, and fills fresh caches with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from hybrid_pages._core import Arena
from hybrid_pages.adapter import staging
from hybrid_pages.transformers import layers
from hybrid_pages.transformers.layout import KEYS, CacheTensor, Layout
from hybrid_pages.transformers.packed import packed_tokens

States = Mapping[CacheTensor, torch.Tensor]
"""Recurrent states at one boundary, each with the batch row in front."""


class Staging(staging.Staging[CacheTensor]):
    """Moves entries between tensors of any device and an arena. Pins staged memory for CUDA."""

    def __init__(self, layout: Layout, arena: Arena, *, threads: int = 2) -> None:
        devices = {spec.device for spec in layout.arrays() if spec.device.type == "cuda"}
        self._devices = sorted(devices, key=str)
        super().__init__(layout, arena, threads=threads)

    def _allocate(self, array: CacheTensor, blocks: int) -> torch.Tensor:
        pinned = bool(self._devices)
        return torch.empty((blocks, *array.shape), dtype=array.dtype, pin_memory=pinned)

    def _address(self, memory: torch.Tensor) -> int:
        return memory.data_ptr()

    def _synchronize(self) -> None:
        for device in self._devices:
            torch.cuda.current_stream(device).synchronize()


def fill(cache: Any, tensors: Mapping[CacheTensor, torch.Tensor], seen: int) -> None:
    """Fills a fresh cache, which then has seen ``seen`` tokens.

    tensors: recurrent states, and the keys and values of the last tokens: at least of those that a
    window sees.
    """
    # States first: models with both in one layer write in this order.
    for spec, tensor in tensors.items():
        if spec.is_state:
            layers.write_state(cache.layers[spec.layer], spec.kind, spec.index, tensor)
    keys = {spec.layer: tensor for spec, tensor in tensors.items() if spec.kind == KEYS}
    for spec, tensor in tensors.items():
        if not spec.is_state and spec.kind != KEYS:
            layers.write_tokens(cache.layers[spec.layer], keys[spec.layer], tensor, seen)


class Reader:
    """Reads blocks and states out of a live cache into staged memory.

    Args:
        layout: of the cache.
        cache: of one row.
        states: the recurrent states to read, which may be older than those in the cache.
        packed: the number of blocks of the prefix, if it is packed.
    """

    def __init__(
        self, layout: Layout, cache: Any, states: States | None, packed: int | None = None
    ) -> None:
        self._size, self._cache, self._states = layout.block_tokens, cache, states or {}
        # Read once per layer: the counter of a static layer may be on a device.
        self._held: dict[int, layers.Tokens] = {}
        self._packed = packed
        self._parts = {} if packed is None else packed_tokens(layout, packed)

    def __call__(self, spec: CacheTensor, block: int, target: torch.Tensor) -> None:
        source = self._source(spec, block, target.shape[0])
        target.copy_(source, non_blocking=source.is_cuda)

    def _source(self, spec: CacheTensor, block: int, count: int) -> torch.Tensor:
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
    """Collects the blocks of a prefix in tensors of its own, and fills a cache when all are there.

    Args:
        layout: of the cache.
        blocks: of the prefix.
        packed: whether the prefix is packed, so that one more block is behind it.
    """

    def __init__(self, layout: Layout, blocks: int, *, packed: bool = False) -> None:
        self._size, self._blocks = layout.block_tokens, blocks
        self._parts = packed_tokens(layout, blocks) if packed else {}
        self._packed = packed
        # The first token of each tensor.
        self._first: dict[CacheTensor, int] = {}
        self._tensors: dict[CacheTensor, torch.Tensor] = {}
        for item in layout.geometry.classes:
            window = 1 if item.kind == "recurrent" else item.window_blocks or blocks
            for spec in layout.class_arrays(item.index):
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
        """Fills a fresh cache with what was collected."""
        fill(cache, self._tensors, self._blocks * self._size)
