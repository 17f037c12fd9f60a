"""What the other cases do not show: pinning, decode steps beside stores, ten stores in flight."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

from hybrid_pages import Arena, Geometry, Group, Layer, Pinning, Segment
from hybrid_pages.adapter.memory import free_memory
from paging.cases import GIB, Case
from paging.machine import Machine
from paging.methods import KERNEL_ALONE, Fault, Missing, Ours, run
from paging.place import Place

SHARES = (1 / 16, 1 / 8, 1 / 4)
STORES = 10


@dataclass(frozen=True)
class Pinned:
    """An arena pinned in the background, from nothing; or why not."""

    gib: float
    seconds: float | None
    first_slot_seconds: float | None
    why: str | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def pin(nbytes: int) -> Pinned:
    """Takes and registers so much memory, as far as the machine has it."""
    gib, free = nbytes / GIB, free_memory()
    # Others need memory too.
    if nbytes > 0.7 * free.nbytes:
        return Pinned(gib, None, None, f"too little memory: {free}")
    slot = min(1 << 20, nbytes // 16)
    layers = [Layer("0", [Segment("kv", "uint8", (slot,))])]
    geometry = Geometry(block_tokens=16, groups=[Group("attention", layers)], identity={})
    arena = Arena.create(geometry, slot_bytes=slot, slots=nbytes // slot)
    begin = time.perf_counter()
    pinning = Pinning(arena, rank=0, device=0)
    first = None
    while not pinning.wait(0.01):
        if first is None and pinning.pinned_slots:
            first = time.perf_counter() - begin
    seconds = time.perf_counter() - begin
    why = pinning.error
    pinning.close()
    return Pinned(gib, None if why else seconds, first or seconds, why)


@dataclass(frozen=True)
class Decode:
    """Decode steps beside stores: by kernels that reach over the bus from a share of the
    multiprocessors, through staging buffers, or by copies alone."""

    way: str
    share: float | None
    p50_ms: float
    p99_ms: float
    p99_alone_ms: float

    @property
    def slowdown(self) -> float:
        return self.p99_ms / self.p99_alone_ms - 1

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def decode(
    machine: Machine, small: tuple[Place, Case], large: tuple[Place, Case], steps: int
) -> list[Decode]:
    """Steps alone, then beside endless stores of small pieces and of large ones."""
    machine.decode(steps, None)
    alone = _p99(machine.decode(steps, None))
    found = []
    for way, share, (place, case), below, staging in [
        *(("kernel", share, small, KERNEL_ALONE, 0) for share in SHARES),
        ("staged", None, small, KERNEL_ALONE, None),
        ("copy", None, large, 0, None),
    ]:
        kind = type("Way", (Ours,), {"below": below, "staging": staging, "share": share})
        try:
            seconds = machine.decode(steps, kind(place, case))
        except Missing:  # without kernels there is no such way
            continue
        median = statistics.median(seconds) * 1e3
        found.append(Decode(way, share, median, _p99(seconds) * 1e3, alone * 1e3))
    return found


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(0.99 * (len(seconds) - 1))]


def ten_stores(place: Place, case: Case, rounds: int) -> dict[str, float]:
    """Seconds of one store, and of ten of a tenth each that are all in flight."""
    whole = Ours(place, case)
    parts = [whole.to_store[i::STORES] for i in range(STORES)]

    def at_once() -> None:
        tickets = [whole.engine.store(part, whole.stream) for part in parts if part]
        for ticket in tickets:
            whole.engine.wait(ticket)
        if not all(done.ok for done in whole.engine.poll()):
            raise Fault("one of ten stores failed")

    def alone() -> None:
        run(whole.engine, whole.engine.store(whole.to_store, whole.stream))

    seconds = {}
    for name, act in (("one", alone), ("ten", at_once)):
        samples = []
        for _ in range(rounds + 1):
            begin = time.perf_counter()
            act()
            samples.append(time.perf_counter() - begin)
        seconds[name] = statistics.median(samples[1:])
    return seconds
