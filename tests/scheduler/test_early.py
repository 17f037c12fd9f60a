"""Requests that wait for their first turn: what they need from a disk is read meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from hybrid_pages.vllm.scheduler.checkpoints import Checkpoints
from hybrid_pages.vllm.scheduler.loads import early
from simulation.engine import Engine, Result
from simulation.shapes import BLOCK_TOKENS as N
from test_beside import OURS, beside
from test_boundaries import tokens
from test_counts import counters, hits
from test_disk import PROMPT, Start, model, settled, start  # noqa: F401 (fixtures)

BUSY = tokens(3 * N + 1, 9)
"""The prompt of a request that takes every turn."""


class Holds:
    """Counts the holds on namespaces that requests have."""

    def __init__(self, engine: Engine) -> None:
        namespaces = engine.half.connection.namespaces
        hold, release = namespaces.hold, namespaces.release
        self.count = 0

        def counted(*args: Any) -> int:
            self.count += 1
            return hold(*args)

        def uncounted(number: int) -> None:
            self.count -= 1
            release(number)

        namespaces.hold, namespaces.release = counted, uncounted


def in_line(engine: Engine, **more: Any) -> tuple[Result, Result]:
    """A request that runs, and one behind it whose turn has not come."""
    running = engine.add(BUSY, 40)
    waiting = engine.add(PROMPT, **more)
    while not running.tokens:
        engine.step()
    assert not running.done and waiting.request.status == RequestStatus.WAITING
    assert waiting.request.request_id not in engine.half._requests
    return running, waiting


def in_host(engine: Engine, salt: str | None = None) -> int:
    """The blocks of the prompt that the host has now."""
    keys = engine.keys_of(engine._request(PROMPT, salt=salt))
    return engine.cache.lookup(engine.cache.namespace(b""), keys).host


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_it_needs_is_in_the_host_before_its_turn(
    start: Start,  # noqa: F811
    asynchronous: bool,
) -> None:
    start().generate(PROMPT)
    engine = start(requests=1, async_scheduling=asynchronous)
    assert in_host(engine) == 0
    running, waiting = in_line(engine)
    settled(engine)
    assert in_host(engine) == 4 and not waiting.tokens
    read = counters(engine)["disk_entries:read"]
    engine.run()
    assert running.done and waiting.restored_tokens == 4 * N
    found = counters(engine)
    assert found["early_restores"] == 1
    assert found["disk_entries:read"] == read > 0, "read again in its turn"
    assert hits(engine) == {"disk": 4 * N}
    engine.check_idle()


def test_a_request_that_has_its_turn_at_once_is_not_asked_for_before(
    start: Start,  # noqa: F811
) -> None:
    start().generate(PROMPT)
    engine = start()
    assert engine.generate(PROMPT).restored_tokens == 4 * N
    assert "early_restores" not in counters(engine)
    engine.check_idle()


@pytest.mark.parametrize("salt", [None, "a"])
def test_one_that_is_cancelled_gives_everything_back(
    start: Start,  # noqa: F811
    salt: str | None,
) -> None:
    extra = {"tenant_share": 0.9}
    start(extra=extra).generate(PROMPT, salt=salt)
    engine = start(requests=1, extra=extra)
    holds = Holds(engine)
    running, waiting = in_line(engine, salt=salt)
    assert counters(engine)["early_restores"] == 1
    assert holds.count == 2
    engine.abort(waiting)
    assert not engine.half._early.asks and holds.count == 1
    engine.run()
    assert running.done and holds.count == 0
    engine.check_idle()


def test_a_name_that_comes_again_is_another_request(start: Start) -> None:  # noqa: F811
    start().generate(PROMPT)
    engine = start(requests=1)
    holds = Holds(engine)
    _, waiting = in_line(engine, name="same")
    engine.abort(waiting)
    again = engine.add(PROMPT, name="same")
    engine.run()
    assert again.restored_tokens == 4 * N and holds.count == 0
    engine.check_idle()


def test_a_reset_while_it_waits_leaves_nothing(start: Start) -> None:  # noqa: F811
    start().generate(PROMPT)
    engine = start(requests=1)
    _, waiting = in_line(engine)
    engine.half.reset()
    engine.run()
    assert waiting.done and waiting.restored_tokens == 0
    engine.check_idle()


def test_all_is_given_back_when_another_request_finds_no_room(start: Start) -> None:  # noqa: F811
    start().generate(PROMPT)
    engine = start(requests=1)
    _, waiting = in_line(engine)
    settled(engine)
    held = engine.cache.stats()["leased_slots"]
    engine.half.connection.loads.restores.crowded = True
    engine.step()
    assert engine.cache.stats()["leased_slots"] < held
    assert not engine.half._early.asks
    engine.run()
    assert waiting.restored_tokens == 4 * N
    assert hits(engine) == {"disk": 4 * N}
    engine.check_idle()


def test_beyond_its_share_of_the_host_a_request_waits_for_its_turn(
    start: Start,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(early, "SHARE", 1 << 40)
    start().generate(PROMPT)
    engine = start(requests=1)
    _, waiting = in_line(engine)
    settled(engine)
    assert in_host(engine) == 0
    engine.run()
    assert waiting.restored_tokens == 4 * N
    assert "early_restores" not in counters(engine)
    engine.check_idle()


def test_what_does_not_fit_beside_others_is_asked_for_when_they_have_gone(
    start: Start,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts = [tokens(4 * N + 3, seed) for seed in range(3)]
    engine = start()
    for prompt in prompts:
        engine.generate(prompt)
    keys = engine.keys_of(engine._request(prompts[0]))
    with engine.cache.acquire(engine.cache.namespace(b""), keys) as lease:
        each = sum(len(entry.slots) for entry in lease.entries)
    monkeypatch.setattr(early, "SHARE", engine.cache.stats()["slots"] // (2 * each + each // 2))
    engine = start(requests=1)
    running = engine.add(BUSY, 40)
    waiting = [engine.add(prompt) for prompt in prompts]
    while not running.tokens:
        engine.step()
    assert len(engine.half._early._held) == 2
    engine.abort(waiting[0])
    engine.step()
    assert len(engine.half._early._held) == 2 and not running.done
    engine.run()
    assert [result.restored_tokens for result in waiting[1:]] == [4 * N, 4 * N]
    engine.check_idle()


def test_requests_from_before_the_disk_is_open_are_asked_for_when_it_is(
    start: Start,  # noqa: F811
    model: Any,  # noqa: F811
    tmp_path: Any,
) -> None:
    start().generate(PROMPT)
    start().close()
    ours = OURS | {
        "kv_connector_extra_config": {
            "host_gb": 0.004,
            "disk_path": str(tmp_path / "disk"),
            "disk_gb": 0.05,
        }
    }
    with Engine(transfer=beside(ours), model=model, requests=1) as engine:
        assert engine.half.connection.agreement.geometry is None
        running, waiting = engine.add(BUSY, 40), engine.add(PROMPT)
        while not running.tokens:
            engine.step()
        settled(engine)
        assert in_host(engine) == 4 and not waiting.tokens
        engine.run()
        assert waiting.restored_tokens == 4 * N
        assert counters(engine)["early_restores"] == 1
        engine.check_idle()


def test_a_failure_costs_only_the_head_start(
    start: Start,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start().generate(PROMPT)
    engine = start(requests=1)
    monkeypatch.setattr(engine.half._early, "_local", lambda request: 1 // 0)
    _, waiting = in_line(engine)
    engine.run()
    assert waiting.restored_tokens == 4 * N
    assert counters(engine)["failures:lookup"] == 1
    engine.check_idle()


def test_what_the_engine_itself_has_is_not_read(start: Start) -> None:  # noqa: F811
    engine = start()
    engine.generate(PROMPT)
    half, other = engine.half, tokens(3 * N, 5)
    assert half._local(half._track(engine._request(PROMPT)), len(PROMPT)) == 4 * N
    assert half._local(half._track(engine._request(other)), 3 * N) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "_is_full", lambda self: True)
        longer = [*PROMPT, *engine.generate(PROMPT).tokens]
    tracked, end = half._track(engine._request(longer)), len(longer) - 1
    assert [half._local(tracked, each) for each in (end, end - 1)] == [end, 4 * N]


def test_without_a_tier_below_nobody_asks(script: Any) -> None:
    from simulation.engine import connector

    with Engine(transfer=connector()) as engine:
        assert engine.half._early is None
