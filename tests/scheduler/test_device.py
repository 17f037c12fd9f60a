"""The connector's worker half with caches on a device: the real engine over the mock driver."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hybrid_pages import CudaError
from hybrid_pages.vllm.config.support import UnsupportedError
from hybrid_pages.vllm.worker import copy_engine, pinning
from hybrid_pages.vllm.worker.half import WorkerHalf
from simulation.device import pretended
from simulation.engine import Engine, StartEngine
from simulation.runner import Runner
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from simulation.workload import Mix, Workload

PROMPT = Workload(random.Random(5)).fresh(6 * N + 1)
LAUNCH_FAILED, OUT_OF_MEMORY = 719, 2
STICKY = 1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with pretended(monkeypatch) as driver:
        yield driver


def until(what: str, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, f"waited a minute until {what}"
        time.sleep(0.001)


def failures(engine: Engine) -> dict[str, float]:
    counters = engine.connector.scheduler.stats()["counters"]
    return {key: count for key, count in counters.items() if key.startswith("failures")}


def skipped(engine: Engine) -> float:
    return engine.connector.scheduler.stats()["counters"].get("skipped_entries:not_ready", 0)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_was_stored_from_a_device_is_restored_to_it(
    driver: Any, ranks: int, asynchronous: bool, start: StartEngine
) -> None:
    engine = start(ranks=ranks, async_scheduling=asynchronous, extra={"verify_on_load": True})
    driver.delay(2000)
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    assert engine.generate(PROMPT).restored_tokens == 6 * N
    engine.check_idle()
    worker = engine.runners[0].connector.worker
    assert isinstance(worker.engine, copy_engine.StreamEngine)
    assert failures(engine) == {}


def test_the_end_of_a_prompt_is_copied_on_the_device(driver: Any, start: StartEngine) -> None:
    engine = start(extra={"verify_on_load": True})
    driver.delay(2000)
    engine.generate([7], max_tokens=1)  # with which the ranks report
    engine.generate(PROMPT, max_tokens=9)
    engine.forget_local()
    assert engine.generate([*PROMPT, 3, 4], max_tokens=1).restored_tokens == len(PROMPT)
    engine.check_idle()
    assert failures(engine) == {}


@pytest.mark.parametrize("seed", range(6))
def test_any_workload_gives_the_right_text(driver: Any, seed: int, start: StartEngine) -> None:
    rng = random.Random(f"device {seed}")
    engine = start(
        rng.choice(list(SHAPES.values())),
        async_scheduling=rng.random() < 0.5,
        runner_version=rng.choice((1, 2)),
        blocks=rng.choice((40, 64)),
        batched_tokens=rng.choice((24, 64, 200)),
        requests=rng.choice((2, 8)),
        extra={
            "host_gb": rng.choice((0.0003, 0.001)),
            "verify_on_load": rng.random() < 0.5,
            "store_mode": rng.choice(("auto", "step")),
        },
    )
    driver.delay(rng.choice((0, 200, 2000)), seed + 1)
    mix = Mix(arrival=0.5, abort=0.05, forget=0.5, reset=0.05)
    Workload(rng, mix).run(engine, 25)
    assert failures(engine) == {}


@pytest.mark.parametrize("mode", ["auto", "step"])
def test_copies_wait_for_what_comes_before_the_forward_pass(
    driver: Any, start: StartEngine, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """A step's stores start with the next step, unless the step waits for them."""
    calls: list[str] = []

    class Noted(copy_engine.StreamEngine):
        def fence(self) -> None:
            calls.append("fence")
            super().fence()

        def load(self, entries: Any) -> int:
            calls.append("load")
            return super().load(entries)

        def store(self, entries: Any) -> int:
            calls.append("store")
            return super().store(entries)

    def noted(of: type, name: str, call: str) -> None:
        inner = getattr(of, name)
        monkeypatch.setattr(of, name, lambda *given: (calls.append(call), inner(*given))[1])

    monkeypatch.setattr(copy_engine, "StreamEngine", Noted)
    noted(Runner, "_forward", "forward")
    noted(Runner, "_prepare_blocks", "zero")
    noted(WorkerHalf, "take_stores", "taken")
    engine = start(extra={"store_mode": mode})
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    assert engine.generate(PROMPT).restored_tokens == 6 * N
    engine.check_idle()
    at = calls.index("load")
    assert calls[at - 3 : at] == ["zero", "fence", "forward"]
    first = calls.index("store")
    expected = ["zero", "forward", "taken"]
    expected += ["fence"] if mode == "step" else ["zero", "fence", "forward"]
    assert calls[:first][-len(expected) :] == expected


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("version", [1, 2])
def test_nothing_is_written_to_blocks_whose_stores_are_held_or_late(
    driver: Any, start: StartEngine, version: int, asynchronous: bool
) -> None:
    """Each request needs the blocks of the one before."""
    engine = start(blocks=20, requests=1, async_scheduling=asynchronous, runner_version=version)
    engine.generate([7], max_tokens=1)
    fresh = Workload(random.Random(3)).fresh
    results = [engine.add(fresh(3 * N + 1), max_tokens=1) for _ in range(4)]
    driver.pause(5000)
    engine.run()
    for result in results:
        result.check()
    engine.check_idle()
    assert engine.cache.stats()["pages"] >= 4 * 3
    assert failures(engine) == {}


