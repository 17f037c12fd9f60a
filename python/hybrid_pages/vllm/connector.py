"""``HybridPagesConnector``: vLLM's connector interface, passed on to the two halves.

Contract: ``vllm/distributed/kv_transfer/kv_connector/v1/base.py``. Importing this module needs
vLLM and torch, but no GPU and no CUDA library.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from hybrid_pages.vllm import versions
from hybrid_pages.vllm.config.support import require_config, require_reads, require_version

require_version(versions.installed())
require_reads()

from vllm.distributed.kv_transfer.kv_connector.v1.base import (  # noqa: E402
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (  # noqa: E402
    KVConnectorPromMetrics,
    KVConnectorStats,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource  # noqa: E402

from hybrid_pages.adapter.errors import EngineError  # noqa: E402
from hybrid_pages.vllm.config.identity import ModelFacts  # noqa: E402
from hybrid_pages.vllm.config.settings import Settings, fix_budget  # noqa: E402
from hybrid_pages.vllm.layout.geometry import (  # noqa: E402
    has_states,
    planned_geometry,
    require_groups,
)
from hybrid_pages.vllm.layout.grid import block_grid, with_drafts  # noqa: E402
from hybrid_pages.vllm.layout.stages import Exchange, together  # noqa: E402
from hybrid_pages.vllm.messages import Report, StepMetadata  # noqa: E402
from hybrid_pages.vllm.metrics import HybridPagesPromMetrics, HybridPagesStats  # noqa: E402
from hybrid_pages.vllm.processes.engine_cores import EngineCores  # noqa: E402
from hybrid_pages.vllm.processes.nodes import (  # noqa: E402
    Nodes,
    require_nodes,
    require_one_budget,
)
from hybrid_pages.vllm.scheduler.connection import EngineFacts  # noqa: E402
from hybrid_pages.vllm.scheduler.events import event_groups  # noqa: E402
from hybrid_pages.vllm.scheduler.half import SchedulerHalf  # noqa: E402
from hybrid_pages.vllm.scheduler.requests.check import KEY  # noqa: E402
from hybrid_pages.vllm.startup import advice  # noqa: E402
from hybrid_pages.vllm.versions import logger  # noqa: E402
from hybrid_pages.vllm.worker.half import WorkerHalf, exchange_of  # noqa: E402

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


_SOURCES = {"host": CacheHitSource.HOST, "disk": CacheHitSource.DISK}


class HybridPagesConnector(KVConnectorBase_V1, SupportsHMA):
    """Keeps pages and checkpoints of hybrid models in host memory and brings them back.

    Args:
        vllm_config: the engine's configuration; settings are in
            ``kv_transfer_config.kv_connector_extra_config``.
        role: which half this process needs.
        kv_cache_config: vLLM's plan of the KV cache.

    Raises:
        SettingsError: an unknown or impossible setting.
        UnsupportedError: a feature of this engine that is not supported.
    """

    def __init__(
        self,
        vllm_config: "VllmConfig",
        role: KVConnectorRole,
        kv_cache_config: "KVCacheConfig",
    ) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self.scheduler: SchedulerHalf | None = None
        self.worker: WorkerHalf | None = None
        self._cache_config = vllm_config.cache_config
        self._block_tokens = vllm_config.cache_config.block_size
        if role == KVConnectorRole.SCHEDULER:
            self._start(vllm_config, kv_cache_config, None)
        else:
            with together(exchange_of(vllm_config)) as exchange:
                self._start(vllm_config, kv_cache_config, exchange)

    def _start(
        self,
        vllm_config: "VllmConfig",
        kv_cache_config: "KVCacheConfig",
        exchange: Exchange | None,
    ) -> None:
        """Makes the half of this process: a worker's, if it has an exchange."""
        transfer = vllm_config.kv_transfer_config
        cores = EngineCores.of(vllm_config.parallel_config)
        nodes = Nodes.of(vllm_config.parallel_config)
        require_one_budget(transfer.kv_connector_extra_config.get("host_gb"), nodes)
        fix_budget(transfer.kv_connector_extra_config, cores.here)
        settings = Settings.parse(transfer.kv_connector_extra_config)
        require_groups(kv_cache_config)
        require_config(vllm_config, recurrent=has_states(kv_cache_config))
        require_nodes(nodes, settings)
        context = vllm_config.parallel_config.decode_context_parallel_size
        grid = with_drafts(block_grid(kv_cache_config, context=context), vllm_config)
        if exchange is None:
            stages, tensor_ranks = versions.world_of(vllm_config.parallel_config)
            publishes = versions.publishes_events(vllm_config)
            events = event_groups(kv_cache_config, context) if publishes else None
            plan = planned_geometry(vllm_config, kv_cache_config)
            advice.warn(vllm_config, settings, grid, plan)
            engine = EngineFacts(
                grid,
                stages * tensor_ranks,
                plan,
                stores=transfer.is_kv_producer,
                loads=transfer.is_kv_consumer,
                cores=cores,
                nodes=nodes,
                event_groups=events,
                pins=versions.pins_memory(),
                model=ModelFacts(vllm_config, settings.lasting) if settings.lasting else None,
                ahead=versions.steps_ahead(vllm_config),
                stores_in_steps=settings.stores_in_steps(pinned=versions.pins_memory()),
                stages=stages,
            )
            self.scheduler = SchedulerHalf(settings, engine)
        else:
            alone = versions.is_outermost(transfer)
            self.worker = WorkerHalf(
                settings, vllm_config, kv_cache_config, exchange=exchange, alone=alone
            )

    # ---- both

    @property
    def requires_kv_delivery(self) -> bool:
        """False: this is a cache, where a failed store costs no more than a later miss."""
        return False

    def shutdown(self) -> None:
        """Ends every copy, and the recording."""
        if self.worker is not None:
            self.worker.shutdown()
        if self.scheduler is not None:
            self.scheduler.shutdown()

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """The scheduler half's counters, which include what workers have reported."""
        return self.scheduler.step_stats() if self.scheduler is not None else None

    @classmethod
    def build_kv_connector_stats(
        cls, data: dict[str, Any] | None = None
    ) -> KVConnectorStats | None:
        """Makes stats from their serialised form."""
        return HybridPagesStats(data) if data is not None else HybridPagesStats()

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: "VllmConfig",
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics | None:
        """The connector's Prometheus metrics."""
        return HybridPagesPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # ---- worker

    def _worker(self) -> WorkerHalf:
        if self.worker is None:
            raise EngineError("a worker's call reached the scheduler half")
        return self.worker

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Takes this rank's KV buffers."""
        self._worker().register(kv_caches)

    def unregister_kv_caches(self) -> None:
        """Releases the buffers, for sleep mode."""
        self._worker().unregister()

    def restore_kv_caches(self) -> None:
        """Takes the buffers again after wake-up."""
        self._worker().restore()

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """This rank's report, so that a mismatch of ranks is an error at startup.

        A ``MultiConnector`` passes the payload of one child to all children, and some reject those
        of others. Beside other connectors the report therefore comes with the first metadata.
        """
        worker = self._worker()
        return worker.handshake() if worker.alone else None

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Orders the copies that start with this step before its forward pass.

        vLLM calls this after it has zeroed new blocks and freed those of preempted requests.

        Order of calls: ``vllm/v1/worker/gpu/model_runner.py``, ``execute_model``, and
        ``vllm/v1/worker/kv_connector_model_runner_mixin.py``.
        """
        super().bind_connector_metadata(connector_metadata)
        if self.worker is not None:
            self.worker.begin(self._step())

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:
        """Starts this step's loads, and on a GPU the stores of the step before. They are
        asynchronous: nothing in this step reads what they write."""
        self._worker().start_copies(self._step())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Does nothing: loads end between steps."""

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: torch.Tensor,
        attn_metadata: "AttentionMetadata",
        **kwargs: Any,
    ) -> None:
        """Does nothing: stores start after the forward pass, and vLLM does not call this for
        recurrent layers."""

    def wait_for_save(self) -> None:
        """Takes this step's stores, and in ``step`` mode waits for them."""
        self._worker().take_stores(self._step())

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """The requests whose loads have ended, failed ones included.

        The scheduler half has the failed ones recomputed, whatever ``kv_load_failure_policy`` says.
        """
        return KVConnectorTransferResults(finished_recving=self._worker().collect(self._step()))

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """The outcomes of this rank's copies, for the scheduler half."""
        return self._worker().take_metadata()

    def _step(self) -> StepMetadata:
        metadata = self._connector_metadata
        return metadata if isinstance(metadata, StepMetadata) else StepMetadata()

    # ---- scheduler

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        """Whether a request may begin with pages of vLLM's own that have no state: then this
        connector brings the state. Another connector beside it might not."""
        return self.scheduler is not None and self.scheduler.takes_pages

    def _scheduler(self) -> SchedulerHalf:
        if self.scheduler is None:
            raise EngineError("a scheduler's call reached the worker half")
        return self.scheduler

    def set_xfer_handshake_metadata(
        self, metadata: dict[int, KVConnectorHandshakeMetadata]
    ) -> None:
        """Takes the ranks' reports, and leaves payloads of other connectors alone."""
        reports = [report for report in metadata.values() if isinstance(report, Report)]
        if reports:
            self._scheduler().confirm(reports)
            self._scheduler().connection.agreement.require_all()

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Takes the reports of all pipeline stages. Each names its own rank."""
        self.set_xfer_handshake_metadata(dict(enumerate(metadata.values())))

    def on_new_request(self, request: "Request") -> None:
        """Notes a request, which may wait for its first lookup."""
        self._scheduler().arrived(request)

    def bind_kv_cache_manager(self, kv_cache_manager: "KVCacheManager") -> None:
        """Takes the cache manager, and from it the block pool."""
        self._scheduler().bind_manager(kv_cache_manager)
        super().bind_kv_cache_manager(kv_cache_manager)

    def bind_gpu_block_pool(self, gpu_block_pool: "BlockPool") -> None:
        """Takes the block pool whose blocks are pinned while they are copied."""
        self._scheduler().bind_pool(gpu_block_pool)

    def get_num_new_matched_tokens(
        self, request: "Request", num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """How many tokens can be restored beyond vLLM's own hit. They are loaded asynchronously.

        None makes vLLM ask again at its next step; the request holds no blocks meanwhile.
        """
        found = versions.restore_block_size(self._cache_config, self._block_tokens)
        if found is not None:
            logger.warning(
                "vLLM's cache_config.block_size: expected %d, with which its scheduler was made, "
                "found %d; restored",
                self._block_tokens,
                found,
            )
        try:
            tokens = self._scheduler().match(request, num_computed_tokens)
        except Exception:
            logger.exception("the lookup of request %s failed", request.request_id)
            self._scheduler().connection.figures.count("failures", label="lookup")
            tokens = 0
        return tokens, bool(tokens)

    def update_state_after_alloc(
        self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int
    ) -> None:
        """Plans the load into the allocated blocks."""
        self._scheduler().allocated(request, blocks.blocks, num_external_tokens)

    def get_external_cache_hit_sources(
        self, request: "Request", num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        """The tokens of a load by where they were, in vLLM's words: it has none for a remote
        store."""
        connection = self._scheduler().connection
        tracked = connection.requests.get(request.request_id)
        found: dict[CacheHitSource, int] = {}
        if tracked is not None and connection.connected:
            for tier, tokens in connection.loads.sources(tracked, num_external_tokens).items():
                source = _SOURCES.get(tier, CacheHitSource.EXTERNAL_UNSPECIFIED)
                found[source] = found.get(source, 0) + tokens
        return found

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> KVConnectorMetadata:
        """This step's stores and loads."""
        return self._scheduler().step(scheduler_output)

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        """Publishes what every rank has copied, unless it was copied from invalid blocks."""
        self._scheduler().reported(connector_output)

    def request_finished(
        self, request: "Request", block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Does what :meth:`request_finished_all_groups` does, for an engine of one group."""
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: "Request", block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Forgets the request; pins, not requests, keep source blocks alive."""
        told = self._scheduler().forget(request, block_ids)
        return False, None if told is None else {KEY: told}

    def has_pending_block_frees(self) -> bool:
        """Whether pinned blocks will soon be free, so that waiting beats preempting."""
        return self._scheduler().storing

    def has_pending_push_work(self) -> bool:
        """Whether an idle or paused engine has to step on until its copies have ended."""
        return self._scheduler().copying

    def take_events(self) -> "Iterable[KVCacheEvent]":
        """KV events about blocks that have become, or are no longer, reusable by prompts."""
        return self._scheduler().take_events()

    def reset_cache(self) -> bool | None:
        """Forgets every page and checkpoint."""
        self._scheduler().reset()
        return True
