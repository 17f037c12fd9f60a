"""The scheduler half: follows requests, plans each step's copies, publishes what was stored."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_pages import Arena, Cache, Geometry
from hybrid_pages.adapter.errors import EngineError
from hybrid_pages.adapter.pool import Pool
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.agreement import Agreement
from hybrid_pages.vllm.checkpoints import Checkpoints
from hybrid_pages.vllm.describe import describe
from hybrid_pages.vllm.engine_cores import ONLY_ONE, EngineCores
from hybrid_pages.vllm.epochs import Epochs
from hybrid_pages.vllm.events import EventGroup, Events
from hybrid_pages.vllm.grid import BlockGrid, Tables
from hybrid_pages.vllm.here import worker_here
from hybrid_pages.vllm.invalid import InvalidBlocks
from hybrid_pages.vllm.load import Loads
from hybrid_pages.vllm.log import logger
from hybrid_pages.vllm.machine import boot_id
from hybrid_pages.vllm.messages import Report, StepMetadata, StoreJob, WorkerMetadata
from hybrid_pages.vllm.metrics import Figures, HybridPagesStats
from hybrid_pages.vllm.recording import Recording
from hybrid_pages.vllm.settings import Settings
from hybrid_pages.vllm.store import Stores
from hybrid_pages.vllm.tenants import namespace_of
from hybrid_pages.vllm.tracking import Tracked

if TYPE_CHECKING:
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request


class SchedulerHalf:
    """One engine's cache, stores and loads. Lives in the scheduler's process.

    Cache and arena are made for the planned geometry. Nothing is published before every rank has
    reported the same plan and equal tensors, see :meth:`confirm`.

    Args:
        settings: checked settings.
        grid: how vLLM cuts sequences into blocks and hashes.
        ranks: tensor-parallel workers; a boundary is published when all of them have copied.
        engine_id: vLLM's name of this engine, by which a worker in the same process is found.
        plan: the planned geometry; None if only the workers know it.
        stores, loads: what this engine does, by its ``kv_role``.
        cores: the engine cores, of which this is one.
        event_groups: all KV cache groups, if the engine publishes KV events.

    Raises:
        BudgetError: ``host_gb`` cannot hold one entry of each kind.
    """

    geometry: Geometry
    arena: Arena
    cache: Cache
    checkpoints: Checkpoints
    stores: Stores
    loads: Loads

    def __init__(
        self,
        settings: Settings,
        grid: BlockGrid,
        ranks: int,
        engine_id: str | None = None,
        plan: Geometry | None = None,
        *,
        stores: bool = True,
        loads: bool = True,
        cores: EngineCores = ONLY_ONE,
        event_groups: Sequence[EventGroup] | None = None,
    ) -> None:
        if not stores:  # no step has to end for a checkpoint
            settings = dataclasses.replace(settings, checkpoint_mode="none", checkpoint_interval=0)
        self.settings, self.grid, self.ranks = settings, grid, ranks
        self.engine_id, self.cores = engine_id, cores
        self._may_store, self._may_load = stores, loads
        self.figures = Figures()
        self.epochs = Epochs()
        self.events: Events | None = None
        self._event_groups = event_groups
        self.connected = False
        self.agreement = Agreement(ranks, plan)
        self._stopped = False
        self._manager: KVCacheManager | None = None
        self._pool: BlockPool | None = None
        self._requests: dict[str, Tracked] = {}
        self._arrived: set[str] = set()
        self._invalid = InvalidBlocks(grid, self.epochs)
        self._recording: Recording | None = None
        if settings.trace_dir:
            self._recording = Recording(
                Path(settings.trace_dir), grid.block_tokens, grid.stride, self.figures
            )
        if plan is not None:
            self._connect(plan)

    # ---- start

    def _connect(self, plan: Geometry) -> None:
        self.geometry = plan
        pool = Pool(
            plan,
            host_gb=self.settings.host_gb,
            policy=self.settings.policy,
            tenant_share=self.settings.tenant_share,
        )
        self.cache, self.arena = pool.cache, pool.arena
        self.checkpoints = Checkpoints(plan, self.cache, self.grid, self.settings, self.figures)
        self.stores = Stores(plan, self.cache, self.grid, self.checkpoints, self.figures)
        self.loads = Loads(plan, self.cache, self.grid, self.figures)
        self.stores.pool = self._pool
        self._follow_cache(plan)
        self.connected = True
        logger.info("%s", self.describe())

    def _follow_cache(self, plan: Geometry) -> None:
        """Begins to announce blocks, if the engine publishes KV events."""
        pages = [item for item in plan.classes if item.kind == "attention"]
        if self._event_groups is not None and pages:
            groups = [self._event_groups[index] for index in pages[0].groups]
            self.events = Events(
                self.cache, self.grid, groups, self.figures, self.settings.tenant_share
            )

    def take_events(self) -> "list[KVCacheEvent]":
        """What routers are to be told since the last call."""
        return [] if self.events is None else self.events.take(self._pool)

    def confirm(self, reports: Iterable[Report]) -> None:
        """Takes the ranks' reports: at startup if vLLM hands them over, and with first metadata.

        Raises:
            BudgetError: ``host_gb`` cannot hold one entry of each kind.
            GeometryError: a rank's plan differs from the scheduler's, or its tensors from rank 0's.
            UnsupportedError: a rank on another machine.
        """
        agreed = self.agreement.take(reports)
        if self.agreement.plan is not None and not self.connected:
            self._connect(self.agreement.plan)
        if agreed and self.agreement.geometry is not None:
            self.geometry = self.agreement.geometry
            logger.info(
                "hybrid-pages: all %d ranks hold what was planned, fingerprint %s",
                self.ranks,
                self.geometry.fingerprint.hex()[:12],
            )

    def _stop(self, error: Exception) -> None:
        """Stores and loads nothing from now on: the workers are not as planned."""
        self._stopped = True
        logger.error("hybrid-pages stores and restores nothing in this engine: %s", error)
        self.figures.count("failures", label="geometry")
        if self.connected:
            self.stores.drop_unsent()
        self._clear()

    @property
    def serving(self) -> bool:
        """Whether there is a cache, and the workers are as planned, as far as known."""
        return self.connected and not self._stopped

    def describe(self) -> str:
        """One line: the geometry, and what the budget holds."""
        return describe(
            self.geometry,
            self.arena,
            self.grid,
            cores=self.cores,
            host_gb=self.settings.host_gb,
        )

    def bind_manager(self, manager: "KVCacheManager") -> None:
        """Takes vLLM's cache manager, which knows a request's blocks."""
        self._manager = manager

    def bind_pool(self, pool: "BlockPool") -> None:
        """Takes vLLM's block pool, which pins source blocks while they are copied."""
        self._pool = pool
        self.epochs.bind(pool)
        if self.connected:
            self.stores.pool = pool

    # ---- a step, in vLLM's order of calls

    def arrived(self, request: "Request") -> None:
        """Notes a new request, which may wait for its first lookup."""
        self._arrived.add(request.request_id)

    def match(self, request: "Request", local_tokens: int) -> int | None:
        """Tokens that can be loaded beyond ``local_tokens``; None if vLLM is to ask again."""
        if not self.serving:
            return 0
        self._follow_engine()
        tracked = self._requests.get(request.request_id)
        reload = self.epochs.reload(request, None if tracked is None else tracked.reload)
        identity = self.epochs.identity(request, reload)
        share = self.settings.tenant_share
        namespace = namespace_of(self.cache, identity, request.cache_salt, share)
        if tracked is not None:
            self.epochs.restarted(tracked, self._keys(tracked))
            tracked.restart()
            self.cache.release_namespace(tracked.namespace)
            tracked.namespace, tracked.reload = namespace, reload
        else:
            tracked = Tracked(request, namespace, reload=reload, skips_loads=not self._may_load)
            self._requests[request.request_id] = tracked
            if self._recording is not None:
                self._recording.arrived(tracked)
            self.checkpoints.arrived(tracked)
        tokens = self.loads.match(tracked, local_tokens)
        if tokens is not None:
            self.checkpoints.looked_up(tracked)
        elif self.events is not None:  # a tier below may have blocks from before this engine
            self.events.note(tracked)
        return tokens

    def allocated(
        self, request: "Request", tables: tuple[list[int], ...], external_tokens: int
    ) -> None:
        """Plans the load into the blocks that vLLM gave the request."""
        if self.connected:
            tracked = self._requests.get(request.request_id)
            self.loads.allocated(request, tracked, tables, external_tokens)

    def step(self, output: "SchedulerOutput") -> StepMetadata:
        """This step's copies, in both directions."""
        if not self.serving:
            return StepMetadata()
        self._follow_engine()
        return StepMetadata(
            arena=self.arena.path,
            machine=boot_id(),
            stores=[*self._stores(output), *self.stores.take_unsent()],
            loads=self.loads.take_planned(),
            idle=not output.total_num_scheduled_tokens,
        )

    def _stores(self, output: "SchedulerOutput") -> Iterable[StoreJob]:
        state = output.kv_connector_block_state
        if state is None:
            return
        drafted = self._drafted(output)
        # A hand-over may come for a request that is not scheduled in this step.
        for request_id in {**output.num_scheduled_tokens, **state.boundary_state_offloads}:
            tracked = self._requests.get(request_id)
            if tracked is None:
                continue
            new_tokens = output.num_scheduled_tokens.get(request_id, 0)
            if tracked.position is None and not new_tokens:
                continue  # what is handed over was loaded, and the request waits
            start = tracked.request.num_computed_tokens
            try:
                if tracked.position is None:
                    self._scheduled(tracked, start)
                elif start < tracked.position or self.stores.keys.changed(tracked):
                    self._taken_back(tracked, start)
                lost = self.stores.states.overwritten(tracked, start, start + new_tokens)
                if new_tokens and (lost or not drafted):
                    self.epochs.distrust(tracked, start // self.grid.hash_tokens)
                self.checkpoints.stepped(tracked, start + new_tokens)
                if self._may_store:
                    job = self.stores.plan(tracked, new_tokens, state)
                else:
                    job = None
                    self.stores.states.advance(tracked, start, start + new_tokens)
            except Exception:
                logger.exception("a store of request %s could not be planned", request_id)
                self.figures.count("failures", label="store_plan")
            else:
                if job is not None:
                    if self.events is not None:
                        self.events.note(tracked)
                    yield job

    def _drafted(self, output: "SchedulerOutput") -> bool:
        """Whether a step computes its draft layers, if there are any: the worker leaves them out
        for all of its requests if one is too long for them."""
        longest = self.grid.drafter_tokens
        return longest is None or all(
            tracked.request.num_computed_tokens + new_tokens <= longest
            for request_id, new_tokens in output.num_scheduled_tokens.items()
            if (tracked := self._requests.get(request_id)) is not None
        )

    def _scheduled(self, tracked: Tracked, start: int) -> None:
        """A run of a request begins, behind ``start`` tokens."""
        if self.loads.scheduled(tracked, start):
            self._invalid.expect()
        if tracked.reads_cache is not None:
            tracked.request.skip_reading_prefix_cache = not tracked.reads_cache
            tracked.reads_cache = None
        local_tokens = start - tracked.loaded
        tracked.prompt_tokens = tracked.request.num_prompt_tokens
        if self.grid.lookahead:
            # Nobody knows what came after vLLM's own blocks when their draft layers were computed.
            tracked.offered_blocks = -(-local_tokens // self.grid.block_tokens)
        keys = -(-local_tokens * self.grid.stride // self.grid.block_tokens)
        hit = tracked.request.block_hashes[: max(0, keys)]
        self.epochs.scheduled(tracked, hit, self._requests.values())
        if self.events is not None:
            self.events.begins(tracked)

    def _taken_back(self, tracked: Tracked, start: int) -> None:
        """Tokens from ``start`` on were taken back: a session that streams its input goes on with
        others. Their pages are written again, but a state that includes them stays wrong, and so
        does what a draft layer has computed from the first of them."""
        tracked.prompt_tokens = tracked.request.num_prompt_tokens
        tracked.keys.clear()
        first = max(start - self.grid.lookahead, 0) // self.grid.block_tokens
        tracked.offered_blocks = min(tracked.offered_blocks, first)
        if self.checkpoints.recurrent or self.grid.lookahead:
            self.epochs.distrust(tracked, first * self.grid.stride)

    def invalid(self, blocks: Iterable[int]) -> None:
        """Another connector could not load these blocks, and a step has gone on from them."""
        if not self.connected:
            return
        tables = {request_id: self._tables(request_id) for request_id in self._requests}
        self._invalid.follow(blocks, self._requests, tables, self._pool, self.stores)

    def updated(self) -> None:
        """The report of a step has come."""
        self._invalid.updated()
        if not self.grid.drafts or not self.serving or not self._may_store:
            return
        for name, tracked in self._requests.items():
            try:
                planned = self.stores.reported(tracked, functools.partial(self._tables, name))
            except Exception:
                logger.exception("a store of request %s could not be planned", name)
                self.figures.count("failures", label="store_plan")
            else:
                if planned and self.events is not None:
                    self.events.note(tracked)

    def _keys(self, tracked: Tracked) -> int | None:
        """How many keys a request has of what it has computed in this run."""
        n = self.grid.block_tokens
        return None if tracked.position is None else tracked.position // n * self.grid.stride

    def _tables(self, request_id: str) -> Tables:
        """All blocks that vLLM holds for a request, including those not reported as computed."""
        return () if self._manager is None else self._manager.get_block_ids(request_id)

    def finished(self, metadata: Any, received: Iterable[str]) -> None:
        """Publishes stores and ends loads that the workers report as ended."""
        if isinstance(metadata, WorkerMetadata):
            if not self._stopped:
                try:
                    self.confirm(metadata.reports)
                except Exception as error:
                    self._stop(error)
            trusted = self.agreement.geometry is not None and not self._stopped
            for job, outcomes in metadata.stores.items():
                self.stores.ended(job, outcomes, trusted=trusted)
            for request_id, outcomes in metadata.loads.items():
                try:
                    self.loads.ended(request_id, self._requests.get(request_id), outcomes)
                except Exception:
                    logger.exception("dropping the failed load of %s failed", request_id)
                    self.figures.count("failures", label="invalidate")
        elif metadata is not None:
            logger.error("expected WorkerMetadata, found %s", type(metadata).__name__)
            self.figures.count("failures", label="worker_metadata")
        if self.connected:
            for request_id in received:
                if self.loads.released(request_id):
                    self._recompute(request_id)

    def _recompute(self, request_id: str) -> None:
        """Recomputes a request whose load failed, as ``kv_load_failure_policy: recompute`` does."""
        tracked = self._requests.get(request_id)
        if tracked is None:
            return  # it ended meanwhile
        if self._manager is None:
            raise EngineError("expected vLLM's cache manager at start, found none")
        request = tracked.request
        versions.compute_anew(request, self._manager)
        if not self.agreement.alone:
            # vLLM reserves room for it as for a request under way. If another connector loaded it
            # now, it might wait for its own reservation forever.
            tracked.reads_cache = not request.skip_reading_prefix_cache
            request.skip_reading_prefix_cache = True

    def forget(self, request: "Request", tables: Tables) -> None:
        """A request ended: forgets whatever no copy under way needs."""
        self._arrived.discard(request.request_id)
        tracked = self._requests.pop(request.request_id, None)
        if tracked is not None:
            self._forget(tracked, tables)
        if not self._requests and not self._arrived:
            self._settle()

    def _forget(self, tracked: Tracked, tables: Tables) -> None:
        name, failed = tracked.request.request_id, versions.failed(tracked.request)
        tracked.drop_lease()
        try:
            unsure = self._invalid.expected
            held = self._tables(name) if tracked.spoiled or unsure else ()
            self._invalid.ended(name, held)
            if not failed and not (unsure and versions.aborted(tracked.request)):
                self.figures.count("hit_tokens", tracked.others, "other")
            self.epochs.ended(tracked, held)
            if failed:
                self.stores.void({name})
            elif self._may_store and self.serving:
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
        self.cache.release_namespace(tracked.namespace)

    def _settle(self) -> None:
        """Ends every store if the worker is in this process.

        Such an engine does not step while it is idle: blocks would stay pinned, and it could
        neither be reset nor sleep.
        """
        if self.ranks != 1 or not self.storing or self._invalid.expected:
            return
        worker = worker_here(self.engine_id, self.arena.path)
        if worker is None:
            return
        try:
            unsent = StepMetadata(
                arena=self.arena.path, machine=boot_id(), stores=self.stores.take_unsent()
            )
            self.finished(worker.end_stores(unsent), ())
        except Exception:
            logger.exception("the stores of an idle engine could not be ended")
            self.figures.count("failures", label="settle")

    def shutdown(self) -> None:
        """Ends the recording, if there is one."""
        if self._recording is not None:
            self._recording.close()

    @property
    def storing(self) -> bool:
        """Whether source blocks are pinned by copies that have not ended."""
        return self.connected and bool(self.stores)

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
        if self.connected:
            self.cache.clear()

    def _follow_engine(self) -> None:
        """Forgets when the engine has, if the settings say so."""
        if self.epochs.engine_was_reset() and self.settings.follow_engine_resets:
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
        """Counters since the last call and gauges of now; None if nothing was counted."""
        if self.figures.quiet:
            return None
        self._observe()
        return self.figures.take()

    def _observe(self) -> None:
        if self.connected:
            self.figures.observe(self.cache.stats())
