"""A transfer that fails costs a recompute; and tests of equality that can fail do fail."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from hybrid_pages import HybridPagesError
from hybrid_pages.vllm.messages import Outcome
from simulation.copies import Fault, Script
from simulation.engine import Engine, StartEngine
from simulation.runner import Mismatch
from simulation.shapes import BLOCK_TOKENS as N
from simulation.workload import Workload

PROMPT = Workload(random.Random(5)).fresh(6 * N + 1)
FAULTS: tuple[Fault, ...] = ("submit", "before", "torn", "after")


def fail(script: Script, kind: str, fault: Fault | None, first: int = 0, count: int = 1) -> None:
    """Jobs first..first+count-1 of a kind, counted from now on over all ranks, fail."""
    seen = 0

    def decide(wanted: str) -> Fault | None:
        nonlocal seen
        if wanted != kind:
            return None
        seen += 1
        return fault if first < seen <= first + count else None

    script.fault = decide


def failures(engine: Engine) -> dict[str, float]:
    counters = engine.connector.scheduler.stats()["counters"]
    return {key: count for key, count in counters.items() if key.startswith("failures")}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_failed_load_is_recomputed_and_counted(
    fault: Fault, asynchronous: bool, ranks: int, start: StartEngine, script: Script
) -> None:
    engine = start(async_scheduling=asynchronous, ranks=ranks)
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    fail(script, "load", fault, first=ranks - 1)
    engine.generate(PROMPT)
    assert sum(failures(engine).values()) == 1
    fail(script, "load", None)
    assert engine.reset_prefix_cache()
    assert engine.generate(PROMPT).restored_tokens == 6 * N  # stored anew by the recompute
    engine.check_idle()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_load_leaves_its_neighbours_alone(
    fault: Fault, start: StartEngine, script: Script
) -> None:
    engine = start(blocks=120)
    other = Workload(random.Random(6)).fresh(5 * N + 1)
    engine.generate(PROMPT)
    engine.generate(other)
    assert engine.reset_prefix_cache()
    fail(script, "load", fault)
    engine.add(PROMPT)
    fine = engine.add(other)
    engine.run()
    engine.check_idle()
    assert fine.restored_tokens == 5 * N


# Known report: LMCache#4991.
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("mode", ["step", "background"])
def test_a_failed_store_publishes_nothing(
    fault: Fault, ranks: int, mode: str, start: StartEngine, script: Script
) -> None:
    engine = start(ranks=ranks, batched_tokens=200, extra={"store_mode": mode})
    fail(script, "store", fault, first=ranks - 1)
    engine.generate(PROMPT, max_tokens=1)
    stats = engine.cache.stats()
    assert (stats["pages"], stats["checkpoints"], stats["free_slots"]) == (0, 0, stats["slots"])
    assert sum(failures(engine).values()) == 1
    assert engine.reset_prefix_cache()
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    assert engine.generate(PROMPT).restored_tokens == 6 * N
    engine.check_idle()


def test_every_transfer_failing_leaves_the_right_text(start: StartEngine, script: Script) -> None:
    script.fault = lambda kind: "torn"
    engine = start(blocks=48)
    Workload(random.Random(1)).run(engine, 20)
    assert engine.cache.stats()["pages"] == 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_two_ranks_publish_together(ranks: int, start: StartEngine) -> None:
    engine = start(ranks=ranks)
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    assert engine.generate(PROMPT).restored_tokens == 6 * N
    stored = engine.connector.scheduler.stats()["counters"]["stored_bytes"]
    classes = engine.connector.scheduler.connection.geometry.classes
    sizes = {item.kind: item.entry_bytes for item in classes}
    ends = 2 * sizes["recurrent"] + (1 + 4) * sizes["attention"] // N  # of prompt and answer
    assert stored == 6 * sizes["attention"] + sizes["recurrent"] + ends


# ---- the arena changed behind the cache: what restores from it must go red


def slots_of(engine: Engine, script: Script, kind: str) -> list[list[int]]:
    """Slots of the stored entries of a class of groups, an entry at a time."""
    classes = engine.connector.scheduler.connection.geometry.classes
    (index,) = (item.index for item in classes if item.kind == kind)
    return [entry[1] for job in script.of("store") for entry in job if entry[0] == index]


def zero(engine: Engine, slots: list[int]) -> None:
    arena = engine.connector.scheduler.connection.arena
    for slot in slots:
        arena.write(slot, bytes(arena.slot_bytes))


def swap(engine: Engine, first: list[int], second: list[int]) -> None:
    arena = engine.connector.scheduler.connection.arena
    for one, two in zip(first, second, strict=True):
        held = arena.read(one)
        arena.write(one, arena.read(two))
        arena.write(two, held)


def spoil(engine: Engine, script: Script, what: str) -> None:
    pages = slots_of(engine, script, "attention")
    if what == "zeroed pages":
        for slots in pages:
            zero(engine, slots)
    elif what == "one zeroed page":
        zero(engine, pages[2])
    elif what == "zeroed states":
        for slots in slots_of(engine, script, "recurrent"):
            zero(engine, slots)
    else:
        swap(engine, pages[1], pages[2])


SPOILS = ["zeroed pages", "one zeroed page", "zeroed states", "swapped pages"]


@pytest.mark.parametrize("what", SPOILS)
def test_spoilt_bytes_are_seen_by_the_simulation(
    what: str, start: StartEngine, script: Script
) -> None:
    engine = start(extra={"verify_on_load": False})
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    spoil(engine, script, what)
    with pytest.raises(Mismatch, match="request r1, layer"):
        engine.generate(PROMPT)


@pytest.mark.parametrize("what", SPOILS)
@pytest.mark.parametrize("ranks", [1, 2])
def test_spoilt_bytes_are_refused_when_verified(
    what: str, ranks: int, start: StartEngine, script: Script
) -> None:
    engine = start(ranks=ranks, extra={"verify_on_load": True})
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    spoil(engine, script, what)
    engine.generate(PROMPT)
    assert failures(engine) == {"failures:load": 1}
    engine.check_idle()


# ---- a step of the path raises instead of copying


class Broken:
    """Passes everything on but one method, which raises the first times it is called."""

    def __init__(self, target: Any, method: str, times: int = 1) -> None:
        self._target, self._method, self.left = target, method, times

    def __getattr__(self, name: str) -> Any:
        if name != self._method:
            return getattr(self._target, name)
        if self.left == 0:
            return getattr(self._target, name)
        self.left -= 1
        raise RuntimeError(f"injected: {name} raised")


@pytest.mark.parametrize("method", ["lookup", "acquire", "invalidate"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_load_whose_cache_raises_is_recomputed(
    method: str, ranks: int, start: StartEngine, script: Script
) -> None:
    engine = start(ranks=ranks)
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    loads = engine.connector.scheduler.connection.loads
    broken = Broken(engine.cache, method)
    if method == "lookup":
        engine.find_in(broken)
    else:
        loads.cache = broken
    if method == "invalidate":
        fail(script, "load", "torn")
    engine.generate(PROMPT)
    assert broken.left == 0 and sum(failures(engine).values()) >= 1
    engine.check_idle()


@pytest.mark.parametrize("fault", ["tables", "blocks", "checksums"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_store_that_raises_costs_only_the_store(
    fault: str,
    ranks: int,
    start: StartEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = start(ranks=ranks, batched_tokens=200)
    stores = engine.connector.scheduler.connection.stores
    if fault == "blocks":
        monkeypatch.setattr(stores, "pool", Broken(stores.pool, fault))
    elif fault == "tables":
        broken = Broken(SimpleNamespace(tables=stores.tables), fault)
        monkeypatch.setattr(stores, "tables", lambda name: broken.tables(name))
    else:
        worker = engine.runners[0].connector.worker
        monkeypatch.setattr(worker, "_outcome", without_a_checksum(worker._outcome))
    engine.generate(PROMPT)
    assert sum(failures(engine).values()) == 1
    monkeypatch.undo()
    engine.check_idle()
    assert engine.reset_prefix_cache()
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    assert engine.generate(PROMPT).restored_tokens == 6 * N
    engine.check_idle()


def without_a_checksum(outcome: Any) -> Any:
    """The first outcome lacks the checksum of an entry, so committing its job raises."""
    first = True

    def wrong(done: Any, reason: str) -> Outcome:
        nonlocal first
        found, cut = outcome(done, reason), 8 if first else 0
        first = False
        return found._replace(checksums=found.checksums[cut:])

    return wrong


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_worker_without_an_engine_costs_no_text(
    ranks: int, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(ranks=ranks)
    worker = engine.runners[-1].connector.worker

    def fail() -> None:
        raise OSError("injected: no engine")

    with monkeypatch.context() as patch:
        patch.setattr(worker, "_open", fail)
        engine.generate(PROMPT)
        assert engine.reset_prefix_cache()
        engine.generate(PROMPT)
        engine.check_idle()
        assert engine.cache.stats()["pages"] == 0
    engine.forget_local()
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    assert engine.generate(PROMPT).restored_tokens == 6 * N


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_load_that_cannot_be_planned_is_recomputed(
    asynchronous: bool, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(async_scheduling=asynchronous)
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    loads = engine.connector.scheduler.connection.loads

    def fail(*_: Any) -> None:
        raise RuntimeError("injected: no plan")

    with monkeypatch.context() as patch:
        patch.setattr(loads, "_entries", fail)
        engine.generate(PROMPT)
    assert failures(engine) == {"failures:load_plan": 1}
    engine.check_idle()


# ---- what a rank says cannot be read, or a panic has closed the cache

UNREADABLE: list[Any] = [
    None,
    SimpleNamespace(rank="0", error=None, nbytes=1, seconds=0.0),
    SimpleNamespace(rank=7, error=None, nbytes=1, seconds=0.0),
    SimpleNamespace(rank=0),
    SimpleNamespace(rank=0, error=None, nbytes="x", seconds=0.0),
    SimpleNamespace(rank=0, error=None, nbytes=1, seconds=None),
]


@pytest.mark.parametrize("unreadable", UNREADABLE)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_load_of_which_a_rank_says_what_cannot_be_read_is_recomputed(
    unreadable: Any, ranks: int, start: StartEngine
) -> None:
    engine = start(ranks=ranks)
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    loads = engine.connector.scheduler.connection.loads
    ended = loads.ended

    def spoilt(name: str, tracked: Any, outcomes: list[Outcome]) -> None:
        outcomes = [unreadable if item.rank == 0 else item for item in outcomes]
        ended(name, tracked, outcomes)

    loads.ended = spoilt
    assert engine.generate(PROMPT).restored_tokens == 0
    assert failures(engine) == {"failures:worker_metadata": 1}
    loads.ended = ended
    assert engine.reset_prefix_cache()
    assert engine.generate(PROMPT).restored_tokens == 6 * N
    engine.check_idle()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_load_of_which_a_rank_says_nothing_is_recomputed(ranks: int, start: StartEngine) -> None:
    engine = start(ranks=ranks)
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    loads = engine.connector.scheduler.connection.loads
    ended = loads.ended
    loads.ended = lambda name, tracked, outcomes: ended(name, tracked, outcomes[1:])
    assert engine.generate(PROMPT).restored_tokens == 0
    assert failures(engine) == {"failures:worker_metadata": 1}


class Closed:
    """A cache that a panic has closed."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        if name in ("stats", "tiers", "restores", "clear", "poll", "changes"):
            return getattr(self._cache, name)
        return self._raise

    def failure(self) -> str:
        return "panic: planted"

    def _raise(self, *_: Any, **__: Any) -> Any:
        raise HybridPagesError(self.failure())


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_engine_goes_on_without_a_cache_that_a_panic_has_closed(
    ranks: int, start: StartEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine = start(ranks=ranks)
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    half = engine.connector.scheduler
    closed = Closed(half.connection.cache)
    engine.find_in(closed)
    half.connection.cache = half.connection.loads.cache = closed
    half.connection.namespaces._cache = closed
    for _ in range(3):
        assert engine.generate(PROMPT).restored_tokens == 0
        assert engine.reset_prefix_cache()
    assert failures(engine) == {"failures:panic": 1}
    said = [it for it in caplog.records if "planted" in it.getMessage()]
    assert len(said) == 1


def test_a_panic_while_a_prompt_is_computed_does_not_end_an_engine_that_measures_its_pace(
    start: StartEngine,
) -> None:
    engine = start()
    half = engine.connector.scheduler
    half.connection.pace = SimpleNamespace(
        planned=lambda *_: True, tokens_per_second=1.0, rested=lambda: None
    )
    engine.add(PROMPT)
    assert engine.step()
    half.connection.cache = Closed(half.connection.cache)
    engine.run()
    assert failures(engine) == {"failures:panic": 1}
    assert not half.connection.serving


def test_a_store_that_meets_a_panic_ends_the_use_of_the_cache(start: StartEngine) -> None:
    engine = start()
    half = engine.connector.scheduler
    engine.add(PROMPT)
    half.connection.stores.cache = Closed(half.connection.cache)
    half.connection.stores.not_published(0, HybridPagesError("planted"))
    half.connection.stores.not_published(1, HybridPagesError("planted"))
    engine.run()
    assert failures(engine) == {"failures:panic": 1}
    assert not half.connection.serving and half.connection.cache.stats()["pages"] == 0
