"""Configurations that the connector rejects at startup, by name."""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm
from vllm.config import MultiModalConfig, VllmConfig, set_current_vllm_config
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorRole,
)
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    KVQuantMode,
    SinkFullAttentionSpec,
)

from hybrid_pages import BudgetError, GeometryError
from hybrid_pages.adapter import planes
from hybrid_pages.adapter.memory import GIB, Free
from hybrid_pages.vllm.config.settings import SettingsError
from hybrid_pages.vllm.config.support import UnsupportedError, supported_range
from hybrid_pages.vllm.connector import HybridPagesConnector
from hybrid_pages.vllm.messages import Report
from hybrid_pages.vllm.versions import SUPPORTED
from simulation.config import engine_config, plan_kv_caches
from simulation.engine import StartEngine, connector
from simulation.memory import Memory
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import GDN, SHAPES, attention, bf16

ROLES = list(KVConnectorRole)
DENSE = SHAPES["attention-only"]


def configuration(shape: Any = GDN, **extra: Any) -> tuple[VllmConfig, KVCacheConfig]:
    config = engine_config(
        shape,
        blocks=8,
        batched_tokens=64,
        requests=2,
        ranks=1,
        async_scheduling=False,
        connector=connector(**extra),
    )
    _, (plan,), _, _ = plan_kv_caches(config, shape)
    return config, plan


def speculation(**changes: Any) -> SimpleNamespace:
    """As vLLM's, of a kind that is accepted but for the changes."""
    accepted = {
        "method": "mtp",
        "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": None,
        "parallel_drafting": False,
        "use_multi_module_mtp": lambda: False,
    }
    return SimpleNamespace(**(accepted | changes))


def change(path: str, value: Any) -> Callable[[VllmConfig], None]:
    *parents, name = path.split(".")

    def apply(config: VllmConfig) -> None:
        target: Any = config
        for parent in parents:
            target = getattr(target, parent)
        object.__setattr__(target, name, value)

    return apply


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("speculative_config", speculation(method="medusa"), "method: .*found 'medusa'"),
        ("speculative_config", speculation(num_speculative_tokens=8), "expected 1 to 7, found 8"),
        ("speculative_config", speculation(parallel_drafting=True), "parallel_drafting"),
        (
            "speculative_config",
            speculation(use_multi_module_mtp=lambda: True),
            "expected one MTP module",
        ),
        (
            "speculative_config",
            speculation(num_speculative_tokens_per_batch_size=[(1, 4, 3)]),
            "num_speculative_tokens_per_batch_size",
        ),
        ("parallel_config.prefill_context_parallel_size", 2, "prefill_context_parallel_size"),
        ("parallel_config.enable_elastic_ep", True, "enable_elastic_ep"),
        ("parallel_config.enable_dbo", True, "microbatches.*--enable-dbo"),
        ("parallel_config.ubatch_size", 2, "microbatches.*--ubatch-size"),
        ("cache_config.enable_prefix_caching", False, "prefix caching"),
        (
            "scheduler_config.disable_hybrid_kv_cache_manager",
            True,
            "hybrid KV cache manager.*if you gave it.*connector beside",
        ),
        ("model_config.is_diffusion", True, "diffusion models"),
    ],
)
def test_a_configuration_not_shown_to_work_is_refused(
    path: str, value: Any, named: str, role: KVConnectorRole
) -> None:
    config, plan = configuration()
    change(path, value)(config)
    with pytest.raises(UnsupportedError, match=named):
        HybridPagesConnector(config, role, plan)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("path", "value", "named", "version"),
    [
        ("aux_output_config.enable_return_routed_experts", True, "routed_experts", "0.32"),
        ("scheduler_config.disable_chunked_mm_input", True, "disable_chunked_mm_input", "0.33"),
    ],
)
def test_what_one_version_of_vllm_cannot_do_is_refused_there(
    path: str, value: Any, named: str, version: str, role: KVConnectorRole
) -> None:
    config, plan = configuration()
    change("model_config.multimodal_config", MultiModalConfig())(config)
    change(path, value)(config)
    if not vllm.__version__.startswith(version):
        assert HybridPagesConnector(config, role, plan)
        return
    with pytest.raises(UnsupportedError, match=named):
        HybridPagesConnector(config, role, plan)


