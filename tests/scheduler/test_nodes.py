"""Engines on several nodes: the scheduler sees the memory of its own node's workers only."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybrid_pages import GeometryError
from hybrid_pages.vllm.config.support import UnsupportedError
from hybrid_pages.vllm.messages import Report, WorkerMetadata
from simulation.config import SimulatedHybridForCausalLM, save_model
from simulation.copies import Script
from simulation.engine import Engine, StartEngine, connector
from simulation.runner import Mismatch
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from simulation.workload import Workload
from test_identity import safetensors

PROMPT = Workload(random.Random(5)).fresh(6 * N + 1)
NODES = {"ranks": 4, "nodes": 2}
"""The ranks 0 and 1 on the scheduler's node, 2 and 3 on another."""


def failures(engine: Engine) -> dict[str, float]:
    counters = engine.half.stats()["counters"]
    return {key: count for key, count in counters.items() if key.startswith("failures")}


def spoil_plane(engine: Engine, rank: int) -> None:
    """Other bytes in the memory of one rank, which the scheduler may not see."""
    file = engine.runners[rank].connector.worker._arena.path
    with open(file, "r+b") as plane:
        plane.seek(4096)  # behind the header
        plane.write(b"\x5a" * (os.path.getsize(file) - 4096))


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("shape", ["gdn", "attention-only"])
def test_what_ranks_on_two_nodes_store_is_restored(
    shape: str, asynchronous: bool, start: StartEngine
) -> None:
    engine = start(SHAPES[shape], async_scheduling=asynchronous, **NODES)
    engine.generate(PROMPT)
    assert engine.half.connection.arena is None
    assert engine.reset_prefix_cache()
    assert engine.generate(PROMPT).restored_tokens == 6 * N
    assert failures(engine) == {}
    engine.check_idle()


def test_random_requests_on_two_nodes(start: StartEngine) -> None:
    engine = start(blocks=60, **NODES)
    Workload(random.Random(3)).run(engine, 20)
    assert failures(engine) == {} and engine.half.stats()["counters"]["hit_tokens:host"] > 0


@pytest.mark.parametrize("verified", [False, True])
def test_other_bytes_on_the_other_node_are_noticed(verified: bool, start: StartEngine) -> None:
    engine = start(extra={"verify_on_load": verified}, **NODES)
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    spoil_plane(engine, 3)
    if verified:
        engine.generate(PROMPT)
        assert failures(engine) == {"failures:load": 1}
    else:
        with pytest.raises(Mismatch, match="request r1, layer"):
            engine.generate(PROMPT)


@pytest.mark.parametrize("kind", ["store", "load"])
@pytest.mark.parametrize("rank", [0, 3])
def test_a_node_whose_copy_fails_serves_nothing_of_it(
    kind: str, rank: int, start: StartEngine, script: Script
) -> None:
    engine, seen = start(batched_tokens=200, **NODES), [0]

    def decide(wanted: str) -> Any:
        seen[0] += wanted == kind
        return "torn" if wanted == kind and seen[0] == rank + 1 else None

    if kind == "store":
        script.fault = decide
    engine.generate(PROMPT, max_tokens=1)
    if kind == "store":
        assert engine.cache.stats()["pages"] == 0
    assert engine.reset_prefix_cache()
    script.fault = decide
    assert engine.generate(PROMPT).restored_tokens == 0
    assert sum(failures(engine).values()) == 1
    assert engine.reset_prefix_cache()
    assert engine.generate(PROMPT).restored_tokens == 6 * N
    engine.check_idle()


def test_a_node_that_goes_away_in_the_middle_of_a_store_has_stored_nothing(
    start: StartEngine,
) -> None:
    """vLLM ends such an engine. Until then, no request finds or waits for what was half stored."""
    engine = start(**NODES)
    engine.generate([7], max_tokens=1)  # with which the ranks report
    for runner in engine.runners[2:]:
        take = runner.connector.worker.take_metadata

        def silent(take: Callable[[], WorkerMetadata | None] = take) -> WorkerMetadata | None:
            if (found := take()) is not None:
                found.stores.clear()
            return found

        runner.connector.worker.take_metadata = silent
    before = engine.cache.stats()["pages"]
    for _ in range(2):
        result = engine.add(PROMPT)
        while not result.done:
            assert engine.step()
        result.check()
        assert result.restored_tokens == 0
        engine.forget_local()
    stats = engine.cache.stats()
    assert stats["pages"] == before and stats["writing_entries"] > 0
    assert engine.depths(PROMPT) == []


