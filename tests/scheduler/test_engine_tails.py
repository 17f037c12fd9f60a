"""Ends of answers that stay in vLLM's own pool, once the host can't hold all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from vllm.lora.request import LoRARequest

from hybrid_pages.vllm import versions
from hybrid_pages.vllm.scheduler.checkpoints import Checkpoints
from hybrid_pages.vllm.scheduler.loads import engine_tails
from simulation.config import MAX_MODEL_LEN
from simulation.engine import Engine, Result, StartEngine
from simulation.local_cache import WrongCached
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from test_boundaries import tokens
from test_checkpoints import LARGE, counters
from test_superseded import crowd
from test_tails import BACKGROUND, STATES

pytestmark = pytest.mark.every_version

LORA = LoRARequest("french", 1, "/adapters/french")


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host has had to evict something, as far as requests are told."""
    monkeypatch.setattr(Checkpoints, "_is_full", lambda self: True)


def watched(start: StartEngine, *args: Any, **options: Any) -> Engine:
    engine = start(*args, **{"extra": LARGE} | options)
    engine.watches_local_cache = True
    return engine


def next_turn(engine: Engine, result: Result, seed: int, **options: Any) -> Result:
    prompt = [*result.request.all_token_ids, *tokens(5, seed)]
    return engine.generate(prompt, **{"max_tokens": 3} | options)


def forget_host(engine: Engine) -> None:
    """The host loses everything, and nothing else does."""
    engine.cache.clear()


def fills(engine: Engine, seed: int = 9) -> None:
    """Other requests use every block of vLLM's pool."""
    engine.generate(tokens((engine.plan.num_blocks - 8) * N, seed), max_tokens=1)


def at_end(result: Result) -> tuple[int, int]:
    """What the next turn is to have from vLLM's own pool, and from the host."""
    return result.request.num_tokens - 1, 0


def found(result: Result) -> tuple[int, int]:
    return result.local_tokens, result.restored_tokens


# ---- what stays


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name", STATES)
def test_the_next_turn_goes_on_from_the_pool(
    name: str, asynchronous: bool, start: StartEngine, full: None
) -> None:
    engine = watched(start, SHAPES[name], async_scheduling=asynchronous)
    connection = engine.half.connection
    n, sizes = connection.grid.block_tokens, set(connection.grid.table_tokens)
    stays = connection.loads.joint_only is None and not connection.stores.no_tails
    stays = stays and sizes == {n} and not connection.grid.keeps_inside
    for seed, length in enumerate((3, n - 1, n + 3, 2 * n + 1)):
        turn = engine.generate(tokens(length, seed), max_tokens=4)
        for more in range(3):
            forget_host(engine)
            before, turn = turn, next_turn(engine, turn, 100 * seed + more)
            ends_inside = (before.request.num_tokens - 1) % n > 0
            if stays and ends_inside:
                assert found(turn) == at_end(before)
    assert bool(len(engine.half.engine_tails)) == stays
    assert not any(counters(engine).get(f"failures:{name}") for name in ("lookup", "store_plan"))
    engine.check_idle()


