"""Requests that come while what they go on from is still being stored in the background."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from hybrid_pages.vllm.scheduler.loads import coming
from simulation.copies import Script
from simulation.engine import Engine, Result, StartEngine
from simulation.shapes import BLOCK_TOKENS as N
from test_boundaries import tokens
from test_checkpoints import counters
from test_tails import BACKGROUND

LATE = 40
"""Steps that a store takes here."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait as long as a slow machine may need."""
    monkeypatch.setattr(coming, "MOST_SECONDS", 60.0)
    monkeypatch.setattr(coming, "TOKENS_PER_SECOND", 1e-3)


def ends(
    ready: StartEngine, script: Script, steps: int = LATE, **options: Any
) -> tuple[Engine, Result]:
    """A request that has just ended, whose stores take so many steps."""
    engine = ready(extra=BACKGROUND, **options)
    script.delay = lambda kind: steps if kind == "store" else 0
    before = engine.add(tokens(2 * N + 3), 4)
    while not before.done:
        engine.step()
    engine.forget_local()
    return engine, before


def outcomes(engine: Engine) -> dict[str, float]:
    """How the waits ended, by outcome."""
    found = counters(engine)
    return {key: found[key] for key in found if key.startswith("awaited_stores")}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("busy", [False, True])
def test_a_next_turn_that_comes_at_once_waits_for_the_end_of_the_answer(
    ready: StartEngine, script: Script, busy: bool, asynchronous: bool
) -> None:
    engine, before = ends(ready, script, async_scheduling=asynchronous)
    other = engine.add(tokens(5, 9), 2 * LATE) if busy else None
    following = engine.generate([*before.request.all_token_ids, *tokens(5, 8)])
    assert following.restored_tokens == 2 * N + 6
    assert other is None or other.done
    assert outcomes(engine) == {"awaited_stores:found": 1}
    engine.check_idle()


def test_it_does_not_wait_longer_than_computing_takes(
    ready: StartEngine, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, before = ends(ready, script, steps=1000)
    monkeypatch.setattr(coming, "TOKENS_PER_SECOND", 20_000)
    following = engine.generate([*before.request.all_token_ids, *tokens(5, 8)])
    assert following.restored_tokens == 0
    assert outcomes(engine) == {"awaited_stores:late": 1}
    engine.check_idle()


def test_it_is_computed_when_the_store_fails(ready: StartEngine, script: Script) -> None:
    engine, before = ends(ready, script)
    script.fault = lambda kind: "before" if kind == "store" else None
    for runner in engine.runners:
        for job in runner.connector.worker.engine._jobs.values():
            job.fault = "before"
    following = engine.generate([*before.request.all_token_ids, *tokens(5, 8)])
    assert following.restored_tokens == 0
    assert outcomes(engine) == {"awaited_stores:lost": 1}
    script.fault = lambda kind: None
    engine.check_idle()


def test_one_that_is_cancelled_while_it_waits_leaves_nothing(
    ready: StartEngine, script: Script
) -> None:
    engine, before = ends(ready, script)
    following = engine.add([*before.request.all_token_ids, *tokens(5, 8)])
    engine.step()
    engine.step()
    assert following.request.status == RequestStatus.WAITING and not following.tokens
    engine.abort(following)
    engine.run()
    assert outcomes(engine) == {}
    engine.check_idle()


def test_a_reset_ends_the_wait(ready: StartEngine, script: Script) -> None:
    engine, before = ends(ready, script)
    following = engine.add([*before.request.all_token_ids, *tokens(5, 8)])
    engine.step()
    engine.step()
    engine.half.reset()
    engine.run()
    assert following.done and following.restored_tokens == 0
    assert outcomes(engine) == {"awaited_stores:lost": 1}
    engine.check_idle()


def test_what_the_engine_has_itself_is_not_waited_for(ready: StartEngine, script: Script) -> None:
    engine = ready(extra=BACKGROUND)
    script.delay = lambda kind: LATE if kind == "store" else 0
    before = engine.add(tokens(2 * N + 3), 4)
    while not before.done:
        engine.step()
    following = engine.generate([*before.request.all_token_ids[: 2 * N], *tokens(5, 8)])
    assert following.local_tokens == 2 * N and outcomes(engine) == {}
    engine.check_idle()
