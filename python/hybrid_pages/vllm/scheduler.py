"""The scheduler half: what is known, what moves in a step, what is published."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.v1.request import RequestStatus

from hybrid_pages import Arena, Cache, Geometry, GeometryError
from hybrid_pages.budget import GIB, slots_of
from hybrid_pages.vllm.checkpoints import Checkpoints
from hybrid_pages.vllm.epochs import Epochs
from hybrid_pages.vllm.here import worker_here
from hybrid_pages.vllm.invalid import spread
from hybrid_pages.vllm.layout import BlockGrid
from hybrid_pages.vllm.load import Loads
from hybrid_pages.vllm.log import logger
from hybrid_pages.vllm.machine import boot_id, require_machine
from hybrid_pages.vllm.messages import Report, StepMetadata, StoreJob, WorkerMetadata
from hybrid_pages.vllm.metrics import KINDS, Figures, HybridPagesStats
from hybrid_pages.vllm.recording import Recording
from hybrid_pages.vllm.settings import Settings
from hybrid_pages.vllm.states import Tables
from hybrid_pages.vllm.store import Stores
from hybrid_pages.vllm.tracking import Tracked

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request


_STEPS_IN_FLIGHT = 2
"""A step is reported by the second update after it was planned, if not by the first."""
_FAILED = RequestStatus.FINISHED_ERROR


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
    ) -> None:
        if not stores:  # no step has to end for a checkpoint
            settings = dataclasses.replace(settings, checkpoint_mode="none", checkpoint_interval=0)
        self.settings, self.grid, self.ranks = settings, grid, ranks
        self.engine_id = engine_id
        self._may_store, self._may_load = stores, loads
        self.figures = Figures()
        self.epochs = Epochs()
        self.connected = False
        self._plan: Geometry | None = None
        self._reports: dict[int, Report] = {}
        self._confirmed = False
        self._refused: str | None = None
        self._manager: KVCacheManager | None = None
        self._pool: BlockPool | None = None
        self._requests: dict[str, Tracked] = {}
        self._arrived: set[str] = set()
        self._gone: list[tuple[str, Tables, int]] = []
        """Blocks of requests that have ended, and updates until no report can name them."""
        self._wary = 0
        """Updates until every load of another connector has been reported on."""
        self._recording: Recording | None = None
        if settings.trace_dir:
            self._recording = Recording(
                Path(settings.trace_dir), grid.block_tokens, grid.stride, self.figures
            )
        if plan is not None:
            self._connect(plan)

    # ---- start

    def _connect(self, plan: Geometry) -> None:
        self._plan = self.geometry = plan
        slot_bytes = plan.suggest_slot_bytes()
        slots = slots_of(self.settings.host_gb, plan, slot_bytes)
        self.cache = Cache(plan, slot_bytes=slot_bytes, slots=slots, policy=self.settings.policy)
        self.arena = Arena.create(plan, slot_bytes=slot_bytes, slots=slots)
        self.checkpoints = Checkpoints(plan, self.cache, self.grid, self.settings, self.figures)
        self.stores = Stores(plan, self.cache, self.grid, self.checkpoints, self.figures)
        self.loads = Loads(plan, self.cache, self.grid, self.figures)
        self.stores.pool = self._pool
        self.connected = True
        logger.info("%s", self.describe())

    def confirm(self, reports: Iterable[Report]) -> None:
        """Takes what ranks have read: at start if vLLM hands it over, and with first metadata.

        Raises:
            GeometryError: a rank's plan differs from the scheduler's, or its tensors from rank 0's.
            UnsupportedError: a rank on another machine.
        """
        news = [report for report in reports if report != self._reports.get(report.rank)]
        for report in news:
            require_machine(f"rank {report.rank}", boot_id(), report.machine)
            if not 0 <= report.rank < self.ranks:
                raise GeometryError(f"ranks: expected 0 to {self.ranks - 1}, found {report.rank}")
            plan = Geometry.from_json(report.plan)
            if self._plan is None:
                self._connect(plan)
            elif difference := self._plan.difference(plan):
                raise GeometryError(
                    f"rank {report.rank} plans another cache than the scheduler: {difference}"
                )
            self._reports[report.rank] = report
        if news:
            self._compare()

    def _compare(self) -> None:
        found = {
            rank: Geometry.from_json(report.geometry) for rank, report in self._reports.items()
        }
        for rank, geometry in found.items():
            first = min(found)
            if difference := found[first].difference(geometry):
                raise GeometryError(f"rank {rank} differs from rank {first}: {difference}")
        if len(found) == self.ranks and not self._confirmed:
            self._confirmed = True
            self.geometry = found[0]
            logger.info(
                "hybrid-pages: all %d ranks hold what was planned, fingerprint %s",
                self.ranks,
                self.geometry.fingerprint.hex()[:12],
            )

    def _refuse(self, error: Exception) -> None:
        """From now on nothing is stored or loaded: the workers are not as planned."""
        self._refused = str(error)
        logger.error("hybrid-pages stores and restores nothing in this engine: %s", error)
        self.figures.count("failures", label="geometry")
        if self.connected:
            self.stores.drop_unsent()
        self._clear()

    @property
    def serving(self) -> bool:
        """Whether there is a cache, and nothing speaks against its use."""
        return self.connected and self._refused is None

    def describe(self) -> str:
        """One line: the geometry, and what the budget holds."""
        sizes = dict.fromkeys(KINDS, 0)
        for item in self.geometry.classes:
            sizes[item.kind] += item.entry_bytes
        counts = {kind: sum(group.kind == kind for group in self.geometry.groups) for kind in KINDS}
        groups = " + ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        page = sizes["attention"] + sizes["window"]
        budget = self.arena.nbytes
        tokens = budget // (page + sizes["recurrent"]) * self.geometry.block_tokens
        return (
            f"hybrid-pages: N={self.geometry.block_tokens} tokens a block, groups: {groups}, "
            f"{self._describe_states()}ranks: {self.ranks}, page {_size(page)}, "
            f"checkpoint {_size(sizes['recurrent'])}, "
            f"host budget {_size(budget)} = {self.arena.slots} slots of "
            f"{_size(self.arena.slot_bytes)}, holds at least {tokens} tokens (with a checkpoint at "
            "every boundary)"
        )

    def _describe_states(self) -> str:
        if all(item.kind != "recurrent" for item in self.geometry.classes):
            return ""
        if self.grid.exports_states:
            return "states: at step ends and exported from inside a prefill's last step, "
        return "states: at step ends, "

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
        """A request has come, and may wait for its first lookup."""
        self._arrived.add(request.request_id)

    def match(self, request: "Request", local_tokens: int) -> int | None:
        """Tokens that can be loaded beyond ``local_tokens``; None if vLLM is to ask again."""
        if not self.serving:
            return 0
        self._follow_engine()
        tracked = self._requests.get(request.request_id)
        reload = self.epochs.reload(request, None if tracked is None else tracked.reload)
        namespace = self.cache.namespace(self.epochs.identity(request, reload))
        if tracked is not None:
            self.epochs.restarted(tracked, self._keys(tracked))
            tracked.restart()
            self.cache.release_namespace(tracked.namespace)
            tracked.namespace, tracked.reload = namespace, reload
        else:
            tracked = Tracked(request, namespace, reload=reload, refused=not self._may_load)
            self._requests[request.request_id] = tracked
            if self._recording is not None:
                self._recording.arrived(tracked)
            self.checkpoints.arrived(tracked)
        tokens = self.loads.match(tracked, local_tokens)
        if tokens is not None:
            self.checkpoints.looked_up(tracked)
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
                    self._admitted(tracked, start)
                elif start < tracked.position:
                    self._taken_back(tracked, start)
                self.checkpoints.stepped(tracked, start + new_tokens)
                if self._may_store:
                    job = self.stores.plan(tracked, new_tokens, state)
                else:
                    job, tracked.position = None, start + new_tokens
            except Exception:
                logger.exception("a store of request %s could not be planned", request_id)
                self.figures.count("failures", label="store_plan")
            else:
                if job is not None:
                    yield job

    def _admitted(self, tracked: Tracked, start: int) -> None:
        """A request is scheduled for the first time in this admission, behind ``start`` tokens."""
        if self.loads.admitted(tracked, start):
            self._wary = _STEPS_IN_FLIGHT
        if tracked.reads_cache is not None:
            tracked.request.skip_reading_prefix_cache = not tracked.reads_cache
            tracked.reads_cache = None
        local_tokens = start - tracked.loaded
        keys = -(-local_tokens * self.grid.stride // self.grid.block_tokens)
        hit = tracked.request.block_hashes[: max(0, keys)]
        self.epochs.admitted(tracked, hit, self._requests.values())

    def _taken_back(self, tracked: Tracked, start: int) -> None:
        """Tokens from ``start`` on were computed in vain: a session that streams its input goes on
        otherwise. Their pages are written again; what they did to a state stays in it."""
        tracked.stored_blocks = min(tracked.stored_blocks, start // self.grid.block_tokens)
        if self.checkpoints.recurrent:
            self.epochs.distrust(tracked, start // self.grid.block_tokens * self.grid.stride)

    def invalid(self, blocks: Iterable[int]) -> None:
        """Another connector could not load these blocks, and a step has gone on from them.

        What was computed from them is as wrong, and vLLM forgets only a part of it
        (``Scheduler._update_requests_with_invalid_blocks``): it makes one request compute each
        block again, counts it as computed for others that share it, and under asynchronous
        scheduling goes on with a token of the step after.
        """
        tables = {request_id: held for request_id, held, _ in self._gone}
        tables.update((request_id, self._tables(request_id)) for request_id in self._requests)
        wrong, firsts = spread(blocks, tables)
        if self._pool is not None:
            self._pool.evict_blocks(wrong)
        self.stores.void(firsts, wrong)
        for request_id, first in firsts.items():
            tracked = self._requests.get(request_id)
            if tracked is None:
                continue
            tracked.others = 0
            waits = tracked.position is None
            if waits and tracked.request.num_computed_tokens <= first * self.grid.block_tokens:
                continue  # nothing was computed from them, and it computes them itself
            self.epochs.spoil(tracked, first * self.grid.stride)

    def updated(self) -> None:
        """The report of a step has come."""
        self._wary = max(0, self._wary - 1)
        self._gone = [(name, held, left - 1) for name, held, left in self._gone if left > 1]

    def _keys(self, tracked: Tracked) -> int | None:
        """How many keys a request has of what it has computed in this admission."""
        n = self.grid.block_tokens
        return None if tracked.position is None else tracked.position // n * self.grid.stride

    def _tables(self, request_id: str) -> Tables:
        """All blocks that vLLM holds for a request, also those that it has not told as computed."""
        return () if self._manager is None else self._manager.get_block_ids(request_id)

    def finished(self, metadata: Any, received: Iterable[str]) -> None:
        """Takes the workers' word for what ended: publishes stores, ends loads."""
        if isinstance(metadata, WorkerMetadata):
            if self._refused is None:
                try:
                    self.confirm(metadata.reports)
                except Exception as error:
                    self._refuse(error)
            trusted = self._confirmed and self._refused is None
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
        """A load failed: the request begins anew, as ``kv_load_failure_policy: recompute`` says.

        Done here, since beside other connectors vLLM reads that policy for all of them, and by
        default ends such requests.
        """
        tracked = self._requests.get(request_id)
        if tracked is None:
            return  # it ended meanwhile
        if self._manager is None:
            raise RuntimeError("expected vLLM's cache manager at start, found none")
        request = tracked.request
        self._manager.free(request)
        request.num_computed_tokens = 0
        if not all(report.alone for report in self._reports.values()):
            # vLLM reserves room for it as for a request under way. If another connector loaded it
            # now, it might wait for its own reservation for ever.
            tracked.reads_cache = not request.skip_reading_prefix_cache
            request.skip_reading_prefix_cache = True

    def forget(self, request: "Request", tables: Tables) -> None:
        """A request ended: lets go of what no copy under way needs."""
        self._arrived.discard(request.request_id)
        tracked = self._requests.pop(request.request_id, None)
        if tracked is not None:
            self._forget(tracked, tables)
        if not self._requests and not self._arrived:
            self._settle()

    def _forget(self, tracked: Tracked, tables: Tables) -> None:
        name, failed = tracked.request.request_id, tracked.request.status == _FAILED
        tracked.drop_lease()
        try:
            held = self._tables(name) if tracked.spoiled or self._wary else ()
            if self._wary:
                self._gone.append((name, held, _STEPS_IN_FLIGHT))
            aborted = tracked.request.status == RequestStatus.FINISHED_ABORTED
            if not failed and not (aborted and self._wary):
                self.figures.count("hit_tokens", tracked.others, "other")
            self.epochs.ended(tracked, held)
            if failed:
                self.stores.void({name})
            elif self._may_store and self.serving:
                self.stores.finish(tracked, tables)
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

        Nobody steps such an engine while it is idle: its blocks would stay pinned, and it could
        neither be reset nor sleep.
        """
        if self.ranks != 1 or not self.storing or self._wary:
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

        What the engine has computed until now is not published later either.
        """
        loading = self.loads.in_flight if self.connected else ()
        if self.epochs.reset(self._requests.values(), loading):
            logger.warning(
                "vLLM has not emptied its own prefix cache, since blocks are in use: what goes on "
                "from it is not stored (counted as skipped_entries, stale)"
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
                "vLLM has reset its prefix cache: so is hybrid-pages (follow_engine_resets)"
            )
            self._clear()

    # ---- figures

    def stats(self) -> dict[str, dict[str, float]]:
        """Counters since the start and gauges of now; takes nothing from :meth:`take_stats`."""
        self._observe()
        return self.figures.snapshot()

    def take_stats(self) -> HybridPagesStats | None:
        """What happened since the last call, with the gauges of now; None if nothing did."""
        if self.figures.quiet:
            return None
        self._observe()
        return self.figures.take()

    def _observe(self) -> None:
        if self.connected:
            self.figures.observe(self.cache.stats())


def _size(nbytes: int) -> str:
    for unit, scale in (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.4g} {unit}"
    return f"{nbytes} B"