@pytest.mark.parametrize("extra", [LARGE, BACKGROUND], ids=["in-steps", "copied"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_several_turns_at_a_time(ranks: int, extra: Any, start: StartEngine, full: None) -> None:
    engine = watched(start, ranks=ranks, extra=extra)
    turns = [engine.add(tokens(N + 7 * chat, chat), 5) for chat in range(4)]
    engine.run()
    for turn in range(3):
        forget_host(engine)
        before = turns
        turns = [
            engine.add([*each.request.all_token_ids, *tokens(20, 50 * turn + chat)], 4)
            for chat, each in enumerate(turns)
        ]
        engine.run()
        for old, new in zip(before, turns, strict=True):
            if (old.request.num_tokens - 1) % N:
                assert found(new) == at_end(old)
    engine.check_idle()


def test_nothing_stays_while_the_host_holds_all(start: StartEngine) -> None:
    engine = watched(start)
    first = engine.generate(tokens(N + 3), max_tokens=3)
    second = next_turn(engine, first, 1)
    assert len(engine.half.engine_tails) == 0
    assert second.restored_tokens == first.request.num_tokens - 1 - N
    engine.check_idle()


def test_a_host_that_has_had_to_evict_is_full(start: StartEngine) -> None:
    engine = watched(start, extra={"host_gb": 0.0003})
    crowd(engine)
    first = engine.generate(tokens(N + 3, 1), max_tokens=3)
    crowd(engine, 1)
    forget_host(engine)
    assert found(next_turn(engine, first, 2)) == at_end(first)
    engine.check_idle()


@pytest.mark.parametrize("length", [9, N + 3])
def test_vllm_evicts_it_like_a_block_of_its_own(
    length: int, start: StartEngine, full: None
) -> None:
    engine = watched(start, requests=1, blocks=24)
    first = engine.generate(tokens(length), max_tokens=3)
    assert len(engine.half.engine_tails) == 1
    forget_host(engine)
    fills(engine)
    assert found(next_turn(engine, first, 1)) == (0, 0)
    engine.check_idle()


def test_a_deeper_end_in_the_host_is_loaded(start: StartEngine, full: None) -> None:
    engine = watched(start)
    first = engine.generate(tokens(N + 3), max_tokens=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "keeps_tails", False)
        second = next_turn(engine, first, 1)
    third = next_turn(engine, second, 2)
    assert found(third) == (N, second.request.num_tokens - 1 - N)
    engine.check_idle()


# ---- what is not found


@pytest.mark.parametrize("way", ["engine", "ours"])
def test_after_a_reset_nothing_of_it_is_found(way: str, start: StartEngine, full: None) -> None:
    engine = watched(start)
    first = engine.generate(tokens(N + 3), max_tokens=3)
    if way == "engine":
        assert engine.reset_prefix_cache()
    else:
        engine.half.reset()
    second = next_turn(engine, first, 1)
    assert second.local_tokens in (0, N)
    assert second.restored_tokens == (way == "engine" and first.request.num_tokens - 1)
    engine.check_idle()


def test_other_tokens_do_not_find_it(start: StartEngine, full: None) -> None:
    engine = watched(start)
    first = engine.generate(tokens(N + 9), max_tokens=3)
    forget_host(engine)
    prompt = [*first.request.all_token_ids, 7]
    prompt[N + 4] += 1
    assert engine.generate(prompt).local_tokens == N
    assert engine.generate([*first.request.all_token_ids][: N + 8]).local_tokens == N
    engine.check_idle()


def test_without_the_pages_before_it_nothing_is_gone_on_from(
    start: StartEngine, full: None
) -> None:
    engine = watched(start)
    first = engine.generate(tokens(2 * N + 3), max_tokens=3)
    pool = engine.scheduler.kv_cache_manager.block_pool
    pool.evict_blocks({b.block_id for b in pool.blocks if b.block_hash} - kept_blocks(engine))
    forget_host(engine)
    assert found(next_turn(engine, first, 1)) == (0, 0)
    assert not any(key.startswith("failures") for key in counters(engine))
    engine.check_idle()


@pytest.mark.parametrize("identity", [{"salt": "b"}, {"lora": LORA}])
def test_salts_and_adapters_have_their_own(
    identity: dict[str, Any], start: StartEngine, full: None
) -> None:
    engine = watched(start)
    plain = engine.generate(tokens(9), max_tokens=3)
    forget_host(engine)
    other = next_turn(engine, plain, 1, **identity)
    assert found(other) == (0, 0)
    forget_host(engine)
    assert found(next_turn(engine, other, 2, **identity)) == at_end(other)
    assert found(next_turn(engine, other, 2)) == at_end(plain)
    engine.check_idle()


def test_whoever_reads_no_cache_gets_none(start: StartEngine, full: None) -> None:
    engine = watched(start)
    first = engine.generate(tokens(N + 3), max_tokens=3)
    request = engine._request([*first.request.all_token_ids, 7], 2)
    request.skip_reading_prefix_cache = True
    again = engine.add([*first.request.all_token_ids, 7], 2)
    again.request.skip_reading_prefix_cache = True
    engine.run()
    assert found(again) == (0, 0)
    engine.check_idle()


@pytest.mark.parametrize("reason", ["beside", "events", "hint"])
def test_some_engines_and_requests_leave_none(
    reason: str, start: StartEngine, full: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason == "beside":
        monkeypatch.setattr(versions, "is_outermost", lambda transfer: False)
    engine = watched(start)
    if reason == "events":
        engine.scheduler.kv_cache_manager.block_pool.enable_kv_cache_events = True
        engine.half.engine_tails.bind(engine.scheduler.kv_cache_manager.block_pool)
    hints = {"store": False} if reason == "hint" else None
    engine.generate(tokens(N + 3), max_tokens=3)
    engine.generate(tokens(N + 3, 2), max_tokens=3, hints=hints)
    assert len(engine.half.engine_tails) == (reason == "hint")


# ---- what becomes of it


def free(engine: Engine) -> Sequence[int]:
    """vLLM's free blocks, in the order in which they will be used."""
    pool = engine.scheduler.kv_cache_manager.block_pool
    return [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]


def kept_blocks(engine: Engine) -> set[int]:
    """The blocks of tails."""
    pool = engine.scheduler.kv_cache_manager.block_pool
    return {
        block.block_id
        for block in pool.blocks
        if block.block_hash is not None and b"hybrid-pages" in block.block_hash
    }


def test_the_end_of_the_next_turn_gives_it_back(start: StartEngine, full: None) -> None:
    engine = watched(start, requests=1)
    first = engine.generate(tokens(N + 3), max_tokens=3)
    blocks = kept_blocks(engine)
    next_turn(engine, first, 1)
    assert not blocks & kept_blocks(engine)
    assert blocks <= set(free(engine)[: len(blocks) + 4]), "they are the next to be used"
    assert len(engine.half.engine_tails) == 1
    engine.check_idle()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_aborted_turn_leaves_it(asynchronous: bool, start: StartEngine, full: None) -> None:
    engine = watched(start, async_scheduling=asynchronous)
    first = engine.generate(tokens(N + 3), max_tokens=3)
    prompt = [*first.request.all_token_ids, *tokens(5, 1)]
    second = engine.add(prompt, 40)
    while len(second.tokens) < 3:
        engine.step()
    engine.abort(second)
    engine.run()
    forget_host(engine)
    assert found(engine.generate(prompt, max_tokens=2)) == at_end(first)
    engine.check_idle()


def test_it_is_taken_where_what_is_deeper_cannot_be_loaded(start: StartEngine, full: None) -> None:
    engine = watched(start)
    first = engine.generate(tokens(3 * N + 3), max_tokens=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "keeps_tails", False)
        second = next_turn(engine, first, 1)
    states = {
        block
        for group, recurrent in enumerate(engine.runners[0].memory.recurrent)
        if recurrent
        for block in engine.local_cache.blocks_of(group)
    }
    pool = engine.scheduler.kv_cache_manager.block_pool
    pool.evict_blocks(states - kept_blocks(engine))
    request = engine._request([*second.request.all_token_ids, *tokens(4, 2)], 2)
    tracked = engine.half._begin(request)
    tracked.skips_loads = True  # its load has failed
    engine.half._requests[request.request_id] = tracked
    manager = engine.scheduler.kv_cache_manager
    assert manager.get_computed_blocks_for_connector(request)[1] == at_end(first)[0]
    del engine.half._requests[request.request_id]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name", ["gdn", "two-exporting-kinds"])
def test_beside_what_vllm_keeps_inside_blocks(
    name: str, asynchronous: bool, start: StartEngine, full: None
) -> None:
    engine = watched(start, SHAPES[name], match_unit=4, async_scheduling=asynchronous)
    hits = 0
    for seed, length in enumerate((3, N - 1, N + 3, 2 * N + 8)):
        turn = engine.generate(tokens(length, seed), max_tokens=9)
        for more in range(3):
            forget_host(engine)
            before, turn = turn, next_turn(engine, turn, 100 * seed + more, max_tokens=9)
            hits += found(turn) == at_end(before)
    assert hits > 6
    engine.check_idle()


def test_one_that_several_go_on_from_stays(start: StartEngine, full: None) -> None:
    engine = watched(start)
    first = engine.generate(tokens(N + 3), max_tokens=3)
    forks = [engine.add([*first.request.all_token_ids, *tokens(4, fork)], 3) for fork in (1, 2)]
    engine.run()
    forget_host(engine)
    third = next_turn(engine, first, 3)
    assert [found(each) for each in (*forks, third)] == [at_end(first)] * 3
    engine.check_idle()


def test_the_same_answer_again_takes_its_place(start: StartEngine, full: None) -> None:
    engine = watched(start)
    for _ in range(3):
        first = engine.generate(tokens(N + 3), max_tokens=3)
        assert len(engine.half.engine_tails) == 1
    assert len(kept_blocks(engine)) == len(engine.plan.kv_cache_groups)
    assert found(next_turn(engine, first, 1)) == at_end(first)


def test_what_vllm_has_evicted_is_forgotten(
    start: StartEngine, full: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_tails, "_LEAST_SWEPT", 4)
    engine = watched(start, blocks=32, requests=2)
    for seed in range(60):
        engine.generate(tokens(20 + seed, seed), max_tokens=2)
        assert len(engine.half.engine_tails) <= 32
    engine.check_idle()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_least_pool_finishes_the_longest_prompts(
    asynchronous: bool, start: StartEngine, full: None
) -> None:
    """The blocks of a tail are held until they are copied, and then there may be too few."""
    engine = watched(start, pool=1.0, requests=1, async_scheduling=asynchronous)
    refused = []
    for short in range(4, 6 * N, N - 1):
        first = engine.generate(tokens(9), max_tokens=3)
        forget_host(engine)
        before = counters(engine).get("skipped_loads:never_admitted", 0)
        last = tokens(MAX_MODEL_LEN - first.request.num_tokens - short, short)
        turn = engine.add([*first.request.all_token_ids, *last], max_tokens=3)
        engine.run(limit=500)
        turn.check()
        refused.append(counters(engine).get("skipped_loads:never_admitted", 0) - before)
        assert turn.local_tokens == (0 if refused[-1] else at_end(first)[0])
    assert refused[0] == 1 and refused[-1] == 0
    engine.check_idle()


@pytest.mark.parametrize("how", ["aborted", "preempted"])
def test_however_a_request_ends(how: str, start: StartEngine, full: None) -> None:
    engine = watched(start, blocks=40 if how == "preempted" else 96)
    rng = random.Random(1)
    results = [engine.add(tokens(N + 3 + seed, seed), 3 * N) for seed in range(4)]
    for _ in range(60):
        engine.step()
        if how == "aborted" and rng.random() < 0.1:
            engine.abort(rng.choice(results))
    engine.run()
    forget_host(engine)
    for seed, result in enumerate(results):
        prompt = [*result.request.all_token_ids, *tokens(4, seed)]
        engine.generate(prompt, max_tokens=2)
    engine.check_idle()


@pytest.mark.parametrize("fault", ["evicted", "a page short", "another's"])
def test_a_wrong_block_is_noticed(
    fault: str, start: StartEngine, full: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the other tests compare can differ."""
    engine = watched(start, requests=1, blocks=24)
    first = engine.generate(tokens(N + 3), max_tokens=3)
    if fault == "evicted":
        monkeypatch.setattr(engine_tails._Kept, "is_there", True)
        fills(engine)
        engine.generate(tokens(N + 3)[:N], max_tokens=1)
    elif fault == "a page short":
        find = engine_tails.EngineTails.find

        def shorter(*args: Any) -> Any:
            tail = find(*args)
            local = tail.local._replace(tokens=tail.local.tokens - 1)
            return tail._replace(local=local)

        monkeypatch.setattr(engine_tails.EngineTails, "find", shorter)
    else:
        engine.generate([*tokens(N), *tokens(6, 5)], max_tokens=3)

        def any_text(tails: Any, tracked: Any, whole: int, stem: Any, most: int) -> Any:
            return reversed(tails._kept[whole][stem].items())

        monkeypatch.setattr(engine_tails.EngineTails, "_fitting", any_text)
    forget_host(engine)
    with pytest.raises((AssertionError, WrongCached)):
        next_turn(engine, first, 1)