@pytest.mark.parametrize("role", ROLES)
def test_processes_that_another_program_starts_are_refused_if_there_are_several(
    role: KVConnectorRole,
) -> None:
    config, plan = configuration()
    change("parallel_config.distributed_executor_backend", "external_launcher")(config)
    assert HybridPagesConnector(config, role, plan)
    change("parallel_config.tensor_parallel_size", 2)(config)
    with pytest.raises(UnsupportedError, match="found 'external_launcher'"):
        HybridPagesConnector(config, role, plan)


@pytest.mark.parametrize("role", ROLES)
def test_experts_may_be_spread_over_ranks(role: KVConnectorRole) -> None:
    """What a page holds does not depend on where an expert is, nor on how often."""
    config, plan = configuration()
    change("parallel_config.data_parallel_size", 2)(config)
    change("parallel_config.enable_expert_parallel", True)(config)
    change("parallel_config.enable_eplb", True)(config)
    assert HybridPagesConnector(config, role, plan)


def test_every_refused_feature_is_named_at_once() -> None:
    config, plan = configuration()
    change("speculative_config", speculation(method="suffix"))(config)
    change("parallel_config.pipeline_parallel_size", 4)(config)
    with pytest.raises(
        UnsupportedError, match=r"(?s)drafts and pipeline_parallel_size 4.*found 'suffix'"
    ):
        HybridPagesConnector(config, KVConnectorRole.SCHEDULER, plan)


@pytest.mark.parametrize("method", ["mtp", "ngram"])
def test_a_divided_context_is_refused_with_drafts_and_stages(method: str) -> None:
    config, plan = configuration()
    change("parallel_config.decode_context_parallel_size", 2)(config)
    with pytest.raises(UnsupportedError, match="decode_context_parallel_size with pipeline stages"):
        changed = copy.deepcopy(config)
        change("parallel_config.pipeline_parallel_size", 2)(changed)
        HybridPagesConnector(changed, KVConnectorRole.SCHEDULER, plan)
    change("speculative_config", speculation(method=method))(config)
    with pytest.raises(UnsupportedError, match="decode_context_parallel_size with drafts"):
        HybridPagesConnector(config, KVConnectorRole.SCHEDULER, plan)


def test_a_divided_context_is_refused_with_windows() -> None:
    config, plan = configuration(SHAPES["gdn-window"])
    change("parallel_config.decode_context_parallel_size", 2)(config)
    with pytest.raises(UnsupportedError, match="expected 1 for a model with sliding windows"):
        HybridPagesConnector(config, KVConnectorRole.SCHEDULER, plan)


@pytest.mark.parametrize("method", ["mtp", "ngram"])
def test_pipeline_stages_are_refused_with_drafts_alone(method: str) -> None:
    config, plan = configuration()
    change("parallel_config.pipeline_parallel_size", 2)(config)
    assert HybridPagesConnector(config, KVConnectorRole.SCHEDULER, plan)
    change("speculative_config", speculation(method=method))(config)
    with pytest.raises(UnsupportedError, match="speculative_config with pipeline stages"):
        HybridPagesConnector(config, KVConnectorRole.SCHEDULER, plan)


@pytest.mark.parametrize("version", ["0.31.9", ".".join(map(str, (*SUPPORTED.end, 0))), "nightly"])
def test_a_vllm_outside_the_window_is_refused_when_the_connector_is_imported(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllm.version.__version__", version)
    monkeypatch.delitem(sys.modules, "hybrid_pages.vllm.connector")
    with pytest.raises(UnsupportedError, match=f"{supported_range()}, found {version}"):
        importlib.import_module("hybrid_pages.vllm.connector")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"host_gib": 1}, "did you mean 'host_gb'"),
        ({"host_gb": -1}, "host_gb: expected a size above 0"),
        ({"host_gb": "4"}, "host_gb: expected a number of GiB or 'auto', found '4'"),
        ({"host_gb": True}, "host_gb: expected a number of GiB or 'auto', found True"),
        ({"huge_pages": "1G"}, "huge_pages: expected one of '', '2M', found '1G'"),
        ({"store_mode": "backgruond"}, "did you mean 'background'"),
        ({"copy_threads": 0}, "copy_threads: expected 1 to 256"),
        ({"verify_on_load": 1}, "verify_on_load: expected bool"),
    ],
)
def test_a_wrong_setting_is_refused(
    extra: dict[str, Any], named: str, role: KVConnectorRole
) -> None:
    config, plan = configuration(**extra)
    with pytest.raises(SettingsError, match=named):
        HybridPagesConnector(config, role, plan)


