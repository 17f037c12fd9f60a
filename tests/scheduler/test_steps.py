"""A step that completes nothing costs two comparisons, and nothing is lost by that."""

from __future__ import annotations

from typing import Any

import pytest

from hybrid_pages.vllm.states import States
from hybrid_pages.vllm.store import Stores
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
    plan, planned = Stores.plan, list[int]()

    def counted(self: Stores, tracked: Any, *given: Any) -> Any:
        planned.append(tracked.request.num_computed_tokens)
        return plan(self, tracked, *given)

    monkeypatch.setattr(Stores, "plan", counted)
    engine = start(extra=ALL, async_scheduling=asynchronous)
    assert answer(engine) == list(range(1, BLOCKS + 1))
    assert len(planned) <= 4 * BLOCKS < engine.steps / 3


def test_a_boundary_that_a_step_passes_over_is_missed(
    start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the test above would find if requests were left alone for too long."""
    until = States.quiet_until
    monkeypatch.setattr(States, "quiet_until", lambda *given: until(*given) + 1)
    assert answer(start(extra=ALL)) != list(range(1, BLOCKS + 1))
