"""The scheduler half: vLLM's calls, from the arrival of a request to its end."""

import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_pages import HybridPagesError
from hybrid_pages._core import StepCalls
from hybrid_pages.adapter.disk import close_disk
from hybrid_pages.adapter.errors import EngineError
from hybrid_pages.adapter.remote import close_remote
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.config.settings import Settings
from hybrid_pages.vllm.layout.grid import Tables
from hybrid_pages.vllm.messages import Report, StepMetadata, WorkerMetadata
from hybrid_pages.vllm.metrics import HybridPagesStats
from hybrid_pages.vllm.processes.colocation import worker_here
from hybrid_pages.vllm.scheduler.connection import Connection, EngineFacts
from hybrid_pages.vllm.scheduler.engine_steps import Steps
from hybrid_pages.vllm.scheduler.loads.pace import Pace
from hybrid_pages.vllm.scheduler.requests.recording import Recording
from hybrid_pages.vllm.scheduler.requests.tracked import Reload, Tracked
from hybrid_pages.vllm.scheduler.stale.epochs import Epochs
from hybrid_pages.vllm.scheduler.stale.invalid import InvalidBlocks
from hybrid_pages.vllm.versions import logger

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from hybrid_pages import Geometry


_STATS_SECONDS = 1.0
"""A busy engine's figures go out so often: gathering them in every step would cost each one."""