def with_spec(plan: KVCacheConfig, group: int, spec: KVCacheSpec) -> KVCacheConfig:
    groups = list(plan.kv_cache_groups)
    groups[group] = replace(groups[group], kv_cache_spec=spec)
    return replace(plan, kv_cache_groups=groups)


def group_of(plan: KVCacheConfig, kind: str) -> int:
    return next(
        index
        for index, group in enumerate(plan.kv_cache_groups)
        if type(group.kv_cache_spec).__name__ == kind
    )


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"mamba_cache_mode": "none"}, "mamba_cache_mode: expected 'align', found 'none'"),
        ({"mamba_cache_mode": "all"}, "mamba_cache_mode: expected 'align', found 'all'"),
        ({"block_size": 2 * N}, "expected states in the smallest blocks"),
    ],
)
def test_a_recurrent_group_not_shown_to_work_is_refused(
    changes: dict[str, Any], named: str, role: KVConnectorRole
) -> None:
    config, plan = configuration()
    group = group_of(plan, "MambaSpec")
    spec = replace(plan.kv_cache_groups[group].kv_cache_spec, **changes)
    with pytest.raises(UnsupportedError, match=named):
        HybridPagesConnector(config, role, with_spec(plan, group, spec))


HEADS = {"block_size": N, "num_kv_heads": 2, "head_size": 8, "dtype": bf16}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (ChunkedLocalAttentionSpec(**HEADS, attention_chunk_size=32), "ChunkedLocalAttentionSpec"),
        (SinkFullAttentionSpec(**HEADS, sink_len=4), "SinkFullAttentionSpec"),
        (replace(attention(), kv_quant_mode=KVQuantMode.ULTRAQUANT_4BIT), "found ULTRAQUANT_4BIT"),
        (replace(attention(), tokens_per_state=3), "tokens_per_state: expected a divisor"),
    ],
)
def test_an_attention_group_not_shown_to_work_is_refused(
    spec: KVCacheSpec, named: str, role: KVConnectorRole
) -> None:
    config, plan = configuration()
    group = group_of(plan, "FullAttentionSpec")
    layer = plan.kv_cache_groups[group].layer_names[0]
    with pytest.raises(UnsupportedError, match=f"(?s){layer}.*{named}"):
        HybridPagesConnector(config, role, with_spec(plan, group, spec))


# ---- registered tensors


def restrided(tensor: torch.Tensor, **changes: Any) -> torch.Tensor:
    view = {
        "size": tensor.shape,
        "stride": tensor.stride(),
        "storage_offset": tensor.storage_offset(),
    }
    return torch.as_strided(tensor, **(view | changes))


def block_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    return (tensor.stride(0) - 2, *tensor.stride()[1:])


@pytest.mark.parametrize("kind", ["MambaSpec", "FullAttentionSpec"])
@pytest.mark.parametrize(
    ("what", "alter"),
    [
        ("dtype", lambda t: t.view(torch.uint8)),
        ("shape", lambda t: t[:-1]),
        ("shape", lambda t: t[..., :-2]),
        ("shape", lambda t: t.flatten(1)),
        ("block stride", lambda t: restrided(t, stride=block_stride(t))),
        ("offset", lambda t: restrided(t, storage_offset=t.storage_offset() + 2)),
        ("expected one registered tensor, found a list", lambda t: [t]),
        ("expected one registered tensor, found nothing", lambda t: None),
    ],
)
def test_a_tensor_that_does_not_match_its_spec_is_refused(
    kind: str, what: str, alter: Callable[[torch.Tensor], Any]
) -> None:
    config, plan = configuration()
    tensors: dict[str, Any] = dict(Memory(plan, GDN.layout, [N] * 4, 0).tensors)
    layer = plan.kv_cache_groups[group_of(plan, kind)].layer_names[0]
    tensors[layer] = alter(tensors[layer])
    worker = HybridPagesConnector(config, KVConnectorRole.WORKER, plan)
    with pytest.raises(GeometryError, match=f"{layer}.*{what}.*expected.*found|{layer}.*{what}"):
        worker.register_kv_caches(tensors)
    worker.shutdown()


# ---- what the workers report


def reports(config: VllmConfig, plan: KVCacheConfig, shape: Any, rank: int = 0) -> Report:
    """A worker's report, pickled as it travels."""
    object.__setattr__(config.parallel_config, "rank", rank)
    worker = HybridPagesConnector(config, KVConnectorRole.WORKER, plan)
    worker.register_kv_caches(Memory(plan, shape.layout, [N] * 4, rank).tensors)
    (report,) = pickle.loads(pickle.dumps(worker.build_connector_worker_meta())).reports
    worker.shutdown()
    return report


