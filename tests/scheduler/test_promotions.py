"""Requests that wait while a tier below the host is read for them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from hybrid_pages.vllm.scheduler.loads import restores
from simulation.copies import Script
from simulation.engine import Engine, StartEngine
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import GDN
from test_beside import FAILING, OURS, beside
from test_boundaries import tokens
from test_counts import counters, hits


class Promoting:
    """A cache that is asked so many times before what it has below is in the host.

    loses: once its restore has begun, a lookup finds nothing as long as that is under way.
    """

    def __init__(self, cache: Any, answers: int, *, loses: bool = False) -> None:
        self._cache, self.left = cache, answers
        self.loses, self.begun = loses, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def lookup(self, *args: Any, **kwargs: Any) -> Any:
        """Says that the host has nothing of the hit yet."""
        hit = self._cache.lookup(*args, **kwargs)
        if not self.left:
            return hit
        blocks = 0 if self.loses and self.begun else hit.blocks
        return SimpleNamespace(
            blocks=blocks, host=0, pages=hit.pages, missing=None, asking=False, coming=blocks
        )

    def restore(self, *_: Any, first: int = 0, **__: Any) -> Any:
        """Says that it is under way until it has been asked often enough."""

        def progress() -> str:
            self.left -= 1
            return "waiting"

        self.begun = True
        depths = [("host", 0), ("disk", 4)]
        waiting = SimpleNamespace(first=first, blocks=4, depths=depths, end=lambda: None)
        waiting.progress = progress
        return waiting


def promoting(engine: Engine, answers: int, *, loses: bool = False) -> Promoting:
    cache = Promoting(engine.cache, answers, loses=loses)
    engine.find_in(cache)
    return cache


def stored(engine: Engine) -> list[int]:
    """A prompt of four full blocks that this cache has and vLLM's own has not."""
    prompt = tokens(4 * N + 3)
    engine.generate(prompt)
    engine.forget_local()
    return prompt


@pytest.mark.parametrize("loses", [False, True])
def test_a_request_waits_without_blocks_then_restores_and_counts_once(
    start: StartEngine, loses: bool
) -> None:
    engine = start()
    prompt = stored(engine)
    cache = promoting(engine, answers=6, loses=loses)
    pool = engine.scheduler.kv_cache_manager.block_pool
    result = engine.add(prompt)
    while cache.left:
        before = cache.left
        engine.step()
        assert cache.left < before, "vLLM asks again in every step"
        assert result.request.status == RequestStatus.WAITING
        assert not result.tokens
        assert pool.get_num_free_blocks() == engine.plan.num_blocks - 1
    engine.run()
    assert result.restored_tokens == 4 * N
    assert hits(engine) == {"disk": 4 * N}
    assert counters(engine)["lookups"] == 2
    assert counters(engine)["lookup_tokens"] == 2 * len(prompt)
    engine.check_idle()


def test_others_run_while_one_waits(start: StartEngine) -> None:
    engine = start()
    prompt = stored(engine)
    cache = promoting(engine, answers=0)
    other = engine.add(tokens(2 * N + 1, 1))
    engine.step()
    cache.left = 4
    waiting = engine.add(prompt)
    while cache.left:
        engine.step()
    assert other.tokens and not waiting.tokens
    engine.run()
    assert waiting.restored_tokens == 4 * N
    engine.check_idle()


def test_a_request_that_is_aborted_while_it_waits_leaves_nothing(start: StartEngine) -> None:
    engine = start()
    prompt = stored(engine)
    promoting(engine, answers=100)
    result = engine.add(prompt)
    engine.step()
    engine.abort(result)
    engine.run()
    assert counters(engine)["lookups"] == 1
    engine.check_idle()


@pytest.mark.parametrize("loses", [False, True])
def test_a_tier_that_never_answers_costs_a_recompute(
    start: StartEngine, monkeypatch: pytest.MonkeyPatch, loses: bool
) -> None:
    engine = start()
    prompt = stored(engine)
    promoting(engine, answers=1_000_000, loses=loses)
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(restores, "time", clock)
    result = engine.add(prompt)
    for _ in range(5):
        engine.step()
    assert result.request.status == RequestStatus.WAITING
    now = engine.half.connection.loads.restores.wait_seconds
    engine.run()
    assert result.tokens and result.restored_tokens == 0
    assert counters(engine)["failures:promotion"] == 1
    engine.check_idle()


@pytest.mark.parametrize("order", ["first", "last"])
def test_beside_another_connector_a_request_waits_and_counts_once(
    script: Script, order: str
) -> None:
    children = [OURS, FAILING] if order == "first" else [FAILING, OURS]
    engine = Engine(GDN, transfer=beside(*children))
    try:
        prompt = stored(engine)
        cache = promoting(engine, answers=3)
        result = engine.add(prompt)
        while cache.left:
            engine.step()
            assert result.request.status == RequestStatus.WAITING
        engine.run()
        assert result.restored_tokens == 4 * N
        assert hits(engine) == {"disk": 4 * N}
        assert counters(engine)["lookups"] == 2
        engine.check_idle()
    finally:
        engine.close()