def test_stores_are_held_for_the_next_step_and_not_longer(
    driver: Any, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start()
    worker = engine.runners[0].connector.worker
    request = engine.add(PROMPT, max_tokens=1)
    while not worker._held:
        engine.step()
    held = set(worker._held)
    engine.step()
    assert not held & set(worker._held)
    engine.run()
    request.check()
    engine.check_idle()
    # Sleep ends those that no step has taken.
    engine.add(Workload(random.Random(9)).fresh(3 * N + 1), max_tokens=1)
    while not worker._held:
        engine.step()
    engine.runners[0].connector.unregister_kv_caches()
    assert not worker._held and not worker._stores
    engine.runners[0].connector.restore_kv_caches()
    engine.run()
    engine.check_idle()
    assert failures(engine) == {}


def test_a_step_that_cannot_be_fenced_recomputes_its_loads(driver: Any, start: StartEngine) -> None:
    engine = start()
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    request = engine.add(PROMPT)
    engine_of_worker = engine.runners[0].connector.worker.engine
    fence = engine_of_worker.fence

    def fail_once() -> None:
        engine_of_worker.fence = fence
        driver.fail("cuEventRecord", 1, OUT_OF_MEMORY)
        fence()

    engine_of_worker.fence = fail_once
    engine.run()
    request.check()
    assert sum(failures(engine).values()) == 1
    assert engine.reset_prefix_cache()
    assert engine.generate(PROMPT).restored_tokens == 6 * N
    engine.check_idle()


def test_a_broken_device_recomputes_what_waits_and_stores_nothing_more(
    driver: Any, start: StartEngine
) -> None:
    engine = start(blocks=120)
    other = Workload(random.Random(6)).fresh(5 * N + 1)
    for prompt in (PROMPT, other):
        engine.generate(prompt)
    assert engine.reset_prefix_cache()
    driver.delay(2000)
    for function in ("cuMemcpyHtoDAsync_v2", "cuMemcpyBatchAsync", "cuLaunchKernel"):
        driver.fail(function, 1, LAUNCH_FAILED, STICKY)
    results = [engine.add(prompt) for prompt in (PROMPT, other)]
    engine.run()
    for result in results:
        result.check()
    assert sum(failures(engine).values()) >= 2
    pages = engine.cache.stats()["pages"]
    engine.generate(Workload(random.Random(7)).fresh(3 * N + 1))
    assert engine.cache.stats()["pages"] == pages
    engine.check_idle()


def test_pinning_that_fails_is_said_once_and_counted(
    driver: Any,
    start: StartEngine,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pinning, "_LOOK_SECONDS", 0.001)
    driver.set("NO_PINNING", 1)

    def said() -> int:
        texts = [record.getMessage() for record in caplog.records]
        return sum("pinning failed for" in text for text in texts)

    with caplog.at_level(logging.WARNING, logger="vllm.hybrid_pages"):
        engine = start(ranks=2)
        until("the log says so", lambda: said() > 0)
        engine.generate(PROMPT)
        assert engine.reset_prefix_cache()
        assert engine.generate(PROMPT).restored_tokens == 6 * N
    gauges = engine.connector.scheduler.stats()["gauges"]
    assert gauges["unpinned_bytes"] == gauges["ready_bytes"] > 0
    until("both ranks said so", lambda: said() == 2)
    engine.generate(PROMPT)
    assert said() == 2


@pytest.mark.parametrize("used", [True, False])
def test_batches_of_copies_that_are_refused_are_said_once(
    used: bool, driver: Any, start: StartEngine, caplog: pytest.LogCaptureFixture
) -> None:
    driver.set("REFUSE_BATCH", 1)
    with caplog.at_level(logging.WARNING, logger="vllm.hybrid_pages"):
        engine = start(extra={"kernel_below": 0, "batch_copies": used})
        for _ in range(3):
            engine.generate(PROMPT)
            assert engine.reset_prefix_cache()
        assert engine.generate(PROMPT).restored_tokens == 6 * N
    assert failures(engine) == {}
    texts = [record.getMessage() for record in caplog.records]
    said = [text for text in texts if "cuMemcpyBatchAsync failed" in text]
    assert (len(said), driver.calls("cuMemcpyBatchAsync")) == ((1, 2) if used else (0, 0))


def test_the_log_follows_what_is_pinned_without_a_step(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinning, "_LOOK_SECONDS", 0.001)
    memory = SimpleNamespace(usable_slots=0, slots=80, seconds=1.5, error="the rest failed")
    ended = threading.Event()
    memory.wait = lambda _: ended.is_set()

    def lines() -> list[str]:
        return [record.getMessage().partition(": ")[2] for record in caplog.records]

    with caplog.at_level(logging.INFO, logger="vllm.hybrid_pages"):
        followed = pinning.Progress(2, 8 << 30, memory)
        for number, slots in enumerate((10, 41), 1):
            memory.usable_slots = slots
            until("it is in the log", lambda number=number: len(lines()) == number)
        memory.usable_slots = 49  # too little for a line of its own
        ended.set()
        until("it ended", lambda: len(lines()) == 4)
    assert lines() == [
        f"rank 2 has {gib} of 8.0 GiB of host memory ready after 1.5 s"
        for gib in ("1.0", "4.1", "4.9")
    ] + ["the rest failed"]
    assert [followed.more(slots) for slots in (0, 49, 49)] == [None, 49, None]
    followed.close()


def test_an_engine_that_cannot_be_made_is_not_tried_in_every_step(
    driver: Any, start: StartEngine
) -> None:
    driver.fail("cuStreamCreateWithPriority", 2, OUT_OF_MEMORY)  # the first tries the kernels
    engine = start()
    for _ in range(2):
        engine.generate(PROMPT)
        assert engine.reset_prefix_cache()
    assert engine.generate(PROMPT).restored_tokens == 0
    assert driver.calls("cuMemHostRegister_v2") == 1
    engine.check_idle()


def test_stores_without_a_pinning_fail_by_their_true_reason(
    driver: Any, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not wait for memory that nobody gets ready."""

    def fails(*_: Any) -> None:
        raise CudaError("cuDevicePrimaryCtxRetain: out of memory")

    monkeypatch.setattr(copy_engine, "pin", fails)
    engine = start()
    engine.generate(PROMPT)  # the first report comes with its first step
    waited = skipped(engine)
    engine.generate(PROMPT)
    assert failures(engine)["failures:store_start"] > 0
    assert skipped(engine) == waited
    engine.check_idle()


def test_a_device_without_a_driver_is_refused_at_start(
    driver: Any, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYBRID_PAGES_LIBCUDA", "/nowhere/libcuda.so.1")
    with pytest.raises(UnsupportedError, match="KV caches on cuda:0: CUDA is not available"):
        start()


def test_sleep_lets_go_of_the_caches_and_keeps_what_is_pinned(
    driver: Any, start: StartEngine
) -> None:
    engine = start()
    engine.generate(PROMPT)
    registered = driver.count("registrations")
    assert registered == 1
    connector = engine.runners[0].connector
    calls = driver.calls("cuMemHostRegister_v2")
    connector.unregister_kv_caches()
    assert connector.worker.engine is None
    connector.restore_kv_caches()
    assert engine.reset_prefix_cache()
    assert engine.generate(PROMPT).restored_tokens == 6 * N
    assert driver.count("registrations") == 1
    assert driver.calls("cuMemHostRegister_v2") == calls
    connector.worker.shutdown()
    assert driver.count("registrations") == 0


def test_the_engine_is_made_for_the_device_that_the_caches_lie_on() -> None:
    here = {"a": torch.zeros(1), "b": torch.zeros(1)}
    assert copy_engine.cache_device(here) == torch.device("cpu")
    assert copy_engine.cache_device({}) == torch.device("cpu")
    with pytest.raises(UnsupportedError, match="layer 'b': expected its cache in CPU or CUDA"):
        copy_engine.cache_device(here | {"b": torch.zeros(1, device="meta")})


@pytest.mark.parametrize("ranks", [1, 2])
def test_nothing_is_stored_in_memory_that_is_not_pinned_yet(
    driver: Any, ranks: int, not_alone: None, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registration ends while the engine serves, on one rank after the other."""
    monkeypatch.setattr(Engine, "waits_for_memory", False)
    usable = {rank: 0 for rank in range(ranks)}
    made = copy_engine.pin

    class Slow:
        """A pinning that says when it is told to."""

        def __init__(self, rank: int, inner: Any) -> None:
            self._rank, self._inner = rank, inner

        usable_slots = property(lambda self: usable[self._rank])

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    def pin(device: Any, arena: Any, rank: int) -> Any:
        pinning = made(device, arena, rank)
        assert pinning is not None
        pinning.start()
        assert pinning.wait(60)
        slow[rank] = Slow(rank, pinning)
        return pinning

    slow: dict[int, Any] = {}
    monkeypatch.setattr(copy_engine, "pin", pin)
    engine = start(ranks=ranks)
    for runner in engine.runners:
        runner.connector.worker._pinning = slow[runner.rank]
    half = engine.connector.scheduler
    total = half.connection.slots.count
    half.connection.cache.set_ready_slots(0)
    half.connection._ready = dict(usable)

    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    counters = half.stats()["counters"]
    assert counters["skipped_entries:not_ready"] > 0
    assert engine.cache.stats()["pages"] == engine.cache.stats()["ready_slots"] == 0
    for rank in range(ranks):
        usable[rank] = total
        engine.generate(Workload(random.Random(rank)).fresh(2 * N))
    assert engine.cache.stats()["ready_slots"] == total
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    assert engine.generate(PROMPT).restored_tokens == 6 * N
    engine.check_idle()


def test_memory_that_is_ready_after_the_cache_was_stopped_changes_nothing(
    driver: Any, start: StartEngine
) -> None:
    engine = start()
    half = engine.connector.scheduler
    half.connection.got_ready({0: half.connection.slots.count + 5}, {})
    assert engine.cache.stats()["ready_slots"] == half.connection.slots.count
    half.connection.stopped = True
    half.connection.got_ready({0: half.connection.slots.count + 9}, {0: 5})
    assert half.connection.unpinned_bytes == 0
    half.connection.stopped = False
    engine.generate(PROMPT)
    engine.check_idle()