def scheduler_of(config: VllmConfig, plan: KVCacheConfig) -> HybridPagesConnector:
    return HybridPagesConnector(config, KVConnectorRole.SCHEDULER, plan)


def test_a_worker_that_plans_another_cache_is_refused() -> None:
    config, plan = configuration()
    scheduler = scheduler_of(config, plan)
    dense = reports(*configuration(DENSE), DENSE)
    with pytest.raises(GeometryError, match="rank 0 plans another cache than the scheduler: "):
        scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): dense})


def test_ranks_whose_tensors_differ_are_refused() -> None:
    config, plan = configuration()
    object.__setattr__(config.parallel_config, "tensor_parallel_size", 2)
    scheduler = scheduler_of(config, plan)
    first, second = (reports(config, plan, GDN, rank) for rank in range(2))
    second.geometry = second.geometry.replace("bfloat16", "float16")
    with pytest.raises(GeometryError, match="rank 1 differs from rank 0: "):
        scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): first, (0, 1): second})


@pytest.mark.parametrize("rank", [-1, 1])
def test_a_rank_that_is_not_planned_is_refused(rank: int) -> None:
    config, plan = configuration()
    scheduler = scheduler_of(config, plan)
    report = replace(reports(config, plan, GDN), rank=rank)
    with pytest.raises(GeometryError, match=f"ranks: expected 0 to 0, found {rank}"):
        scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): report})


def test_a_worker_on_another_machine_is_refused() -> None:
    config, plan = configuration()
    scheduler = scheduler_of(config, plan)
    report = reports(config, plan, GDN)
    report.place = report.place._replace(boot="another boot id")
    with pytest.raises(UnsupportedError, match=r"(?s)one machine.*another boot id.*Ray"):
        scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): report})


def test_a_plane_that_the_scheduler_cannot_open_is_refused() -> None:
    """As from a worker in another container."""
    config, plan = configuration()
    scheduler = scheduler_of(config, plan)
    report = replace(reports(config, plan, GDN), plane="/proc/0/fd/7")
    with pytest.raises(UnsupportedError, match=r"(?s)rank 0.*/proc/0/fd/7.*one container"):
        scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): report})


def test_a_path_that_leads_to_the_plane_of_another_rank_is_refused() -> None:
    """As where workers of several containers have equal process ids."""
    config, plan = configuration()
    object.__setattr__(config.parallel_config, "tensor_parallel_size", 2)
    scheduler, worker = scheduler_of(config, plan), registered(config, plan)
    second = replace(worker.report, rank=1)
    with pytest.raises(
        UnsupportedError, match=r"(?s)rank 1: .*found the plane of rank 0 at /proc/.*one container"
    ):
        scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): worker.report, (0, 1): second})
    worker.shutdown()


def test_a_plane_of_another_budget_is_refused() -> None:
    config, plan = configuration()
    other, _ = configuration(host_gb=0.25)
    worker = registered(other, plan)
    with pytest.raises(UnsupportedError, match=r"(?s)rank 0 .*expected a plane of \d+ slots.*same"):
        scheduler_of(config, plan).set_xfer_handshake_metadata_pp_aware({(0, 0): worker.report})
    worker.shutdown()


def test_a_rank_whose_plane_is_another_one_later_is_refused() -> None:
    config, plan = configuration()
    scheduler = scheduler_of(config, plan)
    first, second = registered(config, plan), registered(config, plan)
    scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): first.report})
    with pytest.raises(GeometryError, match=r"(?s)its plane of the arena at .*what was stored"):
        scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): second.report})
    first.shutdown()
    second.shutdown()


def test_a_plane_stays_where_it_is_while_the_engine_sleeps() -> None:
    config, plan = configuration()
    worker = registered(config, plan)
    before = worker.report
    worker.unregister()
    worker.restore()
    assert worker.report == before
    worker.shutdown()


def registered(config: Any, plan: Any) -> Any:
    """A worker half with caches."""
    worker = HybridPagesConnector(config, KVConnectorRole.WORKER, plan)
    worker.register_kv_caches(Memory(plan, GDN.layout, [N] * 4, 0).tensors)
    return worker.worker


