"""Pipeline stages: an entry is whole when every stage of every rank has stored its shard."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from hybrid_pages import GeometryError
from hybrid_pages.adapter.errors import EngineError, SettingsError
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.config.support import UnsupportedError, require_config
from hybrid_pages.vllm.connector import HybridPagesConnector
from hybrid_pages.vllm.layout.stages import together
from simulation.config import engine_config
from simulation.copies import Fault, Script
from simulation.engine import Engine, StartEngine, connector
from simulation.runner import Mismatch
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from simulation.workload import Mix, Workload
from test_faulty_copies import failures, slots_of

pytestmark = pytest.mark.every_version

PROMPT = Workload(random.Random(5)).fresh(6 * N + 1)
OTHER = Workload(random.Random(6)).fresh(6 * N + 1)
HALVES = (0, 0, 0, 0, 1, 1, 1, 1)
SPLITS: dict[str, tuple[str, Sequence[int]]] = {
    "halves": ("gdn", HALVES),
    "layers in turns": ("gdn", (0, 1, 0, 1, 0, 1, 0, 1)),
    "a stage without attention": ("gdn-block-outermost", (0, 0, 0, 1, 1, 1, 1, 1)),
    "a stage of attention alone": ("mamba2", (0, 0, 1)),
    "three stages with windows": ("gdn-window", (0, 0, 1, 1, 1, 2, 2, 2)),
    "layers of two sizes": ("heads-differ", (0, 1, 1)),
    "blocks of two sizes": ("gemma4-31b", (0, 0, 0, 1, 1, 1, 1, 1)),
}
MODES = {
    "asynchronous": {"async_scheduling": True},
    "synchronous": {"async_scheduling": False},
    "first runner": {"async_scheduling": False, "runner_version": 1},
}
"""vLLM's first runner has no pipeline stages with asynchronous scheduling."""


def fail(engine: Engine, stage: int, kind: str, fault: Fault) -> None:
    """The next job of a kind fails in one stage."""
    script = Script()
    script.fault = lambda wanted: fault if wanted == kind and not script.faults else None
    engine.runners[stage].connector.worker.engine._script = script


def staged(start: StartEngine, split: str = "halves", **options: Any) -> Engine:
    shape, of_layers = SPLITS[split]
    return start(SHAPES[shape], split=of_layers, **options)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("split", SPLITS)
def test_every_split_restores_what_all_stages_have_stored(
    split: str, mode: str, ranks: int, start: StartEngine
) -> None:
    engine = staged(start, split, ranks=ranks, **MODES[mode])
    assert engine._depth == engine.stages + MODES[mode]["async_scheduling"]
    engine.watches_local_cache = True
    Workload(random.Random(3), Mix(arrival=0.5, forget=0.5, abort=0.05)).run(engine, 12)
    assert sum(result.restored_tokens for result in engine.results.values()) >= 4 * N
    assert not failures(engine)


def test_an_entry_is_served_when_the_last_stage_has_reported(start: StartEngine) -> None:
    engine = staged(start, "three stages with windows")
    late = engine.runners[-1].connector
    report = late.build_connector_worker_meta
    late.build_connector_worker_meta = lambda: None
    first = engine.add(PROMPT)
    while not first.done:
        engine.step()
    engine.forget_local()
    again = engine.add(PROMPT)
    while not again.done:
        engine.step()
    assert again.restored_tokens == 0
    stats = engine.cache.stats()
    assert (stats["pages"], stats["windows"], stats["checkpoints"]) == (0, 0, 0)
    late.build_connector_worker_meta = report
    engine.run()
    engine.check_idle()
    engine.forget_local()
    assert engine.generate(PROMPT).restored_tokens >= 6 * N


@pytest.mark.parametrize("fault", ["submit", "torn"])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_store_that_fails_in_one_stage_publishes_nothing(
    stage: int, fault: Fault, start: StartEngine
) -> None:
    engine = staged(start, batched_tokens=200)
    fail(engine, stage, "store", fault)
    engine.generate(PROMPT, max_tokens=1)
    stats = engine.cache.stats()
    assert (stats["pages"], stats["checkpoints"], stats["free_slots"]) == (0, 0, stats["slots"])
    assert sum(failures(engine).values()) == 1
    assert engine.reset_prefix_cache()
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    assert engine.generate(PROMPT).restored_tokens == 6 * N
    engine.check_idle()


@pytest.mark.parametrize("fault", ["submit", "torn"])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_load_that_fails_in_one_stage_is_recomputed(
    stage: int, fault: Fault, start: StartEngine
) -> None:
    engine = staged(start)
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    fail(engine, stage, "load", fault)
    assert engine.generate(PROMPT).restored_tokens == 0
    assert sum(failures(engine).values()) == 1
    engine.check_idle()


