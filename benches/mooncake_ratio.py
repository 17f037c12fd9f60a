"""Entries through the tier over a real Mooncake Store, beside its client's own plain loop.

Both move the same sizes between the same machines, in turns, over loopback TCP. Run it in a network
namespace of its own: `make bench-mooncake`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests" / "mooncake"), str(HERE.parent / "tests" / "python")]

from real_mooncake import MASTER, Store, client, why_not  # noqa: E402

from cache_support import keys, layer  # noqa: E402
from hybrid_pages._core import Arena, Cache, Geometry, Group, Mooncake, checksum  # noqa: E402
from hybrid_pages.mooncake import command  # noqa: E402
from mooncake_support import wait  # noqa: E402

LARGEST = 128 << 20
"""Bytes of a prompt at most."""


def poll(reached: Callable[[], object]) -> None:
    """Waits, and looks as often as a fast engine steps: its own work takes a core from the tier."""
    limit = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < limit
        time.sleep(1e-3)


class Tier:
    def __init__(self, nbytes: int, blocks: int) -> None:
        self.nbytes, self.blocks = nbytes, blocks
        geometry = Geometry(
            block_tokens=16,
            groups=[Group("attention", [layer("a", nbytes)])],
            ranks=1,
            identity={"model": "bench"},
        )
        shape = {"slot_bytes": nbytes, "slots": 2 * blocks}
        self.arena = Arena.create(geometry, **shape)
        # As an engine does at its start, and the loop before each run.
        for slot in range(2 * blocks):
            self.arena.write(slot, bytes(nbytes))
        self.tier = Mooncake(
            geometry,
            slot_bytes=nbytes,
            master=MASTER,
            command=command(),
            deadline_ms=30000,
            weighs=False,
        )
        self.cache = Cache(geometry, **shape, remote=self.tier)
        self.namespace = self.cache.namespace(b"bench")
        self.tier.connect(self.arena, bytes(32))
        wait("the client is ready", lambda: not self.tier.stats()["out"])

    def prompt(self, run: int) -> list[bytes]:
        return [key[:16] + run.to_bytes(16, "little") for key in keys("x" * self.blocks)]

    def put(self, run: int) -> float:
        prompt = self.prompt(run)
        pages = [(0, block) for block in range(self.blocks)]
        with self.cache.reserve(self.namespace, prompt, pages) as lease:
            sums = []
            for entry in lease.entries:
                data = os.urandom(64) * (self.nbytes // 64)
                self.arena.write(entry.slots[0], data)
                sums.append([checksum(data)])
            begun = time.perf_counter()
            lease.commit(sums)
        poll(lambda: self.tier.settle(0))
        took = time.perf_counter() - begun
        self.cache.poll()
        return took

    def get(self, run: int) -> float:
        prompt = self.prompt(run)
        begun = time.perf_counter()
        poll(lambda: not self.cache.lookup(self.namespace, prompt).asking)
        poll(lambda: not self.cache.promote(self.namespace, prompt))
        took = time.perf_counter() - begun
        assert self.cache.lookup(self.namespace, prompt).host == self.blocks
        return took


def loop(what: str, nbytes: int, blocks: int) -> None:
    """The client's own loop, in a process of its own: says how long each run took."""
    store = client()
    memory = mmap.mmap(-1, nbytes * blocks)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert store.register_buffer(address, nbytes * blocks) == 0
    for line in sys.stdin:
        run = int(line)
        ctypes.memset(address, run % 256, nbytes * blocks)
        call = store.put_from if what == "put" else store.get_into
        begun = time.perf_counter()
        codes = [call(f"own-{run}-{i}", address + i * nbytes, nbytes) for i in range(blocks)]
        print(time.perf_counter() - begun, flush=True)
        assert set(codes) == {0 if what == "put" else nbytes}, codes


class Loop:
    def __init__(self, what: str, nbytes: int, blocks: int) -> None:
        words = [sys.executable, __file__, "--loop", what, "--kib", str(nbytes >> 10)]
        pipe = subprocess.PIPE
        environment = {**os.environ, "GLOG_minloglevel": "2"}
        self.process = subprocess.Popen(
            [*words, "--blocks", str(blocks)], stdin=pipe, stdout=pipe, text=True, env=environment
        )

    def __call__(self, run: int) -> float:
        self.process.stdin.write(f"{run}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--kib", type=int, nargs="+", default=[8192, 256], help="sizes of an entry (8192 256)")
    add("--blocks", type=int, default=48, help="entries in a prompt, of 128 MiB at most (48)")
    add("--runs", type=int, default=7, help="measured, after one to warm up (7)")
    add("--loop", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.loop:
        return loop(given.loop, given.kib[0] << 10, given.blocks)
    if reason := why_not():
        sys.exit(reason)
    for kib in given.kib:
        measure(kib << 10, max(2, min(given.blocks, LARGEST // (kib << 10))), given.runs)


def measure(nbytes: int, blocks: int, runs: int) -> None:
    """Runs of one size, and the medians."""
    took: dict[str, list[float]] = {"put": [], "own put": [], "get": [], "own get": []}
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store:
        store.add(5 * (runs + 1) * blocks * nbytes // 2)
        writer, reader = Tier(nbytes, blocks), Tier(nbytes, blocks)
        own_put, own_get = (Loop(what, nbytes, blocks) for what in ("put", "get"))
        for run in range(runs + 1):
            times = (writer.put(run), own_put(run), reader.get(run), own_get(run))
            if run:  # The first warms up.
                for name, seconds in zip(took, times, strict=True):
                    took[name].append(seconds)
        for tier in (writer, reader):
            stats = tier.tier.stats()
            failures = {name: n for name, n in stats.items() if name.startswith("failed_") and n}
            assert not failures, failures
            tier.tier.close()
    gib = blocks * nbytes / 2**30
    rates = {name: gib / statistics.median(times) for name, times in took.items()}
    print(f"{blocks} entries of {nbytes >> 10} KiB, GiB/s, median of {runs} runs")
    for what in ("put", "get"):
        ratio = statistics.median(
            own / ours for own, ours in zip(took[f"own {what}"], took[what], strict=True)
        )
        own = rates[f"own {what}"]
        print(f"{what}: tier {rates[what]:.2f}, own loop {own:.2f}, ratio {ratio:.2f}")
    print(
        json.dumps({name: [round(seconds, 4) for seconds in times] for name, times in took.items()})
    )


if __name__ == "__main__":
    main()
