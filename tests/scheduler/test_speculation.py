"""Speculative decoding in `align` mode: what is restored is right, and drafts are never stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from hybrid_pages.vllm.connector import HybridPagesConnector
from hybrid_pages.vllm.layout.grid import BlockGrid
from hybrid_pages.vllm.scheduler.engine_steps import Steps
from hybrid_pages.vllm.scheduler.requests.keys import Keys
from simulation.audit import WrongEntry
from simulation.config import MAX_MODEL_LEN
from simulation.engine import Engine, StartEngine
from simulation.runner import Mismatch
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from simulation.speculation import METHODS, Speculation
from test_boundaries import tokens
from test_checkpoints import visit
from test_states import talk

ROOM = {"host_gb": 0.02}
ALL = ROOM | {"checkpoint_mode": "all"}
SOME = ["gdn", "mamba2", "mamba2-window", "gdn-window", "kda-latent", "attention-only"]
DRAFTS = [1, 3, 7]
ENGINES = [(2, True), (2, False), (1, True), (1, False)]
"""Versions of the model runner, with asynchronous scheduling and without. Both schedulers give both
runners other work, and only vLLM 0.32's second runner collects results behind the save hook."""
LENGTHS = (9 * N + 6, 9 * N, 5 * N + 1, 4 * N - 1)


def some_engines(*what: object) -> list[dict[str, Any]]:
    """What vLLM runs by default, and another one, so that every kind gets each somewhere."""
    other = ENGINES[1 + sum(map(len, map(str, what))) % 3]
    return [{"runner_version": v, "async_scheduling": a} for v, a in (ENGINES[0], other)]


def natural_end(engine: Engine, length: int) -> int:
    """The last boundary of a prompt where vLLM itself makes a state."""
    states = any(engine.runners[0].memory.recurrent)
    if states and engine.half.connection.grid.drops_last_block:
        return (length // N - 1) * N
    return (length - 1) // N * N


@pytest.mark.parametrize("drafts", DRAFTS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SOME)
def test_the_second_send_restores_all_that_the_first_one_left_a_state_for(
    name: str, method: str, drafts: int, start: StartEngine
) -> None:
    for options in some_engines(name, method, "x" * drafts):
        engine = start(SHAPES[name], speculation=Speculation(method, drafts), extra=ROOM, **options)
        for seed, length in enumerate(LENGTHS):
            prompt = tokens(length, seed)
            assert visit(engine, prompt) == 0
            assert visit(engine, prompt) == natural_end(engine, length), length
        engine.check_idle()


@pytest.mark.parametrize("retention", [0, None])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["gdn", "mamba2-window"])
def test_a_next_turn_restores_at_least_what_vllm_would_have_kept(
    name: str, method: str, retention: int | None, start: StartEngine
) -> None:
    for options in some_engines(name, method, retention):
        options |= {"retention": retention, "speculation": Speculation(method, 3)}
        with Engine(SHAPES[name], **options) as alone:
            kept = talk(alone, 3, forget=False)
        for mode in ("align", "all", "adaptive"):
            engine = start(SHAPES[name], extra=ROOM | {"checkpoint_mode": mode}, **options)
            restored = talk(engine, 3, forget=True)
            assert all(ours >= theirs for ours, theirs in zip(restored, kept, strict=True)), (
                mode,
                restored,
                kept,
            )
            engine.check_idle()


def boundaries_of_an_answer(engine: Engine) -> list[int]:
    """Which boundaries of an answer can be resumed from, in blocks.

    Its last step reaches none of them: such a state is stored only if vLLM keeps it.
    """
    prompt = tokens(2 * N + 3)
    result = engine.generate(prompt, 6 * N + 9)
    engine.check_idle()
    return [depth for depth in engine.depths(prompt + result.tokens) if depth > 2]


@pytest.mark.parametrize("drafts", DRAFTS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["gdn", "mamba2"])
def test_mode_all_keeps_every_boundary_of_an_answer(
    name: str, method: str, drafts: int, start: StartEngine
) -> None:
    for options in some_engines(name, method, "x" * drafts):
        engine = start(SHAPES[name], speculation=Speculation(method, drafts), extra=ALL, **options)
        assert boundaries_of_an_answer(engine) == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(("budget", "match_unit"), [(17, None), (40, 4), (200, 4)])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["gdn", "mamba2"])
def test_finer_hashes_small_steps_and_two_ranks_change_no_byte(
    name: str, method: str, match_unit: int | None, budget: int, start: StartEngine
) -> None:
    engine = start(
        SHAPES[name],
        speculation=Speculation(method, 3),
        batched_tokens=budget,
        match_unit=match_unit,
        ranks=2,
        extra=ALL,
    )
    for seed, length in enumerate(LENGTHS):
        prompt = tokens(length, seed)
        assert visit(engine, prompt) == 0
        assert visit(engine, prompt) >= natural_end(engine, length)
    engine.check_idle()