@pytest.mark.parametrize("steps", [3, 4, 5])
def test_a_load_waits_for_blocks_that_steps_in_flight_still_hold(
    steps: int, start: StartEngine
) -> None:
    engine = staged(start, blocks=28, batched_tokens=2 * N)
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    large = engine.add(Workload(random.Random(9)).fresh(18 * N), hints={"store": False})
    for _ in range(steps):
        engine.step()
    waiting = engine.add(PROMPT)
    for _ in range(2):
        engine.step()
    engine.abort(large)
    engine.run()
    assert waiting.restored_tokens == 6 * N
    assert "skipped_loads:never_admitted" not in engine.half.stats()["counters"]


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("kind", ["attention", "recurrent"])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_stages_shard_of_another_prompt_is_seen(
    stage: int, kind: str, verify: bool, start: StartEngine, script: Script
) -> None:
    engine = staged(start, extra={"verify_on_load": verify})
    engine.generate(PROMPT)
    of_prompt = slots_of(engine, script, kind)[:1]
    count = len(slots_of(engine, script, kind))
    engine.generate(OTHER)
    of_other = slots_of(engine, script, kind)[count : count + 1]
    arena = engine.half.connection.arena
    part = arena.slot_bytes // 2
    for mine, other in zip(*of_prompt, *of_other, strict=True):
        parts = [arena.read(mine), arena.read(other)]
        halves = [parts[rank == stage][rank * part : (rank + 1) * part] for rank in range(2)]
        arena.write(mine, b"".join(halves))
    assert engine.reset_prefix_cache()
    if verify:
        engine.generate(PROMPT)
        assert failures(engine) == {"failures:load": 1}
        engine.check_idle()
    else:
        with pytest.raises(Mismatch, match=f"rank {stage}, request"):
            engine.generate(PROMPT)


def test_nothing_is_served_before_every_stage_has_said_what_it_has(
    start: StartEngine, not_alone: None
) -> None:
    engine = staged(start)
    engine.runners[1].connector.worker._results.metadata.reports = []
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    assert engine.generate(PROMPT).restored_tokens == 0
    assert engine.half.connection.agreement.geometry is None
    assert engine.cache.stats()["pages"] == 0


def test_a_rank_is_named_with_its_stage(start: StartEngine) -> None:
    engine = staged(start, ranks=2)
    report = engine.runners[3].connector.worker.report
    connection = engine.half.connection
    with pytest.raises(GeometryError, match=r"^rank 3 \(pipeline stage 1, tensor rank 1\): exp"):
        connection.confirm([replace(report, made="another")])


def test_a_stage_that_fails_before_it_says_what_it_has_keeps_no_other_waiting() -> None:
    texts, met = ["", ""], Barrier(2)

    def start_stage(stage: int) -> str:
        def exchange(text: str) -> list[str]:
            texts[stage] = text
            met.wait(20)
            return list(texts)

        try:
            with together(exchange) as tell:
                if stage == 1:
                    raise GeometryError("layer 7: no such dtype")
                tell("{}")
        except (GeometryError, UnsupportedError) as error:
            return str(error)
        return "went on"

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(start_stage, range(2)))
    reason = "layer 7: no such dtype"
    assert found == [f"pipeline stage 1 failed: {reason}", reason]


def test_errors_of_a_stage_reach_the_others_at_every_point(
    start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    connector, told = staged(start).runners[1].connector, list[str]()

    def tell(text: str, stages: int = 2) -> list[str]:
        told.append(text)
        return [text] * stages

    monkeypatch.setattr(versions, "of_all_stages", tell)
    config, plan = copy.deepcopy(connector._vllm_config), connector._kv_cache_config
    config.kv_transfer_config.kv_connector_extra_config["host_gb"] = "much"
    with pytest.raises(SettingsError):
        HybridPagesConnector(config, KVConnectorRole.WORKER, plan)
    with pytest.raises(SettingsError):
        HybridPagesConnector(config, KVConnectorRole.SCHEDULER, plan)
    connector.worker._exchange = tell
    with pytest.raises(GeometryError):
        connector.register_kv_caches({})
    assert [text.split(":")[:2] for text in told] == [
        ["failed", " host_gb"],
        ["failed", " layer 'model.layers.4'"],
    ]


def test_a_stage_that_says_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(timeout: Any) -> None:
        raise RuntimeError("Operation timed out!")

    group = SimpleNamespace(cpu_group=None)
    monkeypatch.setattr("vllm.distributed.parallel_state.get_pp_group", lambda: group)
    work = SimpleNamespace(wait=wait)
    monkeypatch.setattr("torch.distributed.barrier", lambda **_: work)
    with pytest.raises(EngineError, match=r"expected all 2 .* 300 seconds.*kv-transfer-config$"):
        versions.of_all_stages("{}", 2)


def test_an_executor_that_passes_on_one_stage_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With Ray's own, which vLLM 0.33 does not have any more, no store or load would ever end."""
    monkeypatch.setenv("VLLM_USE_RAY_V2_EXECUTOR_BACKEND", "0")
    has_both = versions.installed().startswith("0.32.")
    assert versions.ray_reports_of_all_stages() is not has_both
    config = engine_config(
        SHAPES["gdn"],
        blocks=8,
        batched_tokens=64,
        requests=2,
        ranks=1,
        async_scheduling=False,
        connector=connector(),
        stages=2,
    )
    config.parallel_config.distributed_executor_backend = "ray"
    with pytest.raises(UnsupportedError, match="RAY_V2") if has_both else nullcontext():
        require_config(config)
    monkeypatch.delenv("VLLM_USE_RAY_V2_EXECUTOR_BACKEND")
    require_config(config)


def test_other_splits_are_other_entries(start: StartEngine) -> None:
    """Also where all stages together have the same layers, and each as many as before."""
    splits = [(), HALVES, (0, 1) * 4, (1,) * 4 + (0,) * 4, (0, 0, 0, 1, 1, 1, 1, 1)]
    geometries = [start(split=split).half.connection.geometry for split in splits]
    assert len({geometry.fingerprint for geometry in geometries}) == len(splits)
    assert "stages" not in geometries[0].identity
    assert geometries[1].identity["stages"].startswith("1+1, 1+1, 1+1, 1+1 layers by group")