def test_payloads_of_other_connectors_are_left_alone() -> None:
    config, plan = configuration()
    scheduler_of(config, plan).set_xfer_handshake_metadata_pp_aware({(0, 0): Foreign()})


class Foreign(KVConnectorHandshakeMetadata):
    """The handshake payload of another connector's worker."""


@pytest.mark.parametrize("outermost", [True, False])
def test_a_worker_hands_its_report_over_unless_others_would_get_it(outermost: bool) -> None:
    """MultiConnector gives one child's payload to all children; Nixl rejects ours."""
    config, plan = configuration()
    engine = config if outermost else copy.copy(config)
    if not outermost:
        engine.kv_transfer_config = copy.copy(config.kv_transfer_config)
    with set_current_vllm_config(engine):
        worker = HybridPagesConnector(config, KVConnectorRole.WORKER, plan)
    worker.register_kv_caches(Memory(plan, GDN.layout, [N] * 4, 0).tensors)
    assert isinstance(worker.get_handshake_metadata(), Report) is outermost
    worker.shutdown()


def test_a_report_that_does_not_fit_stops_the_cache_and_not_the_engine(
    start: StartEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine = start()
    worker = engine.runners[0].connector.worker
    (report,) = worker._results.metadata.reports
    worker._results.metadata.reports = [
        replace(report, place=report.place._replace(boot="another boot id"))
    ]
    prompt = list(range(1, 4 * N + 6))
    with caplog.at_level("ERROR", logger="vllm.hybrid_pages"):
        for _ in range(3):
            engine.generate(prompt)
            engine.forget_local()
    assert "stores and restores nothing" in caplog.text
    counters = engine.half.stats()["counters"]
    assert counters["failures:geometry"] == 1
    assert not [key for key in counters if key.startswith(("hit_tokens:host", "stored_entries"))]
    engine.check_idle()


def test_a_cache_that_was_stopped_leaves_no_store_behind(start: StartEngine) -> None:
    """The key of a request's last block may be known only at its end."""
    engine = start()
    worker = engine.runners[0].connector.worker
    worker._results.metadata.reports = [
        replace(worker.report, place=worker.report.place._replace(boot="another boot id"))
    ]
    engine.generate(list(range(1, N)), 2)
    assert not engine.half.storing
    engine.check_idle()


def test_layers_whose_sizes_only_the_workers_know_are_stored_once_they_have_reported(
    not_alone: None, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for padded layers of one type and several sizes."""
    monkeypatch.setattr("hybrid_pages.vllm.connector.planned_geometry", lambda *_: None)
    engine = start(SHAPES["heads-differ"])
    assert not engine.half.connection.connected
    prompts = [[seed + i for i in range(3 * N + 5)] for seed in (1, 100)]
    for prompt in prompts:
        engine.generate(prompt)
    engine.forget_local()
    assert [engine.generate(prompt).restored_tokens for prompt in prompts] == [0, 3 * N]
    engine.check_idle()


@pytest.mark.parametrize("name", SHAPES)
def test_the_scheduler_knows_the_sizes_of_every_kind_of_cache(
    start: StartEngine, name: str
) -> None:
    assert start(SHAPES[name]).half.connection.connected


# ---- budgets


def test_a_budget_too_small_for_one_block_is_refused_by_its_name() -> None:
    config, plan = configuration(host_gb=1e-6)
    with pytest.raises(BudgetError, match=r"host_gb: expected at least 0.0001 GiB \(.*raise it"):
        scheduler_of(config, plan)


def test_a_budget_beyond_the_machine_is_refused_by_its_name() -> None:
    config, plan = configuration(host_gb=500_000)
    with pytest.raises(BudgetError, match=r"host_gb: expected at most .* GiB, found 500000 GiB"):
        scheduler_of(config, plan)


@pytest.mark.parametrize(("share", "fits"), [(1.1, True), (0.75, False)])
def test_ranks_that_are_made_at_once_fit_together(
    share: float, fits: bool, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    host_gb = 0.004
    gc.collect()  # planes of earlier engines in this process
    monkeypatch.setattr(planes, "_processes", lambda: [str(os.getpid())])
    free = int(share * host_gb * GIB) + planes.still_to_take(os.devnull)
    monkeypatch.setattr(planes, "limits", lambda: [Free(free, "the free memory")])
    expected = (
        contextlib.nullcontext()
        if fits
        else pytest.raises(BudgetError, match="that other planes are still to take")
    )
    with expected:
        start(SHAPES["gdn"], ranks=2, extra={"host_gb": host_gb})