# ---- Ray: the configuration does not tell where the workers are


class OnRay(Engine):
    """The last two of four ranks are on another machine."""

    def _place(self, rank: int, size: int) -> None:
        super()._place(rank, size)
        self.config.parallel_config.distributed_executor_backend = "ray"

    def _runner(self, rank: int, plan: Any, version: int) -> Any:
        runner = super()._runner(rank, plan, version)
        if rank > 1:
            report = runner.connector.worker.report
            report.plane = "/nowhere"
            report.place = report.place._replace(boot="another boot id", host="second")
        return runner


def on_ray(model: Path | None = None, **extra: Any) -> OnRay:
    return OnRay(transfer=connector(**extra), ranks=4, model=model)


def test_workers_that_ray_has_placed_elsewhere_restore() -> None:
    with on_ray() as engine:
        engine.generate(PROMPT)
        assert engine.half.connection.arena is None
        assert engine.reset_prefix_cache()
        assert engine.generate(PROMPT).restored_tokens == 6 * N
        assert failures(engine) == {}


def test_a_disk_is_refused_if_ray_has_placed_a_worker_elsewhere(tmp_path: Path) -> None:
    says = r"disk_path: expected all workers .* found rank 2 elsewhere \(node 0, host second\)"
    save_model(tmp_path, SimulatedHybridForCausalLM.__name__)
    safetensors(tmp_path / "model.safetensors", bytes(1000))
    with pytest.raises(UnsupportedError, match=says):
        on_ray(tmp_path, disk_path=str(tmp_path / "disk"), disk_gb=0.1)


# ---- what nodes must have in common


def reported(start: StartEngine, rank: int, change: Callable[[Report], None]) -> None:
    """Has an engine on two nodes start, of which one rank reports something else."""
    engine = start(**NODES)
    agreement = engine.half.connection.agreement
    reports = [runner.connector.worker.report for runner in engine.runners]
    agreement.reports.clear()
    agreement.geometry = None
    change(reports[rank])
    engine.half.confirm(reports)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hybrid-pages", "0.0.1"),
        ("vllm", "0.1"),
        ("byte order", "big"),
        ("store_mode", "'step'"),
        ("checksum", "'off'"),
    ],
)
def test_a_node_with_other_packages_or_settings_is_refused(
    name: str, value: str, start: StartEngine
) -> None:
    def change(report: Report) -> None:
        report.terms = report.terms | {name: value}

    says = rf"rank 3 \(node 1, host .*\): {name}: expected .*, found {value}: give all nodes"
    with pytest.raises(UnsupportedError, match=says):
        reported(start, 3, change)


def test_a_node_with_another_budget_is_refused(start: StartEngine) -> None:
    def change(report: Report) -> None:
        report.slots = (report.slots[0] - 1, report.slots[1])

    with pytest.raises(UnsupportedError, match=r"rank 2 \(node 1.*the same host_gb"):
        reported(start, 2, change)


def test_memory_of_the_scheduler_s_own_node_must_be_open_to_it(start: StartEngine) -> None:
    """As from a worker in another container, which is no node of its own."""

    def change(report: Report) -> None:
        report.plane = "/nowhere"

    with pytest.raises(UnsupportedError, match=r"rank 1: .*visible.*one container.*--node-rank"):
        reported(start, 1, change)


def test_a_worker_that_comes_back_with_another_plane_is_refused(start: StartEngine) -> None:
    """On another node it may have the path of the one before."""
    engine = start(**NODES)
    report = engine.runners[3].connector.worker.report
    with pytest.raises(GeometryError, match=r"rank 3: .*another one .*\(node 1.*stored is gone"):
        engine.half.confirm([Report(**{**vars(report), "made": "later"})])


def test_a_node_without_the_connector_is_named(start: StartEngine) -> None:
    engine = start(**NODES)
    found = {(0, it.rank): it.connector.worker.report for it in engine.runners[:3]}
    engine.half.connection.agreement.reports.clear()
    with pytest.raises(UnsupportedError, match=r"all 4, found none of 3: .*--kv-transfer-config"):
        engine.connector.set_xfer_handshake_metadata_pp_aware(found)
