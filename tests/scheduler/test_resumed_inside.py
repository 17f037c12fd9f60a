"""Requests that resume inside a block, after a tail: every byte, count and failure."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any

import pytest

from hybrid_pages.vllm.processes.agreement import Agreement
from planted_tails import plant
from simulation.copies import Script
from simulation.engine import Engine, StartEngine
from simulation.runner import Mismatch
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from test_boundaries import tokens
from test_counts import counters, hits

pytestmark = pytest.mark.every_version

LONG = tokens(6 * N)
WITH_TAILS = [name for name, shape in SHAPES.items() if shape.has_tails]


def stored(engine: Engine, end: int, prompt: list[int] = LONG) -> Engine:
    """The engine, with everything up to a tail in the cache and nothing in vLLM's own."""
    if end >= N:
        engine.generate(prompt[: end // N * N + 1], 1)
    plant(engine, prompt, end)
    engine.forget_local()
    return engine


@pytest.mark.parametrize("more", [1, 5, 2 * N])
@pytest.mark.parametrize("end", [1, 5, N - 1, N + 1, 3 * N + 7])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_request_resumes_after_a_tail(
    start: StartEngine, asynchronous: bool, end: int, more: int
) -> None:
    engine = stored(start(async_scheduling=asynchronous), end)
    result = engine.generate(LONG[: end + more], 2 * N)
    assert (result.local_tokens, result.restored_tokens) == (0, end)
    assert hits(engine) == {"host": end}
    assert counters(engine)["tail_tokens"] == end % N
    engine.check_idle()


@pytest.mark.parametrize("name", WITH_TAILS)
@pytest.mark.parametrize("budget", [12, 128])
def test_every_shape_resumes_after_a_tail(start: StartEngine, name: str, budget: int) -> None:
    engine = start(SHAPES[name], batched_tokens=budget, blocks=200)
    grid = engine.half.connection.grid
    n, prompt = grid.block_tokens, tokens(5 * grid.block_tokens)
    engine.generate(prompt[: 2 * n + 1], 1)
    if reason := engine.half.connection.stores.no_tails:
        pytest.skip(reason)
    for end in (2 * n + 1, 2 * n + n // 2 + 1, 3 * n - 1):
        plant(engine, prompt, end)
        engine.forget_local()
        assert engine.generate(prompt[: end + 1], 3).restored_tokens == end
        engine.forget_local()
        assert engine.generate(prompt[: 4 * n + 2], 3).restored_tokens >= end
    engine.check_idle()


@pytest.mark.parametrize("part", ["state_of", "page_of"])
def test_other_bytes_in_a_tail_are_noticed(start: StartEngine, part: str) -> None:
    engine, end = start(), N + 5
    engine.generate(LONG[: N + 1], 1)
    other = [*LONG[: end - 1], LONG[end - 1] + 1, *LONG[end:]]
    plant(engine, LONG, end, **{part: other})
    engine.forget_local()
    with pytest.raises(Mismatch):
        engine.generate(LONG[: end + 1])


def test_a_state_of_a_token_earlier_is_noticed(start: StartEngine) -> None:
    engine, end = start(), N + 5
    engine.generate(LONG[: N + 1], 1)
    plant(engine, LONG, end, state_of=[0, *LONG])
    engine.forget_local()
    with pytest.raises(Mismatch):
        engine.generate(LONG[: end + 1])


def test_the_deepest_tail_of_the_prompt_counts(start: StartEngine) -> None:
    engine = stored(start(), 3 * N + 9)
    for end in (3, N + 2, 3 * N + 4):
        plant(engine, LONG, end)
    other = [*LONG[: 3 * N + 5], 1, 2, 3, 4, 5, 6]
    plant(engine, other, 3 * N + 7)
    for length, expected in (
        (3 * N + 12, 3 * N + 9),
        (3 * N + 10, 3 * N + 9),
        (3 * N + 9, 3 * N + 4),  # the last token is computed
        (3 * N + 4, 3 * N + 1),  # the end of the first prompt
        (2 * N, N + 2),  # no state was made at N
        (N - 1, 3),
        (3, 0),
    ):
        engine.forget_local()
        assert engine.generate(LONG[:length], 1).restored_tokens == expected, length
    engine.forget_local()
    assert engine.generate(other, 1).restored_tokens == 3 * N + 7
    engine.check_idle()


def test_a_whole_block_that_is_deeper_than_the_tail_counts(start: StartEngine) -> None:
    engine = stored(start(), N + 5)
    assert engine.generate(LONG[: 2 * N], 1).restored_tokens == N + 5
    engine.forget_local()
    assert engine.generate(LONG[: 2 * N + 3]).restored_tokens == 2 * N
    assert counters(engine)["tail_tokens"] == 5
    engine.check_idle()


def test_another_salt_has_other_tails(start: StartEngine) -> None:
    engine = start()
    plant(engine, LONG, 9, salt="a")
    assert engine.generate(LONG[:12], salt="b").restored_tokens == 0
    engine.forget_local()
    assert engine.generate(LONG[:12]).restored_tokens == 0
    engine.forget_local()
    assert engine.generate(LONG[:12], salt="a").restored_tokens == 9
    engine.check_idle()


def test_only_what_vllm_lacks_is_loaded(start: StartEngine) -> None:
    engine = stored(start(), 3 * N + 7)
    engine.generate(LONG[: 2 * N + 1], 1)  # vLLM has two blocks again, and their state
    before = counters(engine)
    result = engine.generate(LONG[: 3 * N + 9])
    assert (result.local_tokens, result.restored_tokens) == (2 * N, N + 7)
    geometry = engine.half.connection.geometry
    page, state = (
        next(item.rank_bytes for item in geometry.classes if item.kind == kind)
        for kind in ("attention", "recurrent")
    )
    assert counters(engine)["loaded_bytes:pages"] - before.get("loaded_bytes:pages", 0) == 2 * page
    assert counters(engine)["loaded_bytes:checkpoints"] == state
    engine.check_idle()


@pytest.mark.parametrize("unit", [4, 8])
def test_a_local_hit_inside_a_block_is_extended(start: StartEngine, unit: int) -> None:
    engine = stored(start(match_unit=unit), 2 * N + 13)
    engine.generate(LONG[: 2 * N + 9], 1)  # vLLM has a hit of 2 * N + 8 now
    again = engine.generate(LONG[: 2 * N + 12], 1)
    # vLLM gives up its part of the block, since what it is offered is longer.
    assert (again.local_tokens, again.restored_tokens) == (2 * N, 9)
    result = engine.generate(LONG[: 2 * N + 15], 1)
    assert (result.local_tokens, result.restored_tokens) == (2 * N, 13)
    engine.check_idle()


class Below:
    """A cache that nothing may be loaded from. below: whether it says that the host has nothing."""

    def __init__(self, cache: Any, below: bool) -> None:
        self.cache, self.below = cache, below

    def __getattr__(self, name: str) -> Any:
        assert name not in ("acquire", "restore")
        return getattr(self.cache, name)

    def lookup(self, *args: Any, **kwargs: Any) -> Any:
        hit = self.cache.lookup(*args, **kwargs)
        fields = {
            name: getattr(hit, name) for name in ("blocks", "pages", "missing", "asking", "coming")
        }
        return SimpleNamespace(**fields, host=0 if self.below else hit.host)


@pytest.mark.parametrize("below", [False, True])
def test_a_tail_behind_a_longer_local_hit_is_not_loaded(start: StartEngine, below: bool) -> None:
    engine = stored(start(match_unit=4), 2 * N + 5)
    engine.generate(LONG[: 2 * N + 14], 1, hints={"store": False})
    cache = engine.half.connection.loads.cache = Below(engine.cache, below)
    engine.find_in(cache)
    result = engine.generate(LONG[: 2 * N + 14], 1)
    assert (result.local_tokens, result.restored_tokens) == (2 * N + 12, 0)
    assert not [name for name in counters(engine) if name.startswith("failures")]
    engine.check_idle()


# ---- who asks


class Asked:
    """A cache, and how often it was asked for tails."""

    def __init__(self, cache: Any) -> None:
        self.cache, self.times = cache, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)

    def tail_lengths(self, namespace: int, keys: Any, *, first: int) -> Any:
        self.times += 1
        return self.cache.tail_lengths(namespace, keys, first=first)


def asked(engine: Engine) -> int:
    """How often prompts of an engine ask for tails."""
    engine.generate([7], 1)  # the ranks report with their first step
    lookups = engine.half.connection.loads.restores.lookups
    lookups.cache = cache = Asked(lookups.cache)
    engine.generate(tokens(5), 2)
    engine.generate(LONG[: 2 * N + 3], 2)
    engine.check_idle()
    return cache.times


@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, "adaptive") for name in SHAPES] + [("gdn", mode) for mode in ("all", "align", "none")],
)
def test_only_engines_that_store_tails_ask_for_them(
    start: StartEngine, name: str, mode: str
) -> None:
    engine = start(SHAPES[name], extra={"checkpoint_mode": mode})
    count, stores = asked(engine), engine.half.connection.stores
    assert (count > 0) == (stores.has_tails and not stores.no_tails)
    if name in ("gdn", "attention-only"):
        assert (count > 0) == (name == "gdn" and mode in ("adaptive", "all"))


