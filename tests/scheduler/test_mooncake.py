"""A Mooncake Store that engines share, over a client of the test's, with the real scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from simulation.copies import Script
from simulation.engine import Engine, connector
from simulation.shapes import BLOCK_TOKENS as N
from test_boundaries import tokens
from test_counts import counters
from test_remote import gauges, model, shares  # noqa: F401 (model is a fixture)

FAKE = Path(__file__).parents[1] / "python" / "fake_mooncake"
PROMPT = tokens(4 * N + 3)
Start = Callable[..., Engine]


@pytest.fixture
def start(
    script: Script,
    model: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Start]:
    """Starts engines on one store, whose clients are ready; those before go on."""
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setenv("FAKE_MOONCAKE", str(tmp_path))
    engines: list[Engine] = []

    def start(**extra: Any) -> Engine:
        transfer = connector(remote_url="mooncake://127.0.0.1:1", **extra)
        engine = Engine(transfer=transfer, model=model)
        engines.append(engine)
        engine.generate(tokens(N - 1, 99))  # With the first step its client starts.
        limit = time.monotonic() + 60
        while engine.half.connection.remote.stats()["out"]:
            assert time.monotonic() < limit, engine.half.connection.remote.notes()
            time.sleep(0.01)
        return engine

    yield start
    for engine in engines:
        engine.close()


def test_an_engine_restores_what_another_one_has_computed(start: Start) -> None:
    first = start(remote_admit="all")
    first.generate(PROMPT)
    shares(first)
    second = start(remote_admit="all")
    assert second.generate(PROMPT).restored_tokens == 4 * N
    second.check_idle()


def test_with_auto_one_shot_prompts_are_not_written_until_they_are_used_again(
    start: Start,
) -> None:
    engine = start()
    engine.generate(PROMPT)
    shares(engine)
    found = counters(engine)
    assert not found.get("remote_entries:written")
    assert found["remote_entries:unproven"] > 0
    assert not found.get("remote_entries:declined")
    # Another request with the same beginning: what they share is written.
    engine.generate(PROMPT[: 3 * N] + tokens(N, 8))
    shares(engine)
    assert counters(engine)["remote_entries:written"] >= 3
    other = start()
    assert other.generate(PROMPT[: 3 * N] + tokens(N, 9)).restored_tokens == 3 * N
    other.check_idle()
    engine.check_idle()


def test_with_auto_a_retained_prompt_is_written_at_once(start: Start) -> None:
    engine = start()
    engine.generate(PROMPT, hints={"retain": 60})
    shares(engine)
    assert start().generate(PROMPT).restored_tokens == 4 * N


def test_with_auto_what_is_faster_to_compute_is_computed(start: Start) -> None:
    first = start(remote_admit="all")
    first.generate(PROMPT)
    shares(first)
    for rate, restored in ((1e12, 0), (1e-6, 4 * N)):
        engine = start()
        engine.generate(tokens(N + 1, 3))  # A question, whose answer is timed.
        assert gauges(engine)["remote_latency_seconds"] > 0
        engine.half.connection.pace = None  # No step of it counts.
        engine.cache.set_compute_rate(rate)
        assert engine.generate(PROMPT).restored_tokens == restored
        assert counters(engine).get("remote_not_worth", 0) == (not restored)
        engine.check_idle()
