"""The way between mlx's arrays and the arena: some blocks of numpy memory and the copy engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybrid_pages import Arena, HostEngine, LayerMap, LeaseEntry
from hybrid_pages.adapter.copies import bulks, finish
from hybrid_pages.mlx.layout import CacheArray, Layout
from hybrid_pages.mlx.numpy_views import numpy_dtype

# One bulk of blocks; more only if a single block is larger.
_BYTES = 32 << 20
_MAX_BLOCKS = 64

Read = Callable[[CacheArray, int, int, Any], None]
"""(array, first block, number of blocks, target ``[blocks, *spec.shape]``): writes the bytes."""
Write = Callable[[CacheArray, int, Any], None]
"""(array, first block, bytes ``[blocks, *spec.shape]``): takes them before it returns."""


class Staging:
    """Moves entries between numpy arrays and an arena, one bulk after the other. Thread-safe."""

    def __init__(self, layout: Layout, arena: Arena, *, threads: int = 2) -> None:
        self._layout = layout
        self._lock = threading.Lock()
        block = sum(group.bytes for group in layout.geometry.groups)
        self._blocks = max(1, min(_MAX_BLOCKS, _BYTES // max(block, 1)))
        self._memory = {
            spec: np.zeros((self._blocks, *spec.shape), numpy_dtype(spec.mlx_dtype))
            for spec in layout.arrays()
        }
        self._engine = HostEngine(
            layout.geometry,
            arena,
            rank=0,
            num_blocks=self._blocks,
            layers=[
                self._map(group, index, spec)
                for group, members in enumerate(layout.groups)
                for index, spec in enumerate(members)
            ],
            threads=threads,
            owners=self._memory,
        )

    def _map(self, group: int, layer: int, spec: CacheArray) -> LayerMap:
        memory = self._memory[spec]
        stride = memory.nbytes // self._blocks
        return LayerMap(
            group=group,
            layer=layer,
            address=memory.ctypes.data,
            nbytes=memory.nbytes,
            block_stride=stride,
            runs=[(0, stride)],
        )

    def store(self, entries: Sequence[LeaseEntry], read: Read) -> list[list[int]]:
        """Copies entries to their slots; the checksums for the lease's commit, in its order.

        Raises:
            TransferError: a copy failed. Nothing may be committed.
        """
        checksums: dict[tuple[int, int], list[int]] = {}
        with self._lock:
            for bulk in bulks(entries, self._blocks):
                first = bulk[0]
                for spec in self._layout.class_arrays(first.class_index):
                    read(spec, first.block_index, len(bulk), self._memory[spec][: len(bulk)])
                items = [(e.class_index, e.slots, self._ids(e, i)) for i, e in enumerate(bulk)]
                found = finish(self._engine, self._engine.store(items))
                for entry, value in zip(bulk, found, strict=True):
                    checksums[entry.class_index, entry.block_index] = [value]
        return [checksums[entry.class_index, entry.block_index] for entry in entries]

    def load(self, entries: Sequence[LeaseEntry], write: Write, *, verify: bool) -> None:
        """Copies entries from their slots.

        Raises:
            TransferError: a copy failed or, with verify, bytes are not those that were stored.
                The caller drops what was written until then.
        """
        with self._lock:
            for bulk in bulks(entries, self._blocks):
                items = [
                    (e.class_index, e.slots, self._ids(e, i), e.checksums[0] if verify else None)
                    for i, e in enumerate(bulk)
                ]
                finish(self._engine, self._engine.load(items))
                for spec in self._layout.class_arrays(bulk[0].class_index):
                    write(spec, bulk[0].block_index, self._memory[spec][: len(bulk)])

    def close(self) -> None:
        """Ends the copy threads. The second call does nothing."""
        with self._lock:
            self._engine.close()

    def _ids(self, entry: LeaseEntry, block: int) -> list[int]:
        return [block] * len(self._layout.geometry.classes[entry.class_index].groups)
