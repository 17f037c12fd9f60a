"""The scheduler half: what is known, what moves in a step, what is published."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_pages import Arena, Cache, Geometry, GeometryError
from hybrid_pages.vllm.checkpoints import Checkpoints
from hybrid_pages.vllm.epochs import Epochs
from hybrid_pages.vllm.here import worker_here
from hybrid_pages.vllm.layout import BlockGrid
from hybrid_pages.vllm.load import Loads
from hybrid_pages.vllm.log import logger
from hybrid_pages.vllm.messages import Handshake, StepMetadata, StoreJob, WorkerMetadata
from hybrid_pages.vllm.metrics import KINDS, Figures, HybridPagesStats
from hybrid_pages.vllm.recording import Recording
from hybrid_pages.vllm.settings import GIB, Settings
from hybrid_pages.vllm.states import Tables
from hybrid_pages.vllm.store import Stores
from hybrid_pages.vllm.tracking import Tracked

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request


class SchedulerHalf:
    """One engine's cache, stores and loads. Lives in the scheduler's process.

    Cache and arena are made in :meth:`connect`, from what the workers found in their tensors.

    Args:
        settings: checked settings.
        grid: how vLLM cuts sequences into blocks and hashes.
        ranks: tensor-parallel workers; a boundary is published when all of them have copied.
        engine_id: vLLM's name of this engine, by which a worker in the same process is found.
    """

    geometry: Geometry
    arena: Arena
    cache: Cache
    checkpoints: Checkpoints
    stores: Stores
    loads: Loads

    def __init__(
        self, settings: Settings, grid: BlockGrid, ranks: int, engine_id: str | None = None
    ) -> None:
        self.settings, self.grid, self.ranks = settings, grid, ranks
        self.engine_id = engine_id
        self.figures = Figures()
        self.epochs = Epochs()
        self.connected = False
        self._pool: BlockPool | None = None
        self._requests: dict[str, Tracked] = {}
        self._arrived: set[str] = set()
        self._recording: Recording | None = None
        if settings.trace_dir:
            self._recording = Recording(
                Path(settings.trace_dir), grid.block_tokens, grid.stride, self.figures
            )

    # ---- start

    def connect(self, handshakes: Mapping[int, Any]) -> None:
        """Takes the geometry that every rank found and makes the cache for it.

        Raises:
            GeometryError: a rank is missing or differs from the first one.
            BudgetError: ``host_gb`` cannot hold one entry of each kind.
        """
        found = {
            item.rank: Geometry.from_json(item.geometry)
            for item in handshakes.values()
            if isinstance(item, Handshake)
        }
        if sorted(found) != list(range(self.ranks)):
            raise GeometryError(
                f"worker geometries: expected ranks 0 to {self.ranks - 1}, found {sorted(found)}"
            )
        for rank, geometry in found.items():
            if difference := found[0].difference(geometry):
                raise GeometryError(f"rank {rank} differs from rank 0: {difference}")
        self.geometry = geometry = found[0]
        slot_bytes = geometry.suggest_slot_bytes()
        slots = self.settings.host_bytes // slot_bytes
        self.cache = Cache(
            geometry, slot_bytes=slot_bytes, slots=slots, policy=self.settings.policy
        )
        self.arena = Arena.create(geometry, slot_bytes=slot_bytes, slots=slots)
        self.checkpoints = Checkpoints(geometry, self.cache, self.grid, self.settings, self.figures)
        self.stores = Stores(geometry, self.cache, self.grid, self.checkpoints, self.figures)
        self.loads = Loads(geometry, self.cache, self.grid, self.figures)
        self.stores.pool = self._pool
        self.connected = True
        logger.info("%s", self.describe())

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
            f"every boundary), fingerprint {self.geometry.fingerprint.hex()[:12]}"
        )

    def _describe_states(self) -> str:
        if all(item.kind != "recurrent" for item in self.geometry.classes):
            return ""
        if self.grid.exports_states:
            return "states: at step ends and exported from inside a prefill's last step, "
        return "states: at step ends, "

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

    def match(self, request: "Request", local_tokens: int) -> int:
        """Tokens that can be loaded beyond ``local_tokens``."""
        if not self.connected:
            raise GeometryError("expected every worker's geometry before the first request")
        self._follow_engine()
        tracked = self._requests.get(request.request_id)
        reload = self.epochs.reload(request, None if tracked is None else tracked.reload)
        namespace = self.cache.namespace(self.epochs.identity(request, reload))
        if tracked is not None:
            tracked.restart()
            tracked.namespace, tracked.reload = namespace, reload
        else:
            tracked = Tracked(request, namespace, reload=reload)
            self._requests[request.request_id] = tracked
            if self._recording is not None:
                self._recording.arrived(tracked)
            self.checkpoints.arrived(tracked)
        tokens = self.loads.match(tracked, local_tokens)
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
        if not self.connected:
            return StepMetadata()
        self._follow_engine()
        return StepMetadata(
            arena=self.arena.path,
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
            start = tracked.request.num_computed_tokens
            try:
                if tracked.position is None:
                    self._admitted(tracked, start - tracked.loaded)
                elif start < tracked.position:
                    self._taken_back(tracked, start)
                self.checkpoints.stepped(tracked, start + new_tokens)
                job = self.stores.plan(tracked, new_tokens, state)
            except Exception:
                logger.exception("a store of request %s could not be planned", request_id)
                self.figures.count("failures", label="store_plan")
            else:
                if job is not None:
                    yield job

    def _admitted(self, tracked: Tracked, local_tokens: int) -> None:
        """A request is scheduled behind a hit of so many tokens in vLLM's own cache."""
        keys = -(-local_tokens * self.grid.stride // self.grid.block_tokens)
        hit = tracked.request.block_hashes[: max(0, keys)]
        self.epochs.admitted(tracked, hit, self._requests.values())

    def _taken_back(self, tracked: Tracked, start: int) -> None:
        """Tokens from ``start`` on were computed in vain: a session that streams its input goes on
        otherwise. Their pages are written again; what they did to a state stays in it."""
        tracked.stored_blocks = min(tracked.stored_blocks, start // self.grid.block_tokens)
        if self.checkpoints.recurrent:
            self.epochs.distrust(tracked)

    def finished(self, metadata: Any, received: Iterable[str]) -> None:
        """Takes the workers' word for what ended: publishes stores, ends loads."""
        if isinstance(metadata, WorkerMetadata):
            for job, outcomes in metadata.stores.items():
                self.stores.ended(job, outcomes)
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
                self.loads.released(request_id)

    def forget(self, request: "Request", tables: Tables) -> None:
        """A request ended: lets go of what no copy under way needs."""
        self._arrived.discard(request.request_id)
        tracked = self._requests.pop(request.request_id, None)
        if tracked is not None:
            self._forget(tracked, tables)
        if not self._requests and not self._arrived:
            self._settle()

    def _forget(self, tracked: Tracked, tables: Tables) -> None:
        request = tracked.request
        tracked.drop_lease()
        self.epochs.ended(tracked)
        try:
            self.stores.finish(tracked, tables)
        except Exception:
            logger.exception("a store of request %s could not be planned", request.request_id)
            self.figures.count("failures", label="store_plan")
        if self._recording is not None:
            self._recording.finished(tracked)
        try:
            self.checkpoints.finished(tracked)
        except Exception:
            logger.exception("the policy was not told the end of %s", request.request_id)
            self.figures.count("failures", label="finish")

    def _settle(self) -> None:
        """Ends every store if the worker is in this process.

        Nobody steps such an engine while it is idle: its blocks would stay pinned, and it could
        neither be reset nor sleep.
        """
        if self.ranks != 1 or not self.storing:
            return
        worker = worker_here(self.engine_id, self.arena.path)
        if worker is None:
            return
        try:
            unsent = StepMetadata(arena=self.arena.path, stores=self.stores.take_unsent())
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
