"""What an application says of a conversation's future: `expect_in` and `release`."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hybrid_pages import InvalidArgumentError
from hybrid_pages.vllm.scheduler.loads import expected
from simulation.engine import Engine, connector
from simulation.shapes import BLOCK_TOKENS as N
from test_boundaries import tokens
from test_counts import counters
from test_disk import PROMPT, Start, model, settled, start  # noqa: F401 (fixtures)
from test_hints import SMALL, flood


def until(what: Callable[[], bool]) -> None:
    limit = time.monotonic() + 60
    while not what():
        assert time.monotonic() < limit, "it did not happen in a minute"
        time.sleep(0.01)


@pytest.fixture
def no_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected, "LEAD", 0.0)


def wanted(engine: Engine) -> dict[int, Any]:
    return engine.half._outlook._expected._wanted


@pytest.mark.usefixtures("seconds_apart")
def test_what_is_expected_is_brought_back_while_the_engine_does_nothing(
    start: Start,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed = 0.0
    clock = SimpleNamespace(
        monotonic=lambda: time.monotonic() + passed, monotonic_ns=time.monotonic_ns
    )
    monkeypatch.setattr(expected, "time", clock)
    engine = start(extra=SMALL)
    engine.generate(PROMPT, hints={"session": "a", "expect_in": 600})
    (prefix,) = (each.prefix for each in wanted(engine).values())

    def in_host() -> bool:
        return engine.cache.lookup(prefix.namespace, prefix.keys).host == len(prefix.keys)

    assert in_host()
    flood(engine)
    settled(engine)
    assert not in_host()
    passed = 598.0
    follows = engine.half._outlook._expected
    with follows._changed:
        follows._changed.notify()
    until(lambda: not wanted(engine))
    assert in_host()
    assert counters(engine)["expected_restores"] == 1
    # It is retained, too.
    flood(engine, 4)
    assert in_host()
    engine.check_idle()


def test_the_next_request_of_the_session_ends_it(start: Start) -> None:  # noqa: F811
    engine = start()
    engine.generate(PROMPT, hints={"session": "a", "expect_in": 600})
    engine.generate(tokens(N + 1, 5), hints={"session": "b", "expect_in": 600})
    assert len(wanted(engine)) == 2
    engine.generate(PROMPT, salt="other", hints={"session": "a"})
    assert len(wanted(engine)) == 2
    engine.generate(PROMPT, hints={"session": "a"})
    assert [each.session for each in wanted(engine).values()] == [b'[null, "b"]']
    engine.half.reset()
    assert not wanted(engine)
    engine.check_idle()


def test_no_more_are_expected_than_can_be_followed(
    start: Start,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expected, "MOST", 2)
    engine = start()
    for seed in range(4):
        engine.generate(tokens(N + 1, seed), hints={"expect_in": 600})
    assert len(wanted(engine)) == 2
    engine.check_idle()


def test_a_lookup_that_fails_is_counted_and_the_next_is_made(
    start: Start,  # noqa: F811
    no_lead: None,
) -> None:
    engine = start()
    engine.generate(PROMPT)
    follows = engine.half._outlook._begin()
    engine.half._outlook._expected = follows
    namespace, wrong = engine.half.connection.namespaces.hold(b"", None), [b"short"]
    follows.expect(None, expected.ExpectedPrefix(namespace, wrong, 0), 0.0)
    until(lambda: follows.failed == 1)
    assert counters(engine)["failures:lookup"] == 1
    follows.expect(None, expected.ExpectedPrefix(namespace, wrong, 0), 0.0)
    until(lambda: follows.failed == 2)
    engine.check_idle()


def test_requests_that_come_early_leave_nothing_behind(start: Start) -> None:  # noqa: F811
    engine = start()
    engine.generate(tokens(N + 1, 5), hints={"session": "b", "expect_in": 300})
    for _ in range(9):
        engine.generate(PROMPT, hints={"session": "a", "expect_in": 600})
    follows = engine.half._outlook._expected
    assert len(follows._wanted) == 2
    assert len(follows._order) <= 5
    engine.check_idle()


def test_the_namespace_of_what_is_expected_is_held(start: Start) -> None:  # noqa: F811
    engine = start(extra={"tenant_share": 0.5})
    said = {"session": "a", "expect_in": 600}
    engine.generate(PROMPT, salt="one", hints=said)
    (prefix,) = (each.prefix for each in wanted(engine).values())
    engine.cache.clear()
    engine.cache.lookup(prefix.namespace, prefix.keys)
    engine.generate(PROMPT[:2], salt="one", hints={"session": "a"})
    engine.cache.clear()
    with pytest.raises(InvalidArgumentError, match="namespace"):
        engine.cache.lookup(prefix.namespace, prefix.keys)
    engine.check_idle()


def test_without_a_tier_below_it_is_retained(script: Any) -> None:
    with Engine(transfer=connector(**SMALL)) as engine:
        engine.generate(PROMPT, hints={"expect_in": 600})
        engine.generate(tokens(4 * N + 3, 2))
        flood(engine)
        assert max(engine.depths(PROMPT)) == 4
        engine.check_idle()


@pytest.mark.parametrize("policy", ["reuse", "lru"])
def test_what_is_released_goes_first(script: Any, policy: str) -> None:
    with Engine(transfer=connector(**SMALL, policy=policy)) as engine:
        older = tokens(4 * N + 3, 77)
        engine.generate(older)
        engine.generate(PROMPT, hints={"release": True})
        assert max(engine.depths(PROMPT)) == 4
        for seed in range(1000, 1012):
            engine.generate(tokens(2 * N + 1, seed))
            if max(engine.depths(PROMPT), default=0) < 4:
                break
        assert max(engine.depths(PROMPT), default=0) < 4
        assert max(engine.depths(older)) == 4
        engine.check_idle()


def test_what_was_there_before_the_session_is_left_alone(
    script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine(transfer=connector()) as engine:
        cache, asked = engine.cache, []

        class Recorder:
            def __getattr__(self, name: str) -> Any:
                return getattr(cache, name)

            def give_up(self, namespace: int, keys: list[bytes], **how: Any) -> int:
                asked.append((len(keys), how["first"]))
                return cache.give_up(namespace, keys, **how)

        shared = tokens(2 * N)
        engine.generate(shared + tokens(3, 1))
        engine.half.connection.cache = Recorder()
        one, said = shared + tokens(2 * N + 3, 2), {"session": "a"}
        engine.generate(one, hints=said)
        engine.generate(one + tokens(2 * N, 3), hints=said | {"release": True})
        engine.generate(one + tokens(2 * N, 4), hints={"release": True, "expect_in": 5})
        engine.half.connection.cache = cache
        assert [first for _, first in asked] == [2, 4]
        assert all(count >= 6 for count, _ in asked)
        engine.check_idle()


def test_what_another_session_goes_on_from_is_left_alone(script: Any) -> None:
    with Engine(transfer=connector()) as engine:
        cache, given = engine.cache, list[int]()

        class Recorder:
            def __getattr__(self, name: str) -> Any:
                return getattr(cache, name)

            def give_up(self, namespace: int, keys: list[bytes], **how: Any) -> int:
                given.append(cache.give_up(namespace, keys, **how))
                return given[-1]

        shared, said = tokens(2 * N), {"session": "a"}
        prompt = shared + tokens(N + 3, 1)
        prompt += engine.generate(prompt, hints=said).tokens
        # The other session hangs from the blocks that are shared by a tail alone.
        engine.generate(shared + tokens(2, 2), 4)
        prompt += tokens(2 * N, 3)
        prompt += engine.generate(prompt, hints=said).tokens + tokens(1, 4)
        engine.half.connection.cache = Recorder()
        engine.generate(prompt, N, hints=said | {"release": True})
        engine.half.connection.cache = cache
        # The ends of the first two turns are of the same session, and no other goes on from there.
        assert given == [(len(prompt) + N - 1) // N + 1 - 2]
        engine.check_idle()
