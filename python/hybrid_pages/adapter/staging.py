"""Copies between a framework's arrays and the arena, through a little memory of the host.

Each array of a layout has dense memory for some blocks, which a copy engine knows. The framework
fills that memory and takes from it; the engine moves it from and to the slots.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic

from hybrid_pages._core import (
    Arena,
    CudaEngine,
    HostEngine,
    LayerMap,
    LeaseEntry,
    TransferError,
)
from hybrid_pages.adapter.layout import Array, CacheLayout

# How much memory is staged at a time; more only if a single block is larger.
_BYTES = 32 << 20
_MAX_BLOCKS = 64

Read = Callable[[Array, int, Any], None]
"""(array, first block, target ``[blocks, *shape]``): writes the bytes of those blocks there."""
Write = Callable[[Array, int, Any], None]
"""(array, first block, bytes ``[blocks, *shape]``): takes them before it returns."""


class Staging(ABC, Generic[Array]):
    """Moves entries between a framework's arrays and an arena, some blocks at a time. Thread-safe.

    A framework derives from it and says how memory is made.

    Args:
        layout: of the caches.
        arena: that holds the slots.
        threads: that copy between staged memory and slots.
    """

    def __init__(self, layout: CacheLayout[Array], arena: Arena, *, threads: int = 2) -> None:
        self._layout = layout
        self._lock = threading.Lock()
        block = sum(group.bytes for group in layout.geometry.groups)
        self._blocks = max(1, min(_MAX_BLOCKS, _BYTES // max(block, 1)))
        self._memory = {array: self._allocate(array, self._blocks) for array in layout.arrays()}
        self._engine = HostEngine(
            layout.geometry,
            arena,
            rank=0,
            num_blocks=self._blocks,
            layers=[
                self._map(group, index, array)
                for group, members in enumerate(layout.groups)
                for index, array in enumerate(members)
            ],
            threads=threads,
            owners=self._memory,
        )

    @abstractmethod
    def _allocate(self, array: Array, blocks: int) -> Any:
        """Dense memory of the host for blocks of an array, ``[blocks, *shape]``."""

    @abstractmethod
    def _address(self, memory: Any) -> int:
        """The address of memory that :meth:`_allocate` has made."""

    def _synchronize(self) -> None:
        """Waits for copies of the framework between its arrays and staged memory."""
        return

    def _map(self, group: int, layer: int, array: Array) -> LayerMap:
        memory = self._memory[array]
        stride = memory.nbytes // self._blocks
        return LayerMap(
            group=group,
            layer=layer,
            address=self._address(memory),
            nbytes=memory.nbytes,
            block_stride=stride,
            runs=[(0, stride)],
        )

    def store(self, entries: Sequence[LeaseEntry], read: Read[Array]) -> list[list[int]]:
        """Copies entries to their slots; the checksums for the lease's commit, in its order.

        Raises:
            TransferError: a copy failed. Nothing may be committed.
        """
        checksums: dict[tuple[int, int], list[int]] = {}
        with self._lock:
            for batch in _batches(entries, self._blocks):
                first = batch[0]
                for array in self._layout.class_arrays(first.class_index):
                    read(array, first.block_index, self._memory[array][: len(batch)])
                self._synchronize()
                items = [(e.class_index, e.slots, self._ids(e, i)) for i, e in enumerate(batch)]
                found = finish(self._engine, self._engine.store(items))
                for entry, value in zip(batch, found, strict=True):
                    checksums[entry.class_index, entry.block_index] = [value]
        return [checksums[entry.class_index, entry.block_index] for entry in entries]

    def load(self, entries: Sequence[LeaseEntry], write: Write[Array], *, verify: bool) -> None:
        """Copies entries from their slots.

        Raises:
            TransferError: a copy failed or, with verify, bytes are not those that were stored.
                The caller drops what was written until then.
        """
        with self._lock:
            for batch in _batches(entries, self._blocks):
                items = [
                    (e.class_index, e.slots, self._ids(e, i), e.checksums[0] if verify else None)
                    for i, e in enumerate(batch)
                ]
                finish(self._engine, self._engine.load(items))
                for array in self._layout.class_arrays(batch[0].class_index):
                    write(array, batch[0].block_index, self._memory[array][: len(batch)])
                self._synchronize()

    def close(self) -> None:
        """Ends the copy threads. The second call does nothing."""
        with self._lock:
            self._engine.close()

    def _ids(self, entry: LeaseEntry, block: int) -> list[int]:
        return [block] * len(self._layout.geometry.classes[entry.class_index].groups)


def finish(engine: HostEngine | CudaEngine, ticket: int) -> list[int]:
    """Waits for a transfer; the checksums of a store, in the order of its entries.

    Nothing else may poll the engine meanwhile.

    Raises:
        TransferError: a copy failed or, for a load, bytes are not those that were stored.
    """
    engine.wait(ticket)
    done = next(done for done in engine.poll() if done.ticket == ticket)
    if not done.ok:
        raise TransferError(done.error or "a copy failed and gave no reason")
    return done.checksums


def _batches(entries: Sequence[LeaseEntry], most: int) -> Iterator[list[LeaseEntry]]:
    """Entries of one class and consecutive blocks together, at most so many."""
    batch: list[LeaseEntry] = []
    for entry in sorted(entries, key=lambda e: (e.class_index, e.block_index)):
        follows = batch and (entry.class_index, entry.block_index) == (
            batch[-1].class_index,
            batch[-1].block_index + 1,
        )
        if batch and not (follows and len(batch) < most):
            yield batch
            batch = []
        batch.append(entry)
    if batch:
        yield batch
