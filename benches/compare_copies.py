"""Host copies of strided pieces: HostEngine beside torch, with as many threads, in one run.

The pieces are those of one entry in a pool of layers and blocks. Ours go to slots and back, hashed
on both ways; torch's go to a contiguous tensor and back. README.md says how to read the table.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from hybrid_pages import Arena, Geometry, Group, HostEngine, Layer, LayerMap, Segment

_TOTAL = 128 << 20
"""At least so many bytes on each side, so that no round finds its bytes in the CPU's caches."""


class Shape(NamedTuple):
    """Pieces of one entry: one in each layer, in blocks that may be larger."""

    layers: int
    size: int
    stride: int

    @property
    def blocks(self) -> int:
        return max(3, -(-_TOTAL // (self.layers * self.size)))


_SHAPES = {
    "page, 49 MiB": Shape(16, 784 * 4096, 784 * 4096),
    "checkpoint, 147 MiB": Shape(48, 3_145_728 + 61_440, 784 * 4096),
    "page, 4 MiB": Shape(64, 64 << 10, 64 << 10),
    "page, 512 KiB": Shape(32, 16 << 10, 16 << 10),
}


class Ours:
    """An entry for each block, through the engine."""

    def __init__(self, pool: torch.Tensor, shape: Shape, threads: int) -> None:
        parts = [
            Layer(str(i), [Segment("kv", "uint8", (shape.size,))]) for i in range(shape.layers)
        ]
        geometry = Geometry(block_tokens=16, groups=[Group("attention", parts)], identity={})
        slot_bytes = geometry.suggest_slot_bytes()
        each = geometry.slots_per_entry(0, slot_bytes)
        self._arena = Arena.create(geometry, slot_bytes=slot_bytes, slots=each * shape.blocks)
        maps = [
            LayerMap(
                group=0,
                layer=layer,
                address=pool[layer].data_ptr(),
                nbytes=shape.blocks * shape.stride,
                block_stride=shape.stride,
                runs=[(0, shape.size)],
            )
            for layer in range(shape.layers)
        ]
        self._engine = HostEngine(
            geometry,
            self._arena,
            rank=0,
            num_blocks=shape.blocks,
            layers=maps,
            threads=threads,
            owners=pool,
        )
        self._entries = [
            (0, list(range(block * each, (block + 1) * each)), [block])
            for block in range(shape.blocks)
        ]
        self._sums = [self.store(block)[0] for block in range(shape.blocks)]

    def store(self, block: int) -> list[int]:
        return self._run(self._engine.store([self._entries[block]]))

    def load(self, block: int) -> None:
        self._run(self._engine.load([(*self._entries[block], self._sums[block])]))

    def _run(self, ticket: int) -> list[int]:
        self._engine.wait(ticket)
        (done,) = self._engine.poll()
        assert done.ok, done.error
        return done.checksums

    def contents(self, block: int) -> bytes:
        return b"".join(self._arena.read(slot) for slot in self._entries[block][1])


def measure(name: str, shape: Shape, threads: int, rounds: int) -> None:
    layers, size, stride = shape
    pool = torch.randint(0, 256, (layers, shape.blocks, stride), dtype=torch.uint8)[:, :, :size]
    host = torch.zeros(shape.blocks, layers, size, dtype=torch.uint8)
    index = torch.arange(shape.blocks)
    ours = Ours(pool, shape, threads)

    def copy(block: int) -> None:
        for layer in range(layers):
            host[block, layer].copy_(pool[layer, block])

    def copy_back(block: int) -> None:
        for layer in range(layers):
            pool[layer, block].copy_(host[block, layer])

    def select(block: int) -> None:
        which, to = index[block : block + 1], host[block]
        for layer in range(layers):
            torch.index_select(pool[layer], 0, which, out=to[layer : layer + 1])

    def scatter(block: int) -> None:
        which, of = index[block : block + 1], host[block]
        for layer in range(layers):
            pool[layer].index_copy_(0, which, of[layer : layer + 1])

    ways: dict[str, dict[str, Callable[[int], object]]] = {
        "store": {
            "hybrid-pages": ours.store,
            "torch copy_": copy,
            "torch copy_ strided": lambda block: host[block].copy_(pool[:, block]),
            "torch index_select": select,
        },
        "load": {
            "hybrid-pages": ours.load,
            "torch copy_": copy_back,
            "torch copy_ strided": lambda block: pool[:, block].copy_(host[block]),
            "torch index_copy_": scatter,
        },
    }
    for direction, variants in ways.items():
        for block in range(shape.blocks):
            for call in variants.values():
                call(block)
        for block in (0, shape.blocks - 1):
            payload = pool[:, block].contiguous().numpy().tobytes()
            assert host[block].numpy().tobytes() == payload
            assert ours.contents(block)[: len(payload)] == payload
        names = list(variants)
        times: dict[str, list[float]] = {name: [] for name in names}
        for number in range(rounds):
            turn = number % len(names)
            for place, variant in enumerate(names[turn:] + names[:turn]):
                # Another block each time: bytes that one way has just read would be in the caches.
                block = (number * len(names) + place) % shape.blocks
                start = time.perf_counter()
                variants[variant](block)
                times[variant].append(time.perf_counter() - start)
        base = times["hybrid-pages"]
        for variant in names:
            ratios = [other / mine for mine, other in zip(base, times[variant], strict=True)]
            speed = layers * size / statistics.median(times[variant]) / 2**30
            print(
                f"| {name} | {direction} | {variant} | {speed:.2f} | "
                f"{statistics.median(ratios):.2f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=41)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print("| entry | direction | way | GiB/s | ours is faster by |\n|---|---|---|---|---|")
    for name, shape in _SHAPES.items():
        measure(name, shape, given.threads, given.rounds)


if __name__ == "__main__":
    main()