def test_nobody_asks_for_tails_if_the_place_of_a_token_is_unknown(
    start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Agreement, "whole_only", "model.layers.0")
    assert asked(start()) == 0


# ---- failures


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("fault", ["torn", "before", "after"])
def test_a_tail_that_cannot_be_loaded_costs_a_recompute(
    start: StartEngine, script: Script, fault: str, ranks: int
) -> None:
    engine = stored(start(ranks=ranks), 2 * N + 5)
    script.fault = lambda kind: fault if kind == "load" else None
    assert engine.generate(LONG[: 2 * N + 7]).done
    assert hits(engine) == {}
    assert "tail_tokens" not in counters(engine)
    script.fault = lambda kind: None
    engine.forget_local()
    # The entries of the failed load are gone; what was computed instead is there.
    assert engine.generate(LONG[: 2 * N + 7]).restored_tokens in (0, 2 * N)
    engine.check_idle()


def test_a_tail_without_its_state_is_missed(start: StartEngine) -> None:
    engine = start()
    engine.generate(LONG[: 2 * N + 1], 1)
    plant(engine, LONG, 2 * N + 5, classes=("attention",))
    engine.forget_local()
    assert engine.generate(LONG[: 2 * N + 9]).restored_tokens == 2 * N + 1
    assert counters(engine)["missing_state_tokens"] == 4
    assert counters(engine)["missing_states:never_made"] == 1
    engine.check_idle()


