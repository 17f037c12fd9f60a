"""Pages of draft layers: never stored under a token that they were not computed from, and not at
all from a step that left the draft layers out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from hybrid_pages.vllm.scheduler.requests.keys import Keys
from hybrid_pages.vllm.scheduler.requests.tracked import Tracked
from simulation.audit import WrongEntry
from simulation.config import MAX_MODEL_LEN
from simulation.engine import Engine, Result, StartEngine, origin_of
from simulation.function import continuation
from simulation.router import Router, attention
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES, Shape, window
from simulation.shapes import attention as full
from simulation.speculation import Speculation
from test_boundaries import tokens
from test_checkpoints import visit
from test_resets import session

ALL = {"host_gb": 0.02, "checkpoint_mode": "all"}

# sessions that stream their input: vLLM takes the last token of an answer back


def end_a_turn(engine: Engine, more: int) -> Any:
    """A session whose next input replaces the token ``more`` behind a boundary, at once."""
    prompt = tokens(2 * N + 3)
    origin = origin_of(engine._request(prompt), {})
    answer = continuation(origin, prompt, 4 * N + more + 1 - len(prompt))
    assert answer[-1] not in answer[:-1]
    request = session(engine, prompt, answer[-1])
    engine.results["session"] = Result(request, origin, aborted=True)
    engine._origins["session"] = origin
    engine.scheduler.add_request(request)
    engine.scheduler.add_request(session(engine, tokens(N, 99), answer[-1]))
    while request.num_prompt_tokens == len(prompt):
        engine.step()
    return request


def break_off(engine: Engine) -> None:
    engine.scheduler.finish_requests("session", RequestStatus.FINISHED_ABORTED)
    engine.run()
    engine.results["session"].tokens = []
    engine.check_idle()


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("more", [-1, 0, 1])
@pytest.mark.parametrize("name", ["attention-only", "gdn", "mamba2"])
def test_a_block_is_not_stored_under_a_token_that_came_later(
    name: str, more: int, asynchronous: bool, start: StartEngine
) -> None:
    engine = start(
        SHAPES[name],
        speculation=Speculation("mtp", 3),
        async_scheduling=asynchronous,
        extra=ALL,
    )
    end_a_turn(engine, more)
    break_off(engine)


def test_storing_a_block_whose_next_token_was_replaced_is_noticed(
    start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Keys, "changed", lambda self, tracked: False)
    engine = start(SHAPES["attention-only"], speculation=Speculation("mtp", 3), extra=ALL)
    end_a_turn(engine, 0)
    with pytest.raises(WrongEntry):
        break_off(engine)


def test_keys_follow_a_token_that_was_replaced(start: StartEngine) -> None:
    """A request that was preempted is looked up by the tokens that it has now."""
    engine = start(speculation=Speculation("mtp", 3), extra=ALL)
    request = engine._request(tokens(2 * N + 1))
    keys = engine.half.connection.keys
    tracked = Tracked.of(request, 0, keys.none_yet())
    before = [keys.of(tracked)[block] for block in range(2)]
    request._all_token_ids[2 * N] += 1
    tracked.restart()
    assert keys.of(tracked)[0] == before[0]
    assert keys.of(tracked)[1] != before[1]


# steps without draft layers


@pytest.mark.parametrize(("method", "runner"), [("ngram", 1), ("mtp", 2)])
def test_other_engines_store_whatever_runs_beside(
    method: str, runner: int, start: StartEngine
) -> None:
    engine = start(
        SHAPES["gdn"], runner_version=runner, speculation=Speculation(method, 3), extra=ALL
    )
    engine.add(tokens(MAX_MODEL_LEN - 12), 12)
    result = engine.add(tokens(N + 1, 1), 7 * N)
    engine.run()
    assert engine.depths(result.request.prompt_token_ids + result.tokens)[-1] >= 7
    assert "skipped_entries:stale" not in engine.half.stats()["counters"]
    engine.check_idle()


# windows that are narrower than a block


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("drafts", [1, 7])
@pytest.mark.parametrize("width", [24, 34])
def test_a_narrow_window_is_stored_before_accepted_drafts_free_its_first_block(
    width: int, drafts: int, asynchronous: bool, start: StartEngine
) -> None:
    shape = Shape("narrow", (lambda: window(width, 6), full, lambda: window(width, 3)))
    engine = start(
        shape,
        speculation=Speculation("mtp", drafts),
        async_scheduling=asynchronous,
        extra={"host_gb": 0.02},
    )
    for seed in range(6):
        prompt = tokens(60 + seed, seed)
        answer = engine.generate(prompt, 160).tokens
        assert visit(engine, prompt + answer) == 192
    engine.check_idle()


# KV events: two keys of ours are one of vLLM's hashes


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    router = Router(tmp_path)
    yield router
    router.close()


@pytest.mark.parametrize("name", ["attention-only", "gdn"])
def test_a_block_with_two_next_tokens_is_announced_once_and_removed_once(
    name: str, start: StartEngine, router: Router
) -> None:
    engine = start(
        SHAPES[name],
        events=router.config,
        speculation=Speculation("mtp", 3),
        extra=ALL | {"host_gb": 0.0002},
    )
    shared = tokens(4 * N)
    for seed in (1, 2):
        for end in (4 * N + 9, 5 * N + 3):
            prompt = [*shared, seed, *tokens(2 * N, seed)][:end]
            assert visit(engine, prompt) in (0, 3 * N, 4 * N)
            visit(engine, prompt)
    router.hear(engine)  # which says that nothing was stored twice
    router.check()
    twice = [
        count for count in engine.half.connection.events._announced[False].values() if count == 2
    ]
    assert len(twice) == 1
    announced = {group: dict(router.blocks["CPU", group]) for group in attention(engine)}
    assert all(len(blocks) == 4 + 2 * (name != "gdn") for blocks in announced.values())
    for seed in range(3, 30):  # evicts one of the two, and then the other
        engine.generate(tokens(5 * N + 3, seed))
        router.hear(engine)  # which says that nothing was removed twice
        router.check()
    assert all(
        not blocks.keys() & router.blocks["CPU", group].keys()
        for group, blocks in announced.items()
    )
    engine.cache.clear()
    engine.generate(tokens(3))
    router.hear(engine)
    assert not engine.half.connection.events._announced[False]
    engine.check_idle()
