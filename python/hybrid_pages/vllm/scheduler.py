"""The scheduler half: what is known, what moves in a step, what is published."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_pages import Arena, Cache, Geometry, GeometryError
from hybrid_pages.vllm.checkpoints import Checkpoints
from hybrid_pages.vllm.layout import BlockGrid
from hybrid_pages.vllm.load import Loads
from hybrid_pages.vllm.log import logger
from hybrid_pages.vllm.messages import Handshake, StepMetadata, StoreJob, WorkerMetadata
from hybrid_pages.vllm.metrics import KINDS, Figures, HybridPagesStats
from hybrid_pages.vllm.recording import Recording
from hybrid_pages.vllm.settings import GIB, Settings
from hybrid_pages.vllm.store import Stores
from hybrid_pages.vllm.tracking import Tracked, namespace_identity

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
    """

    geometry: Geometry
    arena: Arena
    cache: Cache
    checkpoints: Checkpoints
    stores: Stores
    loads: Loads

    def __init__(self, settings: Settings, grid: BlockGrid, ranks: int) -> None:
        self.settings, self.grid, self.ranks = settings, grid, ranks
        self.figures = Figures()
        self.connected = False
        self._pool: BlockPool | None = None
        self._requests: dict[str, Tracked] = {}
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
            f"ranks: {self.ranks}, page {_size(page)}, checkpoint {_size(sizes['recurrent'])}, "
            f"host budget {_size(budget)} = {self.arena.slots} slots of "
            f"{_size(self.arena.slot_bytes)}, holds at least {tokens} tokens (with a checkpoint at "
            f"every boundary), fingerprint {self.geometry.fingerprint.hex()[:12]}"
        )

    def bind_pool(self, pool: "BlockPool") -> None:
        """Takes vLLM's block pool, which pins source blocks while they are copied."""
        self._pool = pool
        if self.connected:
            self.stores.pool = pool

    # ---- a step, in vLLM's order of calls

    def match(self, request: "Request", local_tokens: int) -> int:
        """Tokens that can be loaded beyond ``local_tokens``."""
        if not self.connected:
            raise GeometryError("expected every worker's geometry before the first request")
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            tracked = Tracked(request, self.cache.namespace(namespace_identity(request)))
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
        for request_id in output.preempted_req_ids or ():
            if tracked := self._requests.get(request_id):
                tracked.stored_blocks = 0
        return StepMetadata(
            arena=self.arena.path,
            stores=[job for job in self._stores(output) if job is not None],
            loads=self.loads.take_planned(),
            idle=not output.total_num_scheduled_tokens,
        )

    def _stores(self, output: "SchedulerOutput") -> Iterable[StoreJob | None]:
        state = output.kv_connector_block_state
        for request_id, new_tokens in output.num_scheduled_tokens.items():
            tracked = self._requests.get(request_id)
            if tracked is not None and state is not None:
                self.checkpoints.stepped(tracked, tracked.request.num_computed_tokens + new_tokens)
                try:
                    yield self.stores.plan(tracked, new_tokens, state)
                except Exception:
                    logger.exception("a store of request %s could not be planned", request_id)
                    self.figures.count("failures", label="store_plan")

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

    def forget(self, request: "Request") -> None:
        """A request ended: lets go of what no copy under way needs."""
        tracked = self._requests.pop(request.request_id, None)
        if tracked is None:
            return
        tracked.drop_lease()
        if self._recording is not None:
            self._recording.finished(tracked)
        try:
            self.checkpoints.finished(tracked)
        except Exception:
            logger.exception("the policy was not told the end of %s", request.request_id)
            self.figures.count("failures", label="finish")

    def shutdown(self) -> None:
        """Ends the recording, if there is one."""
        if self._recording is not None:
            self._recording.close()

    @property
    def storing(self) -> bool:
        """Whether source blocks are pinned by copies that have not ended."""
        return self.connected and bool(self.stores)

    def reset(self) -> None:
        """Forgets every page and checkpoint; copies under way end unpublished."""
        for tracked in self._requests.values():
            tracked.drop_lease()
            tracked.stored_blocks = 0
        if self.connected:
            self.cache.clear()

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
