"""A usual step costs little, and one that completes nothing asks nothing; nothing is lost."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from simulation.engine import Engine, StartEngine
from simulation.shapes import BLOCK_TOKENS as N
from test_boundaries import tokens

ALL = {"checkpoint_mode": "all", "host_gb": 0.02}
BLOCKS = 6


def answer(engine: Engine) -> list[int]:
    """The boundaries that an answer of several blocks, behind a short prompt, leaves behind."""
    prompt = tokens(N + 3)
    text = engine.generate(prompt, (BLOCKS - 1) * N).tokens
    engine.check_idle()
    return engine.depths(prompt + text)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_decode_steps_between_boundaries_plan_nothing(
    asynchronous: bool, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(extra=ALL, async_scheduling=asynchronous)
    stores, asked = engine.half.connection.stores, list[str]()
    tables = stores.tables

    def noted(name: str) -> Any:
        asked.append(name)
        return tables(name)

    monkeypatch.setattr(stores, "tables", noted)
    assert answer(engine) == list(range(1, BLOCKS + 1))
    assert len(asked) <= 4 * BLOCKS < engine.steps / 3


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_usual_step_looks_at_no_load_and_at_no_request(
    asynchronous: bool, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(extra=ALL, async_scheduling=asynchronous)
    engine.generate(tokens(N + 3), 1)
    half, asked = engine.half, Counter[str]()

    def count(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def counted(*given: Any, **more: Any) -> Any:
            asked[name] += 1
            return call(*given, **more)

        monkeypatch.setattr(owner, name, counted)

    count(half, "_look_for_panics")
    count(half, "_refuse_parked")
    count(half._steps, "begins")
    count(half.connection.loads, "take_planned")
    before = engine.steps
    assert answer(engine) == list(range(1, BLOCKS + 1))
    assert engine.steps - before > 4 * N
    assert asked["_look_for_panics"] < 4 * BLOCKS, "once a report of stores"
    assert not asked["take_planned"], "without a load"
    assert asked["_refuse_parked"] < 10 and asked["begins"] < 10, asked


def test_a_hand_over_to_a_request_that_was_left_alone_is_told_where_it_is(
    start: StartEngine,
) -> None:
    """vLLM may hand over a state of a request that isn't in the step."""
    engine = start(extra=ALL)
    result = engine.add(tokens(N + 3), (BLOCKS - 1) * N)
    name = result.request.request_id
    while not (tracked := engine.half._requests.get(name)) or not tracked.run.quiet_until:
        engine.step()
    for _ in range(3):
        engine.step()
    assert tracked.run.quiet_until
    state = SimpleNamespace(req_ids={name}, boundary_state_offloads={name: [(0, 1, N)]})
    output: Any = SimpleNamespace(
        total_num_scheduled_tokens=1,
        num_scheduled_tokens={},
        kv_connector_block_state=state,
        kv_cache_block_copies=None,
    )
    assert not engine.connector.build_connector_meta(output).stores
    assert tracked.run.position == result.request.num_computed_tokens
    engine.run()
    engine.check_idle()
    assert engine.depths(tokens(N + 3) + result.tokens) == list(range(1, BLOCKS + 1))
