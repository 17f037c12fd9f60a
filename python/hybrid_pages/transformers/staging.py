"""The way between a model's tensors and the arena: some blocks of host memory and the copy engine.

Every part has its own dense place for some blocks, which a ``HostEngine`` knows. Tensors come
and go by torch's ``copy_``, from and to any device; for CUDA the places are pinned.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from hybrid_pages import Arena, HostEngine, LayerMap, LeaseEntry
from hybrid_pages.adapter.copies import bulks, finish
from hybrid_pages.transformers.layout import Layout, Part

# One bulk of blocks; more only if a single block is larger.
_BYTES = 32 << 20
_MAX_BLOCKS = 64

Read = Callable[[Part, int, int], torch.Tensor]
"""(part, first block, number of blocks) -> its bytes, ``[blocks, *part.shape]``."""
Write = Callable[[Part, int, torch.Tensor], None]
"""(part, first block, bytes ``[blocks, *part.shape]``): takes them before it returns."""


class Staging:
    """Moves entries between tensors and an arena, one bulk after the other. Thread-safe."""

    def __init__(self, layout: Layout, arena: Arena, *, threads: int = 2) -> None:
        self._layout = layout
        self._lock = threading.Lock()
        parts = list(layout.parts())
        pinned = any(part.device.type == "cuda" for part in parts)
        self._devices = sorted(
            {part.device for part in parts if part.device.type == "cuda"}, key=str
        )
        block = sum(group.bytes for group in layout.geometry.groups)
        self._blocks = max(1, min(_MAX_BLOCKS, _BYTES // max(block, 1)))
        self._places = {
            part: torch.empty((self._blocks, *part.shape), dtype=part.dtype, pin_memory=pinned)
            for part in parts
        }
        self._engine = HostEngine(
            layout.geometry,
            arena,
            rank=0,
            num_blocks=self._blocks,
            layers=[
                self._map(group, index, part)
                for group, members in enumerate(layout.groups)
                for index, part in enumerate(members)
            ],
            threads=threads,
            owners=self._places,
        )

    def _map(self, group: int, layer: int, part: Part) -> LayerMap:
        place = self._places[part]
        stride = place.nbytes // self._blocks
        return LayerMap(
            group=group,
            layer=layer,
            address=place.data_ptr(),
            nbytes=place.nbytes,
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
                for part in self._layout.class_parts(first.class_index):
                    source = read(part, first.block_index, len(bulk))
                    self._places[part][: len(bulk)].copy_(source, non_blocking=source.is_cuda)
                self._synchronize()
                items = [(e.class_index, e.slots, self._ids(e, i)) for i, e in enumerate(bulk)]
                found = finish(self._engine, self._engine.store(items))
                for entry, value in zip(bulk, found, strict=True):
                    checksums[entry.class_index, entry.block_index] = [value]
        return [checksums[entry.class_index, entry.block_index] for entry in entries]

    def load(self, entries: Sequence[LeaseEntry], write: Write, *, verify: bool) -> None:
        """Copies entries from their slots.

        Raises:
            TransferError: a copy failed or, with verify, bytes are not those that were stored.
                What has been written until then is to be dropped.
        """
        with self._lock:
            for bulk in bulks(entries, self._blocks):
                items = [
                    (e.class_index, e.slots, self._ids(e, i), e.checksums[0] if verify else None)
                    for i, e in enumerate(bulk)
                ]
                finish(self._engine, self._engine.load(items))
                for part in self._layout.class_parts(bulk[0].class_index):
                    write(part, bulk[0].block_index, self._places[part][: len(bulk)])
                self._synchronize()

    def close(self) -> None:
        """Ends the copy threads. Nothing the second time."""
        with self._lock:
            self._engine.close()

    def _ids(self, entry: LeaseEntry, place: int) -> list[int]:
        return [place] * len(self._layout.geometry.classes[entry.class_index].groups)

    def _synchronize(self) -> None:
        for device in self._devices:
            torch.cuda.current_stream(device).synchronize()
