"""Host copies of strided pieces: HostEngine beside torch, with as many threads, in one run.

The pieces are those of one entry in a pool of layers and blocks. Ours go to slots and back, hashed
on both ways; torch's go to a contiguous tensor and back. README.md says how to read the table.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from hybrid_pages import Arena, Geometry, Group, HostEngine, Layer, LayerMap, Segment

_BLOCKS = 8
_SHAPES = {
    "page, 49 MiB": (16, 784 * 4096),
    "page, 4 MiB": (64, 64 << 10),
    "page, 512 KiB": (32, 16 << 10),
}


class Ours:
    """One entry through the engine."""

    def __init__(self, pool: torch.Tensor, block: int, threads: int) -> None:
        layers, blocks, size = pool.shape
        parts = [Layer(str(i), [Segment("kv", "uint8", (size,))]) for i in range(layers)]
        geometry = Geometry(block_tokens=16, groups=[Group("attention", parts)], identity={})
        slot_bytes = geometry.suggest_slot_bytes()
        needed = geometry.slots_per_entry(0, slot_bytes)
        self.arena = Arena.create(geometry, slot_bytes=slot_bytes, slots=needed)
        maps = [
            LayerMap(
                group=0,
                layer=layer,
                address=pool[layer].data_ptr(),
                nbytes=blocks * size,
                block_stride=size,
                runs=[(0, size)],
            )
            for layer in range(layers)
        ]
        self._engine = HostEngine(
            geometry,
            self.arena,
            rank=0,
            num_blocks=blocks,
            layers=maps,
            threads=threads,
            owners=pool,
        )
        self._entry = (0, list(range(needed)), [block])
        self._sum = self._run(self._engine.store([self._entry]))[0]

    def store(self) -> None:
        self._run(self._engine.store([self._entry]))

    def load(self) -> None:
        self._run(self._engine.load([(*self._entry, self._sum)]))

    def _run(self, ticket: int) -> list[int]:
        self._engine.wait(ticket)
        (done,) = self._engine.poll()
        assert done.ok, done.error
        return done.checksums

    def contents(self) -> bytes:
        return b"".join(self.arena.read(slot) for slot in range(self.arena.slots))


def measure(name: str, layers: int, size: int, threads: int, rounds: int) -> None:
    pool = torch.randint(0, 256, (layers, _BLOCKS, size), dtype=torch.uint8)
    host = torch.zeros(layers, size, dtype=torch.uint8)
    block = torch.tensor([3])
    ours = Ours(pool, 3, threads)

    def each(out: bool) -> Callable[[], object]:
        pairs = [(host[i], pool[i, 3]) if out else (pool[i, 3], host[i]) for i in range(layers)]
        return lambda: [to.copy_(of) for to, of in pairs]

    def select() -> None:
        for layer in range(layers):
            torch.index_select(pool[layer], 0, block, out=host[layer : layer + 1])

    def scatter() -> None:
        for layer in range(layers):
            pool[layer].index_copy_(0, block, host[layer : layer + 1])

    ways: dict[str, dict[str, Callable[[], object]]] = {
        "store": {
            "hybrid-pages": ours.store,
            "torch copy_": each(True),
            "torch copy_ strided": lambda: host.copy_(pool[:, 3]),
            "torch index_select": select,
        },
        "load": {
            "hybrid-pages": ours.load,
            "torch copy_": each(False),
            "torch copy_ strided": lambda: pool[:, 3].copy_(host),
            "torch index_copy_": scatter,
        },
    }
    for direction, variants in ways.items():
        for call in variants.values():
            call()
        payload = pool[:, 3].contiguous().numpy().tobytes()
        assert host.numpy().tobytes() == payload == ours.contents()[: len(payload)]
        names = list(variants)
        times: dict[str, list[float]] = {name: [] for name in names}
        for number in range(rounds):
            turn = number % len(names)
            for variant in names[turn:] + names[:turn]:
                start = time.perf_counter()
                variants[variant]()
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
    for name, (layers, size) in _SHAPES.items():
        measure(name, layers, size, given.threads, given.rounds)


if __name__ == "__main__":
    main()
