"""Data parallelism of a mixture of experts: ranks that step together, each with its own cache.

An idle rank runs dummy batches beside the others; a rank whose requests wait for loads does both.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hybrid_pages.vllm.connector import HybridPagesConnector
from simulation.copies import Copies, Script, random_script
from simulation.data_parallel import DataParallel, Hang, Rank
from simulation.engine import Result, connector
from simulation.memory import LayerMemory
from simulation.runner import Mismatch, Runner
from simulation.shapes import BLOCK_TOKENS as N
from simulation.speculation import Speculation
from simulation.workload import Mix, Workload

StartRanks = Callable[..., DataParallel]

MODES = [
    pytest.param(dict(async_scheduling=later, runner_version=version), id=f"{name}-v{version}")
    for name, later in (("synchronous", False), ("asynchronous", True))
    for version in (1, 2)
]
PROMPTS = [list(range(1, 4 * N + 6)), list(range(200, 200 + 5 * N + 3))]
LATE = 40


@pytest.fixture
def start_ranks(script: Script) -> Iterator[StartRanks]:
    """Starts ranks; keyword arguments are DataParallel's, `extra` the connector's settings."""
    groups: list[DataParallel] = []

    def start(*, extra: dict[str, Any] | None = None, **options: Any) -> DataParallel:
        transfer = connector(**{"store_mode": "background", **(extra or {})})
        groups.append(DataParallel(transfer=transfer, **options))
        return groups[-1]

    yield start
    for group in groups:
        group.end()


def late(script: Script, kind: str, polls: int = LATE) -> None:
    script.delay = lambda found: polls if found == kind else 0


def fill(group: DataParallel) -> None:
    """Stores each rank's prompt, and has vLLM forget it."""
    for rank, prompt in zip(group.ranks, PROMPTS, strict=True):
        rank.add(prompt)
    group.run()
    group.check_idle()
    for rank in group.ranks:
        rank.forget_local()