@pytest.mark.parametrize("method", METHODS)
def test_drafts_are_accepted_and_rejected(method: str, start: StartEngine) -> None:
    """Otherwise nothing here would show anything."""
    engine = start(speculation=Speculation(method, 3), extra=ROOM)
    engine.generate(tokens(N), 100)
    seen = [s.spec_decoding_stats for s in engine.statistics if s.spec_decoding_stats is not None]
    drafted = sum(each.num_draft_tokens for each in seen)
    accepted = sum(each.num_accepted_tokens for each in seen)
    assert 20 < accepted < drafted - 20


# pages of draft layers


@pytest.mark.parametrize("name", ["gdn", "attention-only"])
@pytest.mark.parametrize("method", METHODS)
def test_a_block_is_restored_before_the_token_that_its_draft_layers_have_read(
    name: str, method: str, start: StartEngine
) -> None:
    """One block further than vLLM, if the next token is the same; no other prompt gets that block,
    since its last draft K/V depends on that token."""
    engine = start(SHAPES[name], speculation=Speculation(method, 3), extra=ALL)
    shared = tokens(4 * N)
    first = [*shared, 1, *tokens(2 * N, 1)]
    for end in (4 * N + 9, 5 * N + 3):  # with MTP, steps end at 3 N and 4 N
        visit(engine, first[:end])
    same, other = [*shared, 1, *tokens(9, 2)], [*shared, 2, *tokens(9, 3)]
    assert visit(engine, same) == 4 * N
    read = method in ("mtp", "eagle3")
    assert visit(engine, other) == (4 * N if not read else 3 * N)
    engine.check_idle()


def go_on_from_a_block_of_another(engine: Engine) -> None:
    """vLLM knows a block by its tokens alone: the third prompt gets a block of the first one."""
    shared = tokens(4 * N)
    for seed in (1, 2, 2):
        engine.cache.clear()
        engine.generate(shared + [seed] * (2 * N + 3))
    engine.check_idle()


def test_pages_of_vllms_own_hits_are_not_stored(start: StartEngine) -> None:
    engine = start(SHAPES["attention-only"], speculation=Speculation("mtp", 3), extra=ROOM)
    go_on_from_a_block_of_another(engine)


def test_stores_of_an_idle_engine_end(start: StartEngine) -> None:
    for runner, asynchronous in ENGINES:
        engine = start(
            runner_version=runner,
            async_scheduling=asynchronous,
            speculation=Speculation("mtp", 3),
            extra=ALL,
        )
        engine.generate(tokens(2 * N), 3 * N)
        assert not engine.half.storing
        engine.check_idle()


# what the rules are for: each of them broken


def everything(start: StartEngine, method: str, name: str = "gdn", **options: Any) -> None:
    for runner, asynchronous in ENGINES:
        engine = start(
            SHAPES[name],
            runner_version=runner,
            async_scheduling=asynchronous,
            speculation=Speculation(method, 3),
            extra=ALL,
            **options,
        )
        for seed in range(3):
            prompt = tokens(3 * N + 5 * seed, seed)
            said = engine.generate(prompt, 5 * N).tokens
            engine.reset_prefix_cache()
            engine.generate(prompt + said + tokens(3, 9), 2 * N)
        engine.check_idle()
        assert not [key for key in engine.half.stats()["counters"] if key.startswith("failures")]


@pytest.mark.parametrize("method", METHODS)
def test_what_the_broken_rules_are_tried_on_is_right(method: str, start: StartEngine) -> None:
    everything(start, method)
    everything(start, method, "mamba2", match_unit=4)


def see_shifted_states(engine: Engine, calls: set[str], columns: int) -> None:
    """Makes the connector see the tables of states so many columns further on, in some calls."""
    half = engine.half
    stores, tables = half.connection.stores, half.connection.stores.tables
    recurrent = {
        half.connection.grid.groups[group].table
        for item in half.connection.geometry.classes
        if item.kind == "recurrent"
        for group in item.groups
    }
    now = ""

    def moved(ids: Sequence[Any]) -> list[Any]:
        return [*ids[columns:], 0] if columns > 0 else [0, *ids]

    def seen(name: str) -> list[Any]:
        shifts = now in calls
        found = enumerate(tables(name))
        return [moved(ids) if shifts and table in recurrent else ids for table, ids in found]

    def within(owner: Any, call: str) -> None:
        right = getattr(owner, call)

        def wrong(*given: Any) -> Any:
            nonlocal now
            now = call
            return right(*given)

        setattr(owner, call, wrong)

    stores.tables = seen
    within(half._steps, "reported")
    within(half._steps, "stores")


