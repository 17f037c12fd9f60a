"""What a step waits for beside stores: a copy of some tokens, a kernel on all of the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paging.cases import KIB, MIB
from paging.driver import Driver, latencies, share
from paging.plain import KERNELS, NO_KERNELS, WAYS, Plain, beside_stores
from paging.questions import Found

_COPY = 4096
_SPIN_NS = 20_000


def _measure(driver: Driver, tiny: bool, act: Callable[[], object], question: str) -> Found:
    """The slowest of a hundred calls beside stores by each way, less a usual one alone."""
    page, blocks = (4 * KIB, 64) if tiny else (MIB, 256)
    memory = driver.allocate(page * blocks)
    seconds = 0.1 if tiny else 1.5
    stream = driver.stream()
    usual = share(latencies(act, seconds / 3), 0.5)
    values: dict[str, float] = {}
    facts: dict[str, Any] = {"alone, ms": usual, "MiB of a store": page * blocks / 4 / MIB}
    for way, below in WAYS.items():
        place = Plain(memory, page, blocks, below)
        if below == KERNELS and not place.has_kernels:
            facts[f"beside {way}"] = NO_KERNELS
            place.engine.close()
            continue
        beside_stores(place, stream, act, 0.0)
        found = beside_stores(place, stream, act, seconds)
        place.engine.close()
        values[f"{question} beside {way}"] = share(found, 0.99) - usual
        facts[f"beside {way}, ms"] = {
            "calls": len(found),
            "p50": share(found, 0.5),
            "p99": share(found, 0.99),
            "max": max(found),
        }
    driver("cuMemFree_v2", memory)
    return values, facts


def copy(driver: Driver, tiny: bool) -> Found:
    """A copy of 4 KiB to the host, as that of sampled tokens, and the wait for it."""
    stream, source, target = driver.stream(), driver.allocate(_COPY), driver.pinned(_COPY)

    def act() -> None:
        driver("cuMemcpyDtoHAsync_v2", target, source, _COPY, stream)
        driver.wait(stream)

    return _measure(driver, tiny, act, "copy")


def persistent(driver: Driver, tiny: bool) -> Found:
    """A short kernel of as many blocks as multiprocessors, each with all of one's shared memory."""
    stream = driver.stream()

    def act() -> None:
        driver.spin(stream, _SPIN_NS, driver.multiprocessors, driver.shared_bytes)
        driver.wait(stream)

    return _measure(driver, tiny, act, "persistent")