def test_a_reset_forgets_tails(start: StartEngine) -> None:
    engine = stored(start(), 2 * N + 5)
    engine.reset_prefix_cache(reset_connector=True)
    assert engine.generate(LONG[: 2 * N + 9]).restored_tokens == 0
    engine.check_idle()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_preempted_request_resumes_inside_its_answer(
    start: StartEngine, asynchronous: bool
) -> None:
    engine = start(async_scheduling=asynchronous)
    prompt = LONG[: N + 1]
    engine.generate(prompt, 8)  # its end is inside the answer of the next one
    engine.forget_local()
    result = engine.add(prompt, 2 * N)
    while len(result.tokens) < 12:
        engine.step()
    while engine._queue:
        engine._update(*engine._queue.popleft())
    engine.scheduler._preempt_request(engine.scheduler.running.pop(), time.monotonic())
    engine.forget_local()
    engine.run()
    assert counters(engine)["preempted_hit_tokens:host"] == N + 8
    engine.check_idle()


# ---- kernels that export states


def test_vllm_never_keeps_the_state_of_a_tail_as_that_of_its_block(start: StartEngine) -> None:
    """Behind a boundary of hashes a step would run past the end of the block that it begins in."""
    shape = SHAPES["gdn-exports"]
    for retention, store in itertools.product((0, None), (True, False)):
        engine = stored(start(shape, match_unit=4, retention=retention, batched_tokens=200), N + 8)
        engine.watches_local_cache = True
        first = engine.generate(LONG[: N + 14], 1, hints={"store": False})
        # vLLM's own hit ends inside a block, too.
        second = engine.generate(LONG[: 5 * N], 1, hints={"store": store})
        assert (first.restored_tokens, second.local_tokens) == (N + 8, N + 12)
        engine.check_idle()
        engine.forget_local()
        found = engine.generate(LONG, 1, hints={"store": store}).restored_tokens
        assert found == (5 * N if store else N + 8)
        engine.check_idle()
