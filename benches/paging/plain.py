"""An arena and a copy engine over plain addresses of the device: no framework is needed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from hybrid_pages import Arena, CudaEngine, Geometry, Group, Layer, LayerMap, Pinning, Segment

COPIES, KERNELS = 0, 1 << 40
"""As ``kernel_below``: every transfer moves by copies, or by a kernel."""
WAYS = {"copies": COPIES, "kernels": KERNELS}


NO_KERNELS = "no kernels, or slots that are not pinned"


def geometry(page: int) -> Geometry:
    """One layer with pages of so many bytes."""
    layers = [Layer("0", [Segment("kv", "uint8", (page,))])]
    return Geometry(block_tokens=16, groups=[Group("attention", layers)], identity={})


class Plain:
    """Blocks of one page each at an address, and a slot for each of them.

    Args:
        below: COPIES or KERNELS.
    """

    def __init__(self, address: int, page: int, blocks: int, below: int) -> None:
        self.page, self.blocks = page, blocks
        shape = geometry(page)
        self.arena = Arena.create(shape, slot_bytes=page, slots=blocks)
        layer = LayerMap(
            group=0,
            layer=0,
            address=address,
            nbytes=page * blocks,
            block_stride=page,
            runs=[(0, page)],
        )
        self.engine = CudaEngine(
            shape, self.arena, rank=0, num_blocks=blocks, layers=[layer], kernel_below=below
        )

    @property
    def has_kernels(self) -> bool:
        """Whether the engine can move anything by a kernel."""
        return self.engine.kernels and self.engine.pinned

    def entries(self, part: int = 0, of: int = 1) -> list[tuple[int, list[int], list[int]]]:
        """A part of the blocks, each with its slot."""
        return [(0, [block], [block]) for block in range(part, self.blocks, of)]

    def end(self, ticket: int) -> list[int]:
        """Waits for a transfer, and returns the checksums of its entries."""
        self.engine.wait(ticket)
        (done,) = self.engine.poll()
        if not done.ok:
            raise RuntimeError(f"a transfer failed: {done.error}")
        return list(done.checksums)

    def store(self, stream: int) -> list[int]:
        """Stores every block, and waits for it."""
        return self.end(self.engine.store(self.entries(), stream))

    def load(self, stream: int, checksums: list[int]) -> None:
        """Loads every block, and waits for it."""
        items = zip(self.entries(), checksums, strict=True)
        self.end(self.engine.load([(*entry, total) for entry, total in items], stream))

    def stored(self) -> bytes:
        """What the slots hold."""
        return b"".join(self.arena.read(slot) for slot in range(self.blocks))


def noise(seed: int, nbytes: int) -> bytes:
    """Bytes that differ from one seed to the next."""
    return random.Random(seed).randbytes(nbytes)


def differing(one: bytes, other: bytes) -> int:
    """How many bytes differ."""
    if one == other:
        return 0
    return sum(a != b for a, b in zip(one, other, strict=True))


def beside_stores(place: Plain, stream: int, act: Callable[[], Any], seconds: float) -> list[float]:
    """Milliseconds of each call while four stores are in flight, again and again for so long.

    One thread does both: a second one would wait for Python's lock.
    """
    found: list[float] = []
    end = time.perf_counter() + seconds
    while not found or time.perf_counter() < end:
        tickets = [place.engine.store(place.entries(part, 4), stream) for part in range(4)]
        left = len(tickets)
        while left:
            begin = time.perf_counter()
            act()
            milliseconds = (time.perf_counter() - begin) * 1e3
            ended = place.engine.poll()
            for done in ended:
                if not done.ok:
                    raise RuntimeError(f"a store failed: {done.error}")
            left -= len(ended)
            found.append(milliseconds)
    return found


def pinning(nbytes: int, slot: int, piece: int | None) -> Pinning:
    """Begins to pin a new arena of so many bytes, in pieces of so many or as is usual."""
    arena = Arena.create(geometry(slot), slot_bytes=slot, slots=nbytes // slot)
    if piece is None:
        return Pinning(arena, rank=0, device=0)
    return Pinning(arena, rank=0, device=0, piece_bytes=piece)
