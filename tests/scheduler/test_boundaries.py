"""Which pages and states are stored at which boundary, and which of them come back."""

from __future__ import annotations

import random

import pytest

from simulation.copies import Script
from simulation.engine import Engine, StartEngine
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import GDN, SHAPES


def tokens(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(500) for _ in range(count)]


def entries_of(engine: Engine, script: Script, kind: str, class_kind: str) -> int:
    """How many entries of a class of groups went through jobs of a kind."""
    classes = engine.connector.scheduler.connection.geometry.classes
    indexes = {item.index for item in classes if item.kind == class_kind}
    return sum(entry[0] in indexes for job in script.of(kind) for entry in job)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_resent_prompt_is_restored_up_to_its_last_boundary_or_where_vllm_keeps_a_state(
    name: str, asynchronous: bool, start: StartEngine
) -> None:
    engine = start(SHAPES[name], async_scheduling=asynchronous)
    prompt = tokens(9 * N + 6)
    assert engine.generate(prompt).restored_tokens == 0
    assert engine.reset_prefix_cache()
    again = engine.generate(prompt)
    n, grid = engine.block_tokens, engine.half.connection.grid
    kept = grid.kept_inside(len(prompt)) if engine.shape.has_tails and not grid.no_tails else 0
    last = max((len(prompt) - 1) // n * n, kept)
    assert (again.local_tokens, again.restored_tokens) == (0, last)
    engine.check_idle()


def test_a_prefill_across_boundaries_stores_no_state_for_interior_ones(
    start: StartEngine, script: Script
) -> None:
    engine = start(batched_tokens=200)
    engine.generate(tokens(6 * N + 4), max_tokens=1)
    stats = engine.cache.stats()
    assert (stats["pages"], stats["checkpoints"]) == (6 + 1, 1 + 1), "and the end of the prompt"
    assert engine.reset_prefix_cache()
    inside = engine.generate(tokens(4 * N + 4), max_tokens=1)
    assert inside.restored_tokens == 0
    counters = engine.connector.scheduler.stats()["counters"]
    assert counters["missing_state_tokens"] == 4 * N


def test_a_fork_leaves_a_state_where_it_forked(start: StartEngine) -> None:
    engine = start(batched_tokens=200)
    shared = tokens(4 * N + 3)
    engine.generate(shared + tokens(3 * N, 1))
    engine.generate(shared + tokens(3 * N, 2))
    assert engine.reset_prefix_cache()
    assert engine.generate(shared + tokens(3 * N, 3)).restored_tokens == len(shared)


def test_a_deeper_tail_is_loaded_behind_a_local_hit(start: StartEngine, script: Script) -> None:
    engine = start()
    prompt = tokens(9 * N)
    engine.generate(prompt)
    engine.generate(prompt[: 6 * N] + tokens(5, 1))
    assert engine.reset_prefix_cache()
    engine.generate(prompt[: 6 * N])
    before = entries_of(engine, script, "load", "attention")
    tail = engine.generate(prompt[: 6 * N] + tokens(5, 2))
    assert (tail.local_tokens, tail.restored_tokens) == (5 * N, N)
    assert entries_of(engine, script, "load", "attention") == before + 1
    engine.check_idle()


# Known report: vLLM#51102.
def test_the_last_block_of_an_exact_multiple_is_recomputed(start: StartEngine) -> None:
    engine = start()
    prompt = tokens(6 * N)
    engine.generate(prompt)
    assert engine.reset_prefix_cache()
    assert engine.generate(prompt).restored_tokens == 5 * N
    engine.check_idle()


def test_a_known_state_at_the_prompts_very_end_is_not_loaded(start: StartEngine) -> None:
    engine = start()
    prompt = tokens(6 * N + 1)
    engine.generate(prompt, max_tokens=1)
    assert engine.cache.stats()["checkpoints"] == 2  # at 6 * N, and at the prompt's end
    assert engine.reset_prefix_cache()
    assert engine.generate(prompt[: 6 * N]).restored_tokens == 0
    assert engine.reset_prefix_cache()
    assert engine.generate(prompt).restored_tokens == 6 * N


def test_prompts_of_a_block_resume_where_shorter_ones_ended(start: StartEngine) -> None:
    engine, before = start(), 0
    for length in (1, 2, N - 1, N):
        engine.generate(tokens(length), max_tokens=3)
        assert engine.reset_prefix_cache()
        assert engine.generate(tokens(length), max_tokens=3).restored_tokens == before
        before = length
    engine.check_idle()


def test_a_boundary_offered_twice_is_stored_once(start: StartEngine, script: Script) -> None:
    engine = start(extra={"store_mode": "background"})
    engine.generate([7], max_tokens=1)  # with which the ranks report
    prompt = tokens(5 * N + 2)
    engine.generate(prompt)
    stored = entries_of(engine, script, "store", "recurrent")
    resident = engine.cache.stats()["checkpoints"]
    for _ in range(3):
        assert engine.reset_prefix_cache()
        assert engine.generate(prompt).restored_tokens == 5 * N
    assert entries_of(engine, script, "store", "recurrent") == stored
    assert engine.cache.stats()["checkpoints"] == resident


def test_a_loaded_state_is_not_stored_under_the_boundary_where_the_next_step_ends(
    start: StartEngine,
) -> None:
    engine = start(batched_tokens=2 * N)
    prompt = tokens(8 * N + 4)
    engine.generate(prompt[: 3 * N + 1])
    assert engine.reset_prefix_cache()
    assert engine.generate(prompt).restored_tokens == 3 * N + 1
    for blocks in (8, 7, 6, 5, 4):  # whatever is known between must be right
        assert engine.reset_prefix_cache()
        engine.generate(prompt[: blocks * N + 1])
    engine.check_idle()


def test_window_pages_come_back_only_as_far_as_the_window_reaches(
    start: StartEngine, script: Script
) -> None:
    engine = start(SHAPES["gdn-window"])
    prompt = tokens(9 * N + 1)
    engine.generate(prompt)
    assert engine.reset_prefix_cache()
    assert engine.generate(prompt).restored_tokens == 9 * N
    assert entries_of(engine, script, "load", "attention") == 9
    assert entries_of(engine, script, "load", "window") == 3  # 40 tokens
    engine.check_idle()


def test_hashes_that_are_finer_than_blocks_are_those_of_blocks(start: StartEngine) -> None:
    engine = start(match_unit=4)
    prompt = tokens(6 * N + 10)
    engine.generate(prompt)
    assert engine.reset_prefix_cache()
    assert engine.generate(prompt).restored_tokens == 6 * N + 8, "a multiple of the unit"
    local = engine.generate(prompt + tokens(7, 1))
    assert (local.local_tokens, local.restored_tokens) == (6 * N, 10)
    engine.check_idle()


def test_a_chunk_limit_below_a_block_still_restores(start: StartEngine) -> None:
    engine = start(batched_tokens=N // 2)
    prompt = tokens(4 * N + 3)
    engine.generate(prompt)
    assert engine.reset_prefix_cache()
    assert engine.generate(prompt).restored_tokens == 4 * N
    engine.check_idle()


def test_real_bytes_alone_are_stored(start: StartEngine) -> None:
    engine = start()
    sizes = {
        item.kind: item.entry_bytes
        for item in engine.connector.scheduler.connection.geometry.classes
    }
    state, page = 6 * (3 * 40 * 2 + 2 * 8 * 8 * 4), 2 * N * 2 * 16 * 2
    assert sizes == {"attention": page, "recurrent": state}
    engine.generate(tokens(3 * N + 1), max_tokens=1)
    counters = engine.connector.scheduler.stats()["counters"]
    assert counters["stored_bytes"] == 3 * page + state + (page // N + state), "and one token more"
    assert GDN.block_tokens == N
