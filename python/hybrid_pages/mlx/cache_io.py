"""Copies blocks and states between live prompt caches and the arena, and fills fresh caches.

A prefix that ends inside a block has a *tail*: its last page holds ``tail`` tokens and is padded.
The tail page of a sliding window uses the padding: from the end of the tail, the window sees up to
``block_tokens - tail`` tokens more in front of its blocks than from the end of the block. These
tokens lie behind the tail.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from hybrid_pages import TransferError
from hybrid_pages.adapter import staging
from hybrid_pages.mlx import cache_parts, differences
from hybrid_pages.mlx.layout import KEYS, VALUES, CacheArray, Layout
from hybrid_pages.mlx.numpy_views import blank, numpy_dtype, views

States = Mapping[CacheArray, mx.array]
"""Recurrent states at one boundary, each with the batch row in front."""


def end_of(layout: Layout, tokens: int) -> tuple[int, int]:
    """The index of the block in which a prefix ends, and how many tokens of it the prefix has."""
    return divmod(tokens, layout.block_tokens)


class Staging(staging.Staging[CacheArray]):
    """Moves entries between numpy arrays and an arena."""

    def _allocate(self, array: CacheArray, blocks: int) -> Any:
        return np.zeros((blocks, *array.shape), numpy_dtype(array.mlx_dtype))

    def _address(self, memory: Any) -> int:
        return int(memory.ctypes.data)


class Reader:
    """Reads blocks and states out of a live cache into staged memory.

    states: the recurrent states to read, which may be older than those in the cache. tokens: how
    many the cache has seen, if the prefix may end inside a block.
    """

    def __init__(
        self, layout: Layout, cache: Sequence[Any], states: States | None, tokens: int
    ) -> None:
        self._layout, self._states = layout, states
        self._parts = cache_parts.parts(cache)
        self._tail_block, self._tail = end_of(layout, tokens)
        # The keys or values of a part, and the first token of them.
        self._held: dict[CacheArray, tuple[Any, int]] = {}
        self._read: dict[CacheArray, Any] = {}

    def first_held(self, class_index: int) -> int:
        """The first token whose keys and values all parts of a class still have."""
        held = (
            cache_parts.tokens(self._parts[spec.part]).first
            for spec in self._layout.class_arrays(class_index)
            if spec.kind == KEYS
        )
        return max(held, default=0)

    def __call__(self, spec: CacheArray, block: int, target: Any) -> None:
        if spec.is_state:
            target[0] = self._state(spec)
            return
        rows, first = self._pages(spec)
        for index, page in enumerate(target):
            start = (block + index) * self._layout.block_tokens
            if self._tail and block + index == self._tail_block:
                page[...] = 0
                page[:, : self._tail] = rows[:, start - first : start - first + self._tail]
                self._fill_behind(spec, rows, first, page)
            else:
                page[...] = rows[:, start - first : start - first + self._layout.block_tokens]

    def _fill_behind(self, spec: CacheArray, rows: Any, first: int, page: Any) -> None:
        begin, end = _before_window(self._layout, spec, self._tail_block, self._tail)
        held = max(begin, first)
        if held < end:
            page[:, self._layout.block_tokens - (end - held) :] = rows[
                :, held - first : end - first
            ]

    def _state(self, spec: CacheArray) -> Any:
        if not self._read:
            states = self._states or {}
            found = views(list(states.values()))
            self._read = dict(zip(states, found, strict=True))
        return self._read[spec][0]

    def _pages(self, wanted: CacheArray) -> tuple[Any, int]:
        if wanted not in self._held:
            specs = [
                spec
                for spec in self._layout.arrays()
                if not spec.is_state and spec.window == wanted.window
            ]
            held = {spec.part: cache_parts.tokens(self._parts[spec.part]) for spec in specs}
            arrays = [
                held[spec.part].keys if spec.kind == KEYS else held[spec.part].values
                for spec in specs
            ]
            for spec, array in zip(specs, views(arrays), strict=True):
                self._held[spec] = array[0], held[spec.part].first
        return self._held[wanted]


class Writer:
    """Collects a prefix in arrays of its own, and fills a cache when all of it is there.

    tokens: of the prefix.
    """

    def __init__(self, layout: Layout, tokens: int) -> None:
        self._layout, self._tokens = layout, tokens
        self._tail_block, self._tail = end_of(layout, tokens)
        self._arrays: dict[CacheArray, mx.array] = {}
        self._views: dict[CacheArray, Any] = {}
        # The first token of each array.
        self._first: dict[CacheArray, int] = {}

    def _target(self, spec: CacheArray) -> Any:
        if spec not in self._views:
            shape: tuple[int, ...] = (1, *spec.shape)
            if not spec.is_state:
                heads, _, dim = spec.shape
                room = _room(spec, self._tokens)
                shape = (1, heads, room, dim)
                self._first[spec] = 0 if spec.window is None else self._tokens - room
            self._arrays[spec] = blank(shape, spec.mlx_dtype)
            self._views[spec] = views([self._arrays[spec]])[0][0]
        return self._views[spec]

    def __call__(self, spec: CacheArray, block: int, staged: Any) -> None:
        target = self._target(spec)
        if spec.is_state:
            target[...] = staged[0]
            return
        size = self._layout.block_tokens
        for index in range(staged.shape[0]):
            start, page = (block + index) * size, staged[index]
            if self._tail and block + index == self._tail_block:
                self._put(spec, start, page[:, : self._tail])
                begin, end = _before_window(self._layout, spec, self._tail_block, self._tail)
                self._put(spec, begin, page[:, size - (end - begin) :])
            else:
                self._put(spec, start, page)

    def _put(self, spec: CacheArray, start: int, rows: Any) -> None:
        """Writes the rows of the tokens from ``start`` on for which the array has a place."""
        first, skipped = self._first[spec], max(0, self._first[spec] - start)
        rows = rows[:, skipped:]
        begin = start + skipped - first
        self._views[spec][:, begin : begin + rows.shape[1]] = rows

    def adopt(self, cache: Sequence[Any]) -> None:
        """Fills a fresh cache, which then has seen the prefix.

        Raises:
            TransferError: an array was never written; the cache is unchanged.
        """
        lacking = [spec.name for spec in self._layout.arrays() if spec not in self._arrays]
        if lacking:
            raise TransferError(f"restore: expected bytes of {', '.join(lacking)}, found none")
        found = cache_parts.parts(cache)
        self._views.clear()
        held = {(spec.part, spec.kind, spec.index): array for spec, array in self._arrays.items()}
        for spec in self._layout.empty:
            shape: tuple[int, ...] = (1, *spec.shape)
            if not spec.is_state:
                shape = (1, spec.shape[0], _room(spec, self._tokens), spec.shape[2])
            held[spec.part, spec.kind, spec.index] = blank(shape, spec.mlx_dtype)
        for (path, kind, index), array in held.items():
            part = found[path]
            if not cache_parts.has_tokens(part):
                part[index] = array
            elif kind == KEYS:
                differences.fill(part, array, held[path, VALUES, 0], self._tokens)


def _room(spec: CacheArray, tokens: int) -> int:
    if spec.window is None:
        return -(-(tokens + 1) // cache_parts.STEP) * cache_parts.STEP
    return min(tokens, spec.window)


def _before_window(layout: Layout, spec: CacheArray, block: int, tail: int) -> tuple[int, int]:
    """The tokens [begin, end) in front of a window's blocks that are stored in its tail page."""
    if spec.window is None:
        return 0, 0
    size = layout.block_tokens
    blocks = next(
        item.window_blocks or 0
        for item in layout.geometry.classes
        if spec in layout.class_arrays(item.index)
    )
    end = max(0, block + 1 - blocks) * size
    return max(0, end - (size - tail)), end


def states_of(layout: Layout, cache: Sequence[Any]) -> States:
    """The present recurrent states of a cache. Later passes do not change them."""
    found = cache_parts.parts(cache)
    return {
        # Another array over the same memory: mlx copies the memory before it writes there.
        spec: copy.copy(found[spec.part][spec.index])
        for spec in layout.arrays()
        if spec.is_state
    }
