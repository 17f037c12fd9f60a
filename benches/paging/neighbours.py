"""What others wait for while slots are pinned: threads, other processes, captures."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from ctypes import byref, c_void_p
from pathlib import Path
from typing import Any

from hybrid_pages.adapter.memory import free_memory
from paging.cases import GIB, MIB
from paging.driver import Driver, DriverError, latencies, share
from paging.plain import pinning
from paging.questions import Found

PIECES = (None, 64 * MIB, 2 * GIB)
"""Bytes of a piece: what is usual, and two others."""
_GLOBAL_CAPTURE = 0


def _sizes(tiny: bool) -> tuple[int, int]:
    """Bytes to pin, and of a slot."""
    if tiny:
        return 16 * MIB, 64 << 10
    return min(8 * GIB, free_memory().nbytes // 4 // GIB * GIB or 256 * MIB), MIB


def launches(driver: Driver, stream: int, running: threading.Event) -> dict[str, float]:
    """Launches until the event is cleared: the slowest, and a usual one, in milliseconds."""
    found: list[float] = []

    def launch() -> None:
        driver.spin(stream, 0)
        driver.wait(stream)

    while running.is_set():
        found += latencies(launch, 0.0, 10)
    return _spread(found)


def _spread(found: list[float]) -> dict[str, float]:
    return {"p50": share(found, 0.5), "p99": share(found, 0.99), "max": max(found)}


def probe() -> None:
    """The other process: launches until its input ends, and prints how long they took."""
    driver = Driver()
    stream = driver.stream()
    driver.spin(stream, 0)
    driver.wait(stream)
    running = threading.Event()
    running.set()

    def watch() -> None:
        sys.stdin.read()
        running.clear()

    threading.Thread(target=watch, daemon=True).start()
    print("ready", flush=True)
    print(json.dumps(launches(driver, stream, running)), flush=True)


class OtherProcess:
    """A process of its own that launches kernels all the time."""

    def __init__(self) -> None:
        script = Path(__file__).parents[1] / "gpu_first_hour.py"
        self.process = subprocess.Popen(
            [sys.executable, str(script), "--probe"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != "ready":
            self.process.kill()
            raise RuntimeError("another process could not launch kernels")

    def end(self) -> dict[str, float]:
        """Ends it, and returns the milliseconds of its launches."""
        said, _ = self.process.communicate(timeout=30)
        found: dict[str, float] = json.loads(said)
        return found


def pin(driver: Driver, tiny: bool) -> Found:
    """Launches and `cuMemGetInfo` of this thread, launches of another process, beside pinning."""
    nbytes, slot = _sizes(tiny)
    gib = nbytes / GIB
    stream = driver.stream()

    def launch() -> None:
        driver.spin(stream, 0)
        driver.wait(stream)

    alone = {
        "launch": _spread(latencies(launch, 0.2)),
        "cuMemGetInfo": _spread(latencies(driver.free_bytes, 0.2)),
    }
    values: dict[str, float] = {}
    facts: dict[str, Any] = {"GiB": gib, "alone, ms": alone}
    for piece in PIECES:
        bytes_of_piece = None if piece is None else piece // 64 if tiny else piece
        other = OtherProcess() if piece is None else None
        begin = time.perf_counter()
        pinned = pinning(nbytes, slot, bytes_of_piece)
        launched: list[float] = []
        asked: list[float] = []
        while not launched or not pinned.wait(0.0):
            launched += latencies(launch, 0.0, 1)
            asked += latencies(driver.free_bytes, 0.0, 1)
        seconds = time.perf_counter() - begin
        elsewhere = other.end() if other else None
        error = pinned.error
        begin = time.perf_counter()
        pinned.close()
        closing = time.perf_counter() - begin
        name = "usual" if piece is None else f"{piece >> 20} MiB"
        facts[f"pieces: {name}"] = {
            "seconds": seconds,
            "seconds to unpin": closing,
            "launch, ms": _spread(launched),
            "cuMemGetInfo, ms": _spread(asked),
            "launch of another process, ms": elsewhere,
            "error": error,
        }
        if piece is None:
            if error:
                raise RuntimeError(error)
            values = {
                "pin": seconds / gib,
                "unpin": closing / gib,
                "launch": max(launched),
                "free": max(asked),
                "elsewhere": elsewhere["max"] if elsewhere else float("nan"),
            }
    return values, facts


def capture(driver: Driver, tiny: bool) -> Found:
    """Captures in the mode that forbids unsafe calls of any thread, while slots are pinned."""
    nbytes, slot = _sizes(tiny)
    stream = driver.stream()
    pinned = pinning(nbytes, slot, MIB if tiny else None)
    count, broken, errors = 0, 0, set()
    while count == 0 or not pinned.wait(0.0):
        count += 1
        graph = c_void_p()
        driver("cuStreamBeginCapture_v2", stream, _GLOBAL_CAPTURE)
        failed = None
        try:
            for _ in range(20):
                driver.spin(stream, 0)
        except DriverError as error:
            failed = str(error)
        try:
            driver("cuStreamEndCapture", stream, byref(graph))
            driver("cuGraphDestroy", graph)
        except DriverError as error:
            failed = failed or str(error)
        if failed:
            broken += 1
            errors.add(failed)
    why = pinned.error
    pinned.close()
    if why:
        raise RuntimeError(f"pinning beside captures failed: {why}")
    return {"captures": float(broken)}, {"captures": count, "errors": sorted(errors)}