class SchedulerHalf(Connection):
    """One engine's cache, stores and loads. Lives in the scheduler's process.

    See :class:`~hybrid_pages.vllm.scheduler.connection.Connection` for arguments and errors.
    """

    def __init__(self, settings: Settings, engine: EngineFacts) -> None:
        super().__init__(settings, engine)
        self.name = uuid.uuid4().hex
        """By which a worker in the same process is found."""
        self._no_copies = StepMetadata(self.name)
        self._tiers_by: float | None = None
        """When requests stop waiting for the tiers below to be opened."""
        self.epochs = Epochs(lasting=engine.model is not None)
        self._requests: dict[str, Tracked] = {}
        self._arrived: set[str] = set()
        self._invalid = InvalidBlocks(engine.grid, self.epochs)
        self._steps = Steps(self, self._requests, self.epochs, self._invalid)
        self._speculates = engine.grid.drafts > 0 and engine.stores
        self.calls = StepCalls(self, self._requests, self._arrived, figures_every=_STATS_SECONDS)
        """What vLLM calls in every step; it asks this object where there is something to do."""
        self._recording: Recording | None = None
        if settings.trace_dir:
            grid = engine.grid
            self._recording = Recording(
                Path(settings.trace_dir), grid.block_tokens, grid.stride, self.figures
            )

    def _connect(self, plan: "Geometry") -> None:
        super()._connect(plan)
        self.stores.closed = lambda error: self._stop(error, "panic")

    def bind_pool(self, pool: "BlockPool") -> None:
        """Takes vLLM's block pool, which pins source blocks while they are copied."""
        super().bind_pool(pool)
        self.epochs.bind(pool)

    def confirm(self, reports: Iterable[Report]) -> None:
        """As of :class:`~hybrid_pages.vllm.scheduler.connection.Connection`."""
        super().confirm(reports)
        # Drafts, and how fast prompts are computed, are followed here from step to step.
        if self.agreement.geometry is not None and self.pace is None and not self.grid.drafts:
            self.calls.serve(
                self.stores.core,
                self.stores,
                begins=self._steps.begins,
                planned=None if self.events is None else self.events.note,
                waiting=(self.loads.in_flight, self.stores.unsent, *self._invalid.waiting),
                metadata=StepMetadata,
                name=self.name,
                nothing=self._no_copies,
                outcomes=WorkerMetadata,
            )

    # ---- a step, in vLLM's order of calls

    def arrived(self, request: "Request") -> None:
        """Notes a new request, which may wait for its first lookup."""
        self._arrived.add(request.request_id)

    def match(self, request: "Request", local_tokens: int) -> int | None:
        """Tokens that can be loaded beyond ``local_tokens``; None if vLLM is to ask again."""
        self._look_for_panics()
        if not self.serving:
            return 0
        # The engine resets only while no request holds blocks, and asks here before one does.
        if self.epochs.engine_was_reset():
            self._engine_was_reset()
        tracked = self._requests.get(request.request_id)
        waited = tracked is not None and tracked.waits
        if tracked is None:
            namespace, reload = self._namespace(request, None)
            tracked = Tracked.of(request, namespace, self.keys.none_yet())
            tracked.reload, tracked.skips_loads = reload, not self.may_load
            self._requests[request.request_id] = tracked
            if self._recording is not None:
                self._recording.arrived(tracked)
            self.checkpoints.arrived(tracked)
        else:
            self.epochs.restarted(tracked, self._keys(tracked))
            tracked.restart()
            if not waited:
                self._name_again(tracked)
        tokens = self._tokens(tracked, local_tokens)
        # Its LoRA may have changed while it waited; a look in every step would cost too much.
        if waited and tokens is not None and self._name_again(tracked):
            tokens = self._tokens(tracked, local_tokens)
        tracked.waits = tokens is None
        if tokens is not None:
            self.checkpoints.looked_up(tracked)
        if self.events is not None and self.settings.lasting:  # there are blocks of other engines
            self.events.note(tracked)
        return tokens

    def _tokens(self, tracked: Tracked, local_tokens: int) -> int | None:
        return None if self._awaits_tiers() else self.loads.match(tracked, local_tokens)

    def _namespace(self, request: "Request", pending: Reload | None) -> tuple[int, Reload | None]:
        """The namespace of a request, held, and the reload that its LoRA is to have."""
        if request.lora_request is None:
            return self.namespaces.hold(b"", request.cache_salt), None
        reload = self.epochs.reload(request, pending)
        identity = self.epochs.identity(request, reload)
        return self.namespaces.hold(identity, request.cache_salt), reload

    def _name_again(self, tracked: Tracked) -> bool:
        """Finds the namespace of a request anew; says whether it is another one."""
        namespace, reload = self._namespace(tracked.request, tracked.reload)
        changed = namespace != tracked.run.namespace
        if changed:
            tracked.drop_restore()
        self.namespaces.release(tracked.run.namespace)
        tracked.run.namespace, tracked.reload = namespace, reload
        return changed

    def _awaits_tiers(self) -> bool:
        """Whether the first requests wait for the ranks' reports, without which no tier below is
        open. They come with the next step, if not at startup."""
        if not self.settings.lasting or self.agreement.geometry is not None:
            return False
        now = time.monotonic()
        self._tiers_by = self._tiers_by or now + self.loads.wait_seconds
        return now < self._tiers_by

    def allocated(self, request: "Request", tables: Tables, external_tokens: int) -> None:
        """Plans the load into the blocks that vLLM gave the request."""
        if self.connected:
            tracked = self._requests.get(request.request_id)
            self.loads.allocated(request, tracked, tables, external_tokens)

    def step(self, scheduler_output: "SchedulerOutput") -> StepMetadata:
        """This step's copies, in both directions."""
        self._look_for_panics()
        if not self.serving:
            # Of a cache that was stopped: loads between two waves end as failed.
            loads = self.loads.take_planned() if self.connected else []
            return StepMetadata(self.name, loads=loads) if loads else StepMetadata()
        if self.pace is not None:
            self._note_pace(scheduler_output, self.pace)
        stores, loads = self._steps.stores(scheduler_output), self.loads.take_planned()
        if self.stores.unsent:
            stores |= self.stores.take_unsent()
        idle = not scheduler_output.total_num_scheduled_tokens
        copying = self.storing or self.loads.in_flight
        if idle and not copying and not self._will_free(scheduler_output):
            self.loads.parked.refuse(self._requests.values())
        if not (stores or loads or idle):
            return self._no_copies
        return StepMetadata(self.name, stores, loads, idle)

    def _will_free(self, idle: "SchedulerOutput") -> bool:
        """Whether vLLM gives blocks back after this step: it does so when the steps in flight are
        reported, those of requests that have just ended or were preempted among them."""
        if idle.finished_req_ids or idle.preempted_req_ids:
            return True
        return any(each.request.num_in_flight_tokens for each in self._requests.values())

    def _note_pace(self, output: "SchedulerOutput", pace: Pace) -> None:
        known = pace.planned(output.total_num_scheduled_tokens, len(output.num_scheduled_tokens))
        if known and pace.tokens_per_second:
            self.cache.set_compute_rate(pace.tokens_per_second / self.grid.block_tokens)

    def invalid(self, blocks: Iterable[int]) -> None:
        """Another connector could not load these blocks, and a step has gone on from them."""
        if not self.connected:
            return
        tables = {request_id: self.ids(request_id) for request_id in self._requests}
        self._invalid.follow(blocks, self._requests, tables, self.pool, self.stores)

    def reported(self, connector_output: "KVConnectorOutput") -> None:
        """The report of a step has come, with what the workers say, and requests that got loads."""
        if connector_output.invalid_block_ids:
            self.invalid(connector_output.invalid_block_ids)
        if any(self._invalid.waiting):
            self._invalid.updated()
        if self._speculates and self.serving:
            self._steps.reported()
        if connector_output.kv_connector_worker_meta is not None:
            self._ended(connector_output.kv_connector_worker_meta)
        if connector_output.finished_recving and self.connected:
            for request_id in connector_output.finished_recving:
                if self.loads.released(request_id):
                    self._recompute(request_id)

    def _keys(self, tracked: Tracked) -> int | None:
        """How many keys a request has of what it has computed in this run."""
        n = self.grid.block_tokens
        position = tracked.run.position
        return None if position is None else position // n * self.grid.stride

    def _ended(self, metadata: Any) -> None:
        """Publishes stores and ends loads that the workers report as ended."""
        if isinstance(metadata, WorkerMetadata):
            if metadata.reports and not self.stopped:
                try:
                    self.confirm(metadata.reports)
                except Exception as error:
                    self._stop(error)
            self._look_for_panics()
            if metadata.ready and not self.stopped:
                self.got_ready(metadata.ready)
            trusted = self.agreement.geometry is not None and not self.stopped
            if metadata.stores:
                self.stores.ended(metadata.stores, trusted=trusted)
            for request_id, outcomes in metadata.loads.items():
                try:
                    self.loads.ended(request_id, self._requests.get(request_id), outcomes)
                except Exception:
                    logger.exception("dropping the failed load of %s failed", request_id)
                    self.figures.count("failures", label="invalidate")
        else:
            logger.error("expected WorkerMetadata, found %s", type(metadata).__name__)
            self.figures.count("failures", label="worker_metadata")

    def _look_for_panics(self) -> None:
        """The engine goes on without the cache if a panic has closed that."""
        if self.serving and (failure := self.cache.failure()) is not None:
            self._stop(HybridPagesError(failure), "panic")

    def _stop(self, error: Exception, label: str = "geometry") -> None:
        """Stores and loads nothing from now on: the workers are not as planned, or the cache is
        closed. A second time does nothing."""
        if self.stopped:
            return
        self.stopped = True
        self.calls.rest()
        logger.error("hybrid-pages stores and restores nothing in this engine: %s", error)
        self.figures.count("failures", label=label)
        if self.connected:
            self.stores.drop_unsent()
        self._clear()

    def _recompute(self, request_id: str) -> None:
        """Recomputes a request whose load failed, as ``kv_load_failure_policy: recompute`` does."""
        tracked = self._requests.get(request_id)
        if tracked is None:
            return  # it ended meanwhile
        if self.manager is None:
            raise EngineError("expected vLLM's cache manager at start, found none")
        request = tracked.request
        versions.compute_anew(request, self.manager)
        if not self.agreement.alone:
            # vLLM reserves room for it as for a request under way. If another connector loaded it
            # now, it might wait for its own reservation forever.
            tracked.reads_cache = not request.skip_reading_prefix_cache
            request.skip_reading_prefix_cache = True

    def forget(self, request: "Request", tables: Tables) -> None:
        """A request ended: forgets whatever no copy under way needs."""
        if self.agreement.alone and worker_here(self.name) is not None:
            # It does not step while it is idle, and a step in flight would keep the blocks. Our
            # loads are ordered behind that step.
            versions.free_at_once(request)
        self._arrived.discard(request.request_id)
        tracked = self._requests.pop(request.request_id, None)
        if tracked is not None:
            self._forget(tracked, tables)
        if not self._requests and not self._arrived:
            if self.pace is not None:
                self.pace.rested()
            self._settle()

    def _forget(self, tracked: Tracked, tables: Tables) -> None:
        name, failed = tracked.request.request_id, versions.failed(tracked.request)
        tracked.drop_lease()
        tracked.drop_restore()
        if self.connected:
            self.loads.parked.ended(name)
        try:
            unsure = self._invalid.expected
            held = self.ids(name) if tracked.spoiled or unsure else ()
            self._invalid.ended(name, held)
            if not failed and not (unsure and versions.aborted(tracked.request)):
                self.figures.count("hit_tokens", tracked.others, "other")
            self.epochs.ended(tracked, held)
            if failed:
                self.stores.void({name})
            elif self.may_store and self.serving:
                self.stores.finish(tracked, tables)
                if self.events is not None:
                    self.events.note(tracked)
        except Exception:
            logger.exception("a store of request %s could not be planned", name)
            self.figures.count("failures", label="store_plan")
        try:
            if self._recording is not None:
                self._recording.finished(tracked)
            self.checkpoints.finished(tracked)
        except Exception:
            logger.exception("the policy was not told the end of %s", name)
            self.figures.count("failures", label="finish")
        self.namespaces.release(tracked.run.namespace)

    def _settle(self) -> None:
        """Ends every store if the worker is in this process.

        Such an engine does not step while it is idle: blocks would stay pinned, and it could
        neither be reset nor sleep.
        """
        if self.ranks != 1 or not self.storing or self._invalid.expected:
            return
        worker = worker_here(self.name)
        if worker is None:
            return
        try:
            step = StepMetadata(half=self.name, stores=self.stores.take_unsent())
            ended = worker.end_stores(step)
            ended.stores = self.stores.ahead_of_reports(ended.stores)
            self._ended(ended)
        except Exception:
            logger.exception("the stores of an idle engine could not be ended")
            self.figures.count("failures", label="settle")

    def shutdown(self) -> None:
        """Ends the recording and the use of the tiers below, if there are such."""
        if self._recording is not None:
            self._recording.close()
        self._tell(close_disk(self.disk), close_remote(self.remote))

    def reset(self) -> None:
        """Forgets every page and checkpoint; copies under way end unpublished.

        Nothing that the engine has computed until now is published later either.
        """
        loading = self.loads.in_flight if self.connected else ()
        if self.epochs.reset(self._requests.values(), loading):
            logger.warning(
                "vLLM has not emptied its own prefix cache, since blocks are in use: requests that "
                "go on from it are not stored (counted as skipped_entries, stale)"
            )
        self._clear()

    def _clear(self) -> None:
        for tracked in self._requests.values():
            tracked.drop_lease()
            tracked.drop_restore()
        if self.connected:
            self.cache.clear()
            self.checkpoints.answers.forget()

    def _engine_was_reset(self) -> None:
        """Forgets as the engine has, if the settings say so."""
        if self.settings.follow_engine_resets:
            logger.info(
                "vLLM has reset its prefix cache, so hybrid-pages is reset too "
                "(follow_engine_resets)"
            )
            self._clear()

    # ---- figures

    def stats(self) -> dict[str, dict[str, float]]:
        """Counters since the start and gauges of now; takes nothing from :meth:`take_stats`."""
        self._observe()
        return self.figures.snapshot()

    def take_stats(self) -> HybridPagesStats | None:
        """Counters since they were last taken and gauges of now; None if nothing was counted."""
        if self.connected:
            self.stores.count()
        if not self.figures.interval:
            return None
        self._observe()
        return self.figures.take()

    def _observe(self) -> None:
        if not self.connected:
            return
        self.stores.count()
        self.figures.observe(self.cache.stats())
        tiers = {str(tier["name"]): tier for tier in self.cache.tiers()}
        if self.disk is not None:
            self.figures.observe_disk(self.disk, tiers["disk"])
            self._tell(self.disk.notes(), ())
        if self.remote is not None:
            rate = None if self.pace is None else self.pace.tokens_per_second
            self.figures.observe_remote(self.remote, tiers["remote"], self.cache.restores(), rate)
            self._tell((), self.remote.notes())

    def _tell(self, disk: Iterable[str], remote: Iterable[str]) -> None:
        """Logs what the tiers below say."""
        for note in disk:
            logger.warning("hybrid-pages: the disk at %s: %s", self.settings.disk_path, note)
        for note in remote:
            logger.warning("hybrid-pages: %s", note)
