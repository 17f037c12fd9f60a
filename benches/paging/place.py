"""Pieces of one size on the device and where they go in host memory."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from hybrid_pages import Arena, Geometry, Group, Layer, Segment
from hybrid_pages.cuda import layer_map
from paging.cases import LAYERS
from paging.machine import Machine


@dataclass(frozen=True)
class Entries:
    """Entries of one direction: one block each, its pieces in `LAYERS` layers."""

    blocks: list[int]
    slots: list[list[int]]

    def rows(self, blocks: int) -> list[int]:
        """Where each piece lies, in pieces from the start of the pool, in payload order."""
        return [layer * blocks + block for block in self.blocks for layer in range(LAYERS)]


class Buffers:
    """Memory that all sizes share: the pool with the caches, and pinned memory for the rivals."""

    def __init__(self, machine: Machine, most_bytes: int) -> None:
        self.pool = machine.empty(2 * most_bytes).random_()
        self.pinned = {way: machine.pinned(most_bytes).fill_(0x5A) for way in ("store", "load")}
        self.staging = {way: machine.empty(most_bytes) for way in ("store", "load")}


class Place:
    """A pool ``[LAYERS, blocks, size]``, layer after layer as vLLM lays it, and an arena.

    Blocks of an entry and slots of an arena are drawn at random, as in a cache that has been in use
    for a while.
    """

    def __init__(self, machine: Machine, buffers: Buffers, size: int, most: int) -> None:
        self.machine, self.buffers, self.size = machine, buffers, size
        self.blocks = 2 * (most // LAYERS)
        flat = buffers.pool[: LAYERS * self.blocks * size]
        self.pool = flat.view(LAYERS, self.blocks, size)
        layers = [Layer(str(i), [Segment("kv", "uint8", (size,))]) for i in range(LAYERS)]
        self.geometry = Geometry(
            block_tokens=16, groups=[Group("attention", layers)], identity={"model": "bench"}
        )
        slot_bytes = self.geometry.suggest_slot_bytes()
        self.slots = self.geometry.slots_per_entry(0, slot_bytes)
        self.arena = Arena.create(
            self.geometry, slot_bytes=slot_bytes, slots=self.slots * self.blocks
        )
        self.maps = [layer_map(group=0, layer=i, array=self.pool[i]) for i in range(LAYERS)]
        rng = random.Random(size)
        self._blocks = rng.sample(range(self.blocks), self.blocks)
        self._slots = rng.sample(range(self.arena.slots), self.arena.slots)

    def entries(self, count: int) -> dict[str, Entries]:
        """Of `count` pieces a direction; the directions have nothing in common."""
        number, found = count // LAYERS, {}
        for index, way in enumerate(("store", "load")):
            places = range(index * number, (index + 1) * number)
            found[way] = Entries(
                [self._blocks[i] for i in places],
                [self._slots[i * self.slots : (i + 1) * self.slots] for i in places],
            )
        return found

    def items(self) -> torch.Tensor:
        """The pool as ``[pieces, words]``: what torch and CuPy index fastest."""
        return self.pool.view(torch.int64).view(LAYERS * self.blocks, -1)