@pytest.mark.parametrize("in_process", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_each_rank_restores_what_it_has_stored_and_nothing_of_others(
    start_ranks: StartRanks, mode: dict[str, Any], in_process: bool
) -> None:
    group = start_ranks(in_process=in_process, **mode)
    fill(group)
    crossed = [
        rank.add(prompt) for rank, prompt in zip(group.ranks, reversed(PROMPTS), strict=True)
    ]
    group.run()
    assert [result.restored_tokens for result in crossed] == [0, 0]
    for rank in group.ranks:
        rank.forget_local()
    results = [rank.add(prompt) for rank, prompt in zip(group.ranks, PROMPTS, strict=True)]
    group.run()
    assert [result.restored_tokens for result in results] == [4 * N, 5 * N]
    group.check_idle()
    halves = [rank.half for rank in group.ranks]
    assert len({half.name for half in halves}) == 2
    assert len({half.connection.arena.path for half in halves}) == 2


@pytest.mark.parametrize("mode", MODES)
def test_ranks_of_several_workers_restore(start_ranks: StartRanks, mode: dict[str, Any]) -> None:
    group = start_ranks(ranks=2, **mode)
    fill(group)
    results = [rank.add(prompt) for rank, prompt in zip(group.ranks, PROMPTS, strict=True)]
    group.run()
    assert [result.restored_tokens for result in results] == [4 * N, 5 * N]
    group.check_idle()


@pytest.mark.parametrize("in_process", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_stores_under_way_when_a_wave_ends_are_published_without_another_pass(
    start_ranks: StartRanks, script: Script, mode: dict[str, Any], in_process: bool
) -> None:
    """The ranks agree to pause when no request is left; a rank that stores steps on alone."""
    late(script, "store", 400)
    group = start_ranks(in_process=in_process, **mode)
    first, other = group.ranks
    first.add(PROMPTS[0])
    storing_after_the_wave = 0
    passes: set[tuple[int, int]] = set()
    while group.step():
        if first.results["r0"].done and group.paused:
            storing_after_the_wave += first.half.storing
            passes.add((first.passes + first.dummies, other.passes + other.dummies))
    assert storing_after_the_wave > 100
    assert len(passes) <= 1
    assert not first.half.storing
    assert first.depths(PROMPTS[0])[-1:] == [4]
    group.check_idle()


@pytest.mark.parametrize("mode", MODES)
def test_a_wave_starts_while_stores_of_the_one_before_are_under_way(
    start_ranks: StartRanks, script: Script, mode: dict[str, Any]
) -> None:
    late(script, "store", 400)
    group = start_ranks(**mode)
    first, other = group.ranks
    first.add(PROMPTS[0])
    while not (first.results["r0"].done and group.paused and first.half.storing):
        assert group.step()
    dummies = first.dummies
    result = other.add(PROMPTS[1], 12)
    while not result.done:
        assert group.step()
    assert first.dummies > dummies
    group.run()
    assert [rank.depths(prompt)[-1] for rank, prompt in zip(group.ranks, PROMPTS, strict=True)] == [
        4,
        5,
    ]
    group.check_idle()


@pytest.mark.parametrize("busy", [False, True], ids=["alone", "beside a busy rank"])
@pytest.mark.parametrize("mode", MODES)
def test_a_request_that_waits_for_its_load_is_restored_between_dummy_batches(
    start_ranks: StartRanks, script: Script, mode: dict[str, Any], busy: bool
) -> None:
    group = start_ranks(**mode)
    fill(group)
    late(script, "load")
    first, other = group.ranks
    before = [(rank.passes, rank.dummies) for rank in group.ranks]
    decoding = other.add(PROMPTS[0][:N], 3 * LATE) if busy else None
    result = first.add(PROMPTS[0])
    group.run()
    assert result.restored_tokens == 4 * N
    if decoding is not None:
        decoding.check()
    passes, dummies = (
        [now - then for now, then in zip((rank.passes, rank.dummies), past, strict=True)]
        for rank, past in zip(group.ranks, before, strict=True)
    )
    assert first.dummies - before[0][1] >= LATE - 2, "steps that only load are followed by dummies"
    assert sum(passes) == sum(dummies), "one pass of each rank for one of every other"
    if not busy:
        assert other.passes == before[1][0]
    group.check_idle()


@pytest.mark.parametrize("mode", MODES)
def test_no_step_waits_for_a_load_that_other_ranks_would_wait_for_too(
    start_ranks: StartRanks,
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
    mode: dict[str, Any],
) -> None:
    group = start_ranks(**mode)
    fill(group)
    late(script, "load")
    monkeypatch.delattr(Copies, "wait")
    result = group.ranks[0].add(PROMPTS[0])
    group.run()
    assert result.restored_tokens == 4 * N


@pytest.mark.parametrize("mode", MODES)
def test_a_load_that_fails_between_dummy_batches_ends_in_recompute(
    start_ranks: StartRanks, script: Script, mode: dict[str, Any]
) -> None:
    group = start_ranks(**mode)
    fill(group)
    late(script, "load")
    script.fault = lambda kind: "torn" if kind == "load" else None
    result = group.ranks[0].add(PROMPTS[0])
    group.run()
    assert result.restored_tokens == 0
    assert group.ranks[0].half.stats()["counters"]["failures:load"] == 1
    group.check_idle()


@pytest.mark.parametrize("interval", [1, 3], ids=["", "prefills every third step"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", MODES)
def test_random_workloads_on_three_ranks(
    start_ranks: StartRanks, script: Script, mode: dict[str, Any], seed: int, interval: int
) -> None:
    rng = random.Random(seed)
    script.__dict__.update(vars(random_script(rng, longest_delay=12, failing=0.1)))
    group = start_ranks(size=3, seed=seed, prefill_interval=interval, **mode)
    mix = Mix(abort=0.01, forget=0.02, reset=0.02, hints=0.2, images=0.1)
    runs: list[tuple[Rank, Workload, list[Result]]] = [
        (rank, Workload(random.Random(8 * seed + rank.rank), mix), []) for rank in group.ranks
    ]
    while min(len(results) for *_, results in runs) < 12:
        for rank, workload, results in runs:
            if rank.may_be_disturbed:
                if rng.random() < 0.02:
                    results.append(workload.arrive(rank))
                workload._disturb(rank, results)
        group.step()
    group.run()
    group.check_idle()
    assert all(rank.passes and rank.dummies for rank in group.ranks)
    for name in ("hit_tokens:host", "stored_entries:checkpoints"):
        assert sum(rank.half.stats()["counters"].get(name, 0) for rank in group.ranks) > 0


# ---- what is said and written


def test_the_start_line_names_the_engine_core_and_what_the_machine_needs(
    start_ranks: StartRanks,
) -> None:
    lines = [
        rank.half.connection.describe() for rank in start_ranks(extra={"host_gb": 0.005}).ranks
    ]
    for index, line in enumerate(lines):
        assert (
            f"engine core {index} (of 2, from 0 on), this machine needs 2 x 0.005 GiB = 0.01 GiB"
            in line
        )


def test_ranks_record_to_files_of_their_own(start_ranks: StartRanks, tmp_path: Path) -> None:
    group = start_ranks(extra={"trace_dir": str(tmp_path)})
    for rank, prompt in zip(group.ranks, PROMPTS, strict=True):
        rank.add(prompt)
    group.run()
    assert sorted(len(path.read_text().splitlines()) for path in tmp_path.iterdir()) == [2, 2]


# ---- faults that these tests would find


def write_garbage(layer: LayerMemory, blocks: list[int]) -> None:
    layer.live[blocks] = layer.shadow[blocks] = 0xDD


def test_a_dummy_batch_that_writes_to_blocks_being_loaded_is_found(
    start_ranks: StartRanks, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it would on the block tables of an earlier step."""
    group = start_ranks()
    fill(group)
    first = group.ranks[0]
    (runner,) = first.runners
    written = []

    def dummy(found: Runner) -> None:
        for index, block in [each for loading in first._loading.values() for each in loading]:
            if found is runner and runner.memory.recurrent[index]:
                written.append(block)
                for layer in runner.memory.groups[index]:
                    write_garbage(layer, [block])

    monkeypatch.setattr(Runner, "dummy", dummy)
    first.add(PROMPTS[0])
    with pytest.raises(Mismatch, match="the state after"):
        group.run()
    assert written


def test_a_dummy_batch_that_takes_reports_is_found(
    start_ranks: StartRanks, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = start_ranks()
    fill(group)
    late(script, "load")

    def dummy(runner: Runner) -> None:
        while runner.connector.worker._loads:
            runner.connector.get_transfer_results(set())
        runner.connector.build_connector_worker_meta()

    monkeypatch.setattr(Runner, "dummy", dummy)
    group.ranks[0].add(PROMPTS[0])
    with pytest.raises(Hang, match="still busy"):
        group.run(5000)


def test_a_rank_that_does_not_step_on_while_it_stores_is_found(
    start_ranks: StartRanks, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    late(script, "store", 400)
    monkeypatch.setattr(HybridPagesConnector, "has_pending_push_work", lambda self: False)
    group = start_ranks()
    group.ranks[0].add(PROMPTS[0])
    group.run()
    with pytest.raises(AssertionError, match="blocks leaked"):
        group.check_idle()


def test_a_rank_that_runs_no_dummy_batch_is_found(
    start_ranks: StartRanks, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rank, "is_sleeping", True)
    group = start_ranks()
    group.ranks[0].add(PROMPTS[0])
    with pytest.raises(Hang, match="ranks wait at"):
        group.run()


@pytest.mark.parametrize("method", ["mtp", "ngram"])
@pytest.mark.parametrize("mode", MODES)
def test_ranks_that_speculate_restore_what_they_have_stored(
    start_ranks: StartRanks, mode: dict[str, Any], method: str
) -> None:
    group = start_ranks(speculation=Speculation(method, 2), **mode)
    fill(group)
    results = [rank.add(prompt) for rank, prompt in zip(group.ranks, PROMPTS, strict=True)]
    group.run()
    # vLLM makes its own state one block earlier where draft layers look ahead.
    less = int(group.ranks[0].half.connection.grid.drops_last_block)
    assert [result.restored_tokens for result in results] == [(4 - less) * N, (5 - less) * N]
    group.check_idle()
