"""A step that completes nothing asks vLLM for nothing, and nothing is lost by that."""

from __future__ import annotations

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


class Counting:
    """A core that counts the steps that it is told of."""

    def __init__(self, core: Any) -> None:
        self._core, self.steps = core, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def __len__(self) -> int:
        return len(self._core)

    def step(self, *given: Any) -> Any:
        self.steps += 1
        return self._core.step(*given)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_decode_steps_between_boundaries_plan_nothing(
    asynchronous: bool, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(extra=ALL, async_scheduling=asynchronous)
    core = Counting(engine.half.stores.core)
    monkeypatch.setattr(engine.half.stores, "core", core)
    assert answer(engine) == list(range(1, BLOCKS + 1))
    assert core.steps <= 4 * BLOCKS < engine.steps / 3


def test_a_boundary_that_a_step_passes_over_is_missed(
    start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the test above would find if requests were left alone for too long."""
    engine = start(extra=ALL)
    stores, bumped = engine.half._steps.stores, set[int]()

    def longer(output: Any) -> Any:
        jobs = stores(output)
        for tracked in engine.half._requests.values():
            if tracked.quiet_until and tracked.quiet_until - 1 not in bumped:
                bumped.add(tracked.quiet_until)
                tracked.quiet_until += 1
        return jobs

    monkeypatch.setattr(engine.half._steps, "stores", longer)
    assert answer(engine) != list(range(1, BLOCKS + 1))


def test_a_hand_over_to_a_request_that_was_left_alone_is_told_where_it_is(
    start: StartEngine,
) -> None:
    """vLLM may hand over a state of a request that isn't in the step."""
    engine = start(extra=ALL)
    result = engine.add(tokens(N + 3), (BLOCKS - 1) * N)
    name = result.request.request_id
    while not (tracked := engine.half._requests.get(name)) or not tracked.quiet_until:
        engine.step()
    for _ in range(3):
        engine.step()
    assert tracked.quiet_until and tracked.run.position != result.request.num_computed_tokens
    state = SimpleNamespace(req_ids={name}, boundary_state_offloads={name: [(0, 1, N)]})
    output: Any = SimpleNamespace(num_scheduled_tokens={}, kv_connector_block_state=state)
    assert engine.half._steps.stores(output) == []
    assert not tracked.quiet_until
    assert tracked.run.position == result.request.num_computed_tokens
    engine.run()
    engine.check_idle()
    assert engine.depths(tokens(N + 3) + result.tokens) == list(range(1, BLOCKS + 1))
