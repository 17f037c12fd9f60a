"""States that the next step overwrites: copied to blocks of vLLM's pool, stored from there."""

from __future__ import annotations

from typing import Any

import pytest

import simulation.engine
from hybrid_pages.vllm.scheduler import spare
from hybrid_pages.vllm.worker.half import WorkerHalf
from hybrid_pages.vllm.worker.states import StateCopies
from simulation.audit import WrongEntry
from simulation.copies import Script
from simulation.engine import Engine, StartEngine
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from test_boundaries import tokens
from test_checkpoints import counters
from test_tails import BACKGROUND, check, tails


def free(engine: Engine) -> int:
    return engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def late(script: Script) -> None:
    """Stores read what they copy several steps later."""
    script.delay = lambda kind: 6 if kind == "store" else 0


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name", ["gdn", "two-recurrent-kinds", "gdn-window-unequal"])
def test_later_steps_do_not_change_what_is_stored(
    name: str,
    asynchronous: bool,
    ranks: int,
    ready: StartEngine,
    script: Script,
) -> None:
    late(script)
    engine = ready(SHAPES[name], async_scheduling=asynchronous, ranks=ranks, extra=BACKGROUND)
    n = engine.half.connection.grid.block_tokens
    result = engine.generate(tokens(n + 3), max_tokens=12)
    assert check(engine, result) == [[n + 3, n + 14]]
    engine.forget_local()
    assert engine.generate(tokens(n + 3) + tokens(4, 9)).restored_tokens == n + 3
    engine.check_idle()


def test_the_blocks_are_held_until_the_store_has_ended(
    ready: StartEngine,
    script: Script,
) -> None:
    late(script)
    engine = ready(async_scheduling=False, extra=BACKGROUND)
    groups = sum(engine.runners[0].memory.recurrent)
    held, result = [], engine.add(tokens(3), max_tokens=12)
    while not result.done:
        before = free(engine)
        engine.step()
        held.append(before - free(engine))
    assert [each for each in held if each] == [1 + groups + groups, -groups]
    engine.run()
    engine.check_idle()


@pytest.mark.parametrize("fault", ["late", "never"])
def test_the_byte_model_sees_a_copy_that_is_late(
    fault: str,
    ready: StartEngine,
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step later the state includes a token more."""
    late(script)
    run, take_stores = StateCopies.run, WorkerHalf.take_stores
    planned, permitted = [], []

    def after_the_next_step(worker: WorkerHalf, step: Any) -> None:
        for states, copies in planned:
            run(states, copies)
        planned.clear()
        take_stores(worker, step)

    def taken(engine: Engine, metadata: Any) -> list[tuple[int, int]]:
        permitted.extend(found(engine, metadata))
        return permitted

    found = simulation.engine.taken
    monkeypatch.setattr(simulation.engine, "taken", taken)
    monkeypatch.setattr(StateCopies, "run", lambda *given: planned.append(given))
    if fault == "late":
        monkeypatch.setattr(WorkerHalf, "take_stores", after_the_next_step)
    engine = ready(async_scheduling=False, extra=BACKGROUND)
    engine.generate(tokens(N + 3), max_tokens=12)
    with pytest.raises(WrongEntry, match=f"recurrent entry .* of which it has {N + 3} tokens"):
        engine.check_idle()


def test_a_block_that_others_need_is_not_taken(
    ready: StartEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = ready(async_scheduling=False, extra=BACKGROUND)
    groups = sum(engine.runners[0].memory.recurrent)
    needs = engine.add(tokens(N + 2, 1), max_tokens=20)
    for _ in range(3):
        engine.step()
    short = engine.add(tokens(N + 3), max_tokens=1)
    longer = engine.add(tokens(N + 4, 2), max_tokens=5)
    left = len(engine.scheduler.kv_cache_manager.block_pool.blocks)
    with monkeypatch.context() as patch:
        patch.setattr(spare, "_TOKENS_AHEAD", left * N)
        engine.run()
    assert needs.done
    assert counters(engine)["skipped_tails:no_free_blocks"] == 2
    # A request that ends there keeps its state.
    assert check(engine, short, longer) == [[N + 3], [N + 8]]
    left = free(engine)
    assert engine.half.connection.spare.has(left)
    assert not engine.half.connection.spare.has(left + 1)
    # Of a request that decodes, the next block of each group counts once it is near.
    needs = engine.add(tokens(N - 1, 3), max_tokens=2 * N + 3)
    while needs.request.num_output_tokens < 2:
        engine.step()
    ahead = 2 * (1 + groups)  # two blocks' tokens
    assert engine.half.connection.spare.has(free(engine) - ahead)
    assert not engine.half.connection.spare.has(free(engine) - ahead + 1)
    engine.run()
    engine.check_idle()


def test_a_copy_that_fails_costs_its_store_alone(
    ready: StartEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(states: StateCopies, copies: Any) -> None:
        if copies:
            raise RuntimeError("no such copy")

    engine = ready(extra=BACKGROUND)
    with monkeypatch.context() as patch:
        patch.setattr(StateCopies, "run", fails)
        result = engine.generate(tokens(N + 3), max_tokens=1)
    engine.check_idle()
    assert tails(engine, result) == []
    assert counters(engine)["failures:store_start"] == 1
    result = engine.generate(tokens(N + 3), max_tokens=3)
    assert check(engine, result) == [[N + 3, N + 5]]