@pytest.mark.parametrize("call", ["reported", "stores"])
def test_a_state_from_a_running_or_a_scratch_column_is_noticed(
    call: str, start: StartEngine
) -> None:
    def begin(*given: Any, **settings: Any) -> Engine:
        engine = start(*given, **settings)
        see_shifted_states(engine, {call}, 1)
        return engine

    with pytest.raises(AssertionError):
        everything(begin, "ngram")
        everything(begin, "ngram", "kda-latent")


def test_a_column_too_early_has_no_state(start: StartEngine) -> None:
    engine = start(speculation=Speculation("mtp", 3), extra=ALL)
    see_shifted_states(engine, {"reported", "stores"}, -1)
    assert boundaries_of_an_answer(engine) == []
    assert engine.half.stats()["counters"]["skipped_entries:partial_state"] >= 6


def test_a_step_too_late_most_states_are_gone(
    start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the next step is planned, vLLM has freed the column."""
    engine = start(speculation=Speculation("mtp", 7), extra=ALL)
    steps = engine.half._steps
    report, plan = steps.reported, steps.stores

    def late(output: Any) -> Any:
        jobs = plan(output)
        report()
        return jobs

    monkeypatch.setattr(steps, "reported", lambda: None)
    monkeypatch.setattr(steps, "stores", late)
    assert len(boundaries_of_an_answer(engine)) < 6


def test_stores_before_drafting_are_noticed(
    start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most runners collect results first: copies must not start there."""
    save = HybridPagesConnector.wait_for_save
    collect = HybridPagesConnector.get_transfer_results

    def early(self: Any, finished: set[str]) -> Any:
        save(self)
        return collect(self, finished)

    monkeypatch.setattr(HybridPagesConnector, "wait_for_save", lambda self: None)
    monkeypatch.setattr(HybridPagesConnector, "get_transfer_results", early)
    with pytest.raises(AssertionError):
        everything(start, "mtp")


def test_keys_without_the_next_token_are_noticed(
    start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Keys.__init__

    def blind(self: Keys, grid: BlockGrid) -> None:
        make(self, dataclasses.replace(grid, lookahead=0))
        self.grid = grid

    monkeypatch.setattr(Keys, "__init__", blind)
    engine = start(SHAPES["attention-only"], speculation=Speculation("mtp", 3), extra=ROOM)
    shared = tokens(4 * N)
    with pytest.raises(AssertionError):
        for seed in (1, 2, 1):
            visit(engine, shared + [seed] * (2 * N + 3))
        engine.check_idle()


def test_stores_of_vllms_own_hits_are_noticed(
    start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(SHAPES["attention-only"], speculation=Speculation("mtp", 3), extra=ROOM)
    scheduled = engine.half._steps._scheduled

    def forgetful(tracked: Any, first: int) -> None:
        scheduled(tracked, first)
        tracked.run.offered_blocks = 0

    monkeypatch.setattr(engine.half._steps, "_scheduled", forgetful)
    with pytest.raises(AssertionError):
        go_on_from_a_block_of_another(engine)


# draft layers that vLLM leaves out


def beside_the_longest(engine: Engine) -> list[int]:
    """Two requests run beside one that ends at the longest sequence."""
    longest = engine.add(tokens(MAX_MODEL_LEN - 2 * N, 1), 2 * N)
    others = [engine.add(tokens(3 * N + seed, seed), 4 * N) for seed in (2, 3)]
    engine.run()
    for result in (longest, *others):
        result.check()
    engine.check_idle()
    return [len(engine.depths(each.request.all_token_ids)) for each in (longest, *others)]


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("method", ["mtp", "draft_model"])
@pytest.mark.parametrize("name", ["attention-only", "gdn"])
def test_what_draft_layers_have_left_out_is_not_stored(
    name: str,
    method: str,
    asynchronous: bool,
    start: StartEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: dict[str, Any] = {
        "shape": SHAPES[name],
        "speculation": Speculation(method, 3),
        "async_scheduling": asynchronous,
        "extra": ALL,
    }
    whole = beside_the_longest(start(runner_version=2, **options))
    engine = start(runner_version=1, **options)
    found = beside_the_longest(engine)
    assert all(0 < less <= all_of_it for less, all_of_it in zip(found, whole, strict=True))
    assert sum(found) < sum(whole)
    assert engine.half.stats()["counters"]["skipped_entries:stale"]
    monkeypatch.setattr(Steps, "_is_drafted", lambda *_: True)
    with pytest.raises((WrongEntry, Mismatch)):
        beside_the_longest(start(runner_version=1, **options))
