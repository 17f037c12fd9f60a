"""Where vLLM has the attention pages and not the state, the state is loaded, and what pages vLLM
lacks."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import pytest

from simulation.copies import Script
from simulation.engine import Engine, Result, StartEngine
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from test_boundaries import tokens
from test_counts import counters

pytestmark = pytest.mark.every_version

PROMPT = tokens(6 * N + 3)
ALL: dict[str, Any] = {"checkpoint_mode": "all", "host_gb": 0.02}


def forget_states(engine: Engine) -> None:
    """vLLM's own prefix cache loses the states; the pages stay."""
    blocks: set[int] = set()
    for group, recurrent in enumerate(engine.runners[0].memory.recurrent):
        if recurrent:
            blocks.update(engine.local_cache.blocks_of(group))
    engine.scheduler.kv_cache_manager.block_pool.evict_blocks(blocks)


def watched(start: StartEngine, *args: Any, **options: Any) -> Engine:
    engine = start(*args, **{"extra": ALL} | options)
    engine.watches_local_cache = True
    return engine


def loaded(engine: Engine, prompt: list[int], **options: Any) -> tuple[Result, dict[str, float]]:
    """A request's result, and how many entries of each kind were loaded for it."""
    before = counters(engine)
    result = engine.generate(prompt, **options)
    sizes = {
        "pages": next(c for c in engine.half.connection.geometry.classes if c.kind == "attention"),
        "checkpoints": engine.half.connection.geometry.classes[-1],
    }
    after = counters(engine)
    keys = {kind: f"loaded_bytes:{kind}" for kind in sizes}
    return result, {
        kind: (after.get(key, 0) - before.get(key, 0)) / sizes[kind].entry_bytes
        for kind, key in keys.items()
    }


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name", ["gdn", "mamba2"])
def test_the_next_turn_loads_a_state_and_the_page_that_it_ends_in(
    name: str, asynchronous: bool, ranks: int, start: StartEngine
) -> None:
    engine = watched(start, SHAPES[name], async_scheduling=asynchronous, ranks=ranks)
    first = engine.generate(PROMPT, N + 6)
    end = len(PROMPT) + N + 5
    forget_states(engine)
    result, entries = loaded(engine, [*PROMPT, *first.tokens, *tokens(N, 2)])
    assert (result.local_tokens, result.restored_tokens) == (end // N * N, end % N)
    assert entries == {"pages": 1, "checkpoints": 1}
    assert not any("reloaded" in key for key in counters(engine))
    engine.check_idle()


def test_a_state_at_the_end_of_the_pages_is_loaded_with_the_last_of_them(
    start: StartEngine,
) -> None:
    engine = watched(start)
    engine.generate(PROMPT[: 4 * N + 1], 1)
    forget_states(engine)
    result, entries = loaded(engine, [*PROMPT[: 4 * N], *tokens(N, 2)])
    assert (result.local_tokens, result.restored_tokens) == (3 * N, N)
    assert entries == {"pages": 1, "checkpoints": 1}
    assert counters(engine)["reloaded_tokens:last_block"] == N
    engine.check_idle()


def test_a_state_before_the_end_of_the_pages_is_loaded_with_one_of_them(
    start: StartEngine,
) -> None:
    engine = watched(start)
    engine.generate(PROMPT[: 3 * N + 5], 1)  # the last state that is kept
    with mock.patch.object(engine.half.connection, "may_store", False):
        engine.generate(PROMPT, 1)
    forget_states(engine)
    again = engine.add([*PROMPT[: 5 * N], *tokens(N, 2)])
    engine.run()
    assert again.local_tokens + again.restored_tokens >= 3 * N
    assert again.restored_tokens <= N
    engine.check_idle()


def test_a_state_that_vllm_has_is_not_loaded(start: StartEngine) -> None:
    engine = watched(start)
    engine.generate(PROMPT, 1)
    result, entries = loaded(engine, [*PROMPT[: 6 * N], *tokens(N, 2)])
    assert (result.local_tokens, result.restored_tokens) == (6 * N, 0)
    assert entries == {"pages": 0, "checkpoints": 0}
    engine.check_idle()


@pytest.mark.parametrize("fault", ["submit", "torn", "after"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_state_that_cannot_be_loaded_is_computed_from_the_joint_hit(
    asynchronous: bool, fault: str, start: StartEngine, script: Script
) -> None:
    engine = watched(start, async_scheduling=asynchronous)
    first = engine.generate(PROMPT, N + 6)
    forget_states(engine)
    script.fault = lambda kind: fault if kind == "load" else None
    result = engine.generate([*PROMPT, *first.tokens, *tokens(N, 2)])
    assert (result.local_tokens, result.restored_tokens) == (0, 0)
    script.fault = lambda kind: None
    assert engine.generate([*PROMPT, *first.tokens, *tokens(N, 2)], 2).local_tokens >= 8 * N
    engine.check_idle()


def test_what_cannot_be_leased_is_asked_for_again_behind_the_joint_hit(start: StartEngine) -> None:
    engine = watched(start)
    first = engine.generate(PROMPT, N + 6)
    forget_states(engine)
    loads = engine.half.connection.loads
    asked: list[int] = []
    acquire = loads._acquire

    def once(tracked: Any, place: Any, local: int) -> int:
        asked.append(local)
        return 0 if len(asked) == 1 else acquire(tracked, place, local)

    with mock.patch.object(loads, "_acquire", once):
        result = engine.generate([*PROMPT, *first.tokens, *tokens(N, 2)])
    assert asked == [7 * N, 0]
    assert result.restored_tokens == len(PROMPT) + N + 5
    assert counters(engine)["reloaded_tokens:refused"] == 7 * N
    engine.check_idle()


def test_beside_other_connectors_the_joint_hit_counts(not_alone: None, start: StartEngine) -> None:
    engine = watched(start)
    engine.generate(PROMPT[: 4 * N + 1], 1)
    forget_states(engine)
    result = engine.generate([*PROMPT[: 4 * N], *tokens(N, 2)])
    assert (result.local_tokens, result.restored_tokens) == (0, 4 * N)
    assert counters(engine)["reloaded_tokens:beside"] == 4 * N
    engine.check_idle()


def test_windows_are_loaded_behind_the_joint_hit(start: StartEngine) -> None:
    engine = watched(start, SHAPES["gdn-window"])
    engine.generate(PROMPT[: 4 * N + 1], 1)
    forget_states(engine)
    result = engine.generate([*PROMPT[: 4 * N], *tokens(N, 2)])
    assert (result.local_tokens, result.restored_tokens) == (0, 4 * N)
    assert counters(engine)["reloaded_tokens:window"] == 4 * N
    engine.check_idle()


@pytest.mark.parametrize("seed", range(6))
def test_random_conversations_that_lose_states_are_right(
    seed: int, start: StartEngine, script: Script
) -> None:
    rng = random.Random(seed)
    options: dict[str, Any] = {
        "async_scheduling": rng.random() < 0.5,
        "ranks": rng.choice((1, 1, 2)),
        "blocks": rng.choice((30, 96)),
        "batched_tokens": rng.choice((N, 3 * N + 5, 128)),
        "runner_version": rng.choice((1, 2)),
        "retention": rng.choice((0, None)),
        "match_unit": rng.choice((None, N // 2)),
        "extra": {"checkpoint_mode": rng.choice(("adaptive", "all")), "host_gb": 0.02},
    }
    script.delay = lambda kind: rng.choice((0, 0, 3))
    script.fault = lambda kind: "torn" if kind == "load" and rng.random() < 0.1 else None
    engine = watched(start, SHAPES[rng.choice(("gdn", "mamba2"))], **options)
    roots = [tokens(rng.randint(1, 4 * N), seed * 10 + index) for index in range(3)]
    running: list[Result] = []
    for turn in range(24):
        said = rng.choice(roots)
        if running and rng.random() < 0.6:
            done = rng.choice(running)
            said = [*done.request.prompt_token_ids, *done.tokens]
        more = tokens(rng.randint(1, N), seed * 100 + turn)
        running.append(engine.add([*said, *more][: 12 * N], rng.randint(1, N + 3)))
        for _ in range(rng.choice((0, 3, 40))):
            engine.step()
        if rng.random() < 0.5:
            forget_states(engine)
        if rng.random() < 0.1:
            engine.abort(rng.choice(running))
    engine.run()
    engine.check_idle()
