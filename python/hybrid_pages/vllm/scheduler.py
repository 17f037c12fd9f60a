"""The scheduler half: what is known, what moves in a step, what is published.

Life of a store: a block fills, its entries are reserved (write lease), the engine's source blocks
are pinned, every rank copies, the lease commits, the pins go. Life of a load: a lookup takes a read
lease, vLLM allocates blocks, every rank copies, vLLM resumes the request, the lease goes. Whatever
fails on the way ends in a miss or a recompute, and is counted.
"""

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.logger import init_logger

from hybrid_pages import Arena, Cache, Geometry, GeometryError, ReadLease, WriteLease
from hybrid_pages.vllm.layout import BlockGrid
from hybrid_pages.vllm.messages import (
    Handshake,
    LoadEntry,
    LoadJob,
    Outcome,
    StepMetadata,
    StoreEntry,
    StoreJob,
    WorkerMetadata,
)
from hybrid_pages.vllm.metrics import HybridPagesStats
from hybrid_pages.vllm.settings import GIB, Settings

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.sched.output import KVConnectorBlockState, SchedulerOutput
    from vllm.v1.request import Request

logger = init_logger(__name__)

KINDS = {"attention": "pages", "window": "windows", "recurrent": "checkpoints"}
_SIZES = ("page_bytes", "window_bytes", "checkpoint_bytes")


@dataclass
class _Tracked:
    """A request as this half follows it."""

    request: "Request"
    namespace: int
    stored_blocks: int = 0
    """Leading blocks already offered to the cache."""
    lease: ReadLease | None = None
    """Held from the lookup until vLLM allocates blocks for it, or the next lookup."""
    lookup: tuple[int, int, int] | None = None
    """(local tokens, restorable tokens, tokens with pages) of the last lookup."""
    refused: bool = False
    """A load failed: this request is computed."""


@dataclass
class _Store:
    """Entries on their way out of the engine."""

    lease: WriteLease
    kinds: list[str]
    pins: "list[KVCacheBlock]"
    outcomes: dict[int, Outcome] = field(default_factory=dict)


class SchedulerHalf:
    """One engine's index, slots and plans. Lives in the scheduler's process.

    Args:
        settings: checked settings.
        grid: how vLLM cuts sequences into blocks and hashes.
        ranks: tensor-parallel workers; a boundary is published when all of them have copied.
    """

    def __init__(self, settings: Settings, grid: BlockGrid, ranks: int) -> None:
        self.settings, self.grid, self.ranks = settings, grid, ranks
        self.geometry: Geometry | None = None
        self.arena: Arena | None = None
        self.cache: Cache | None = None
        self._pool: BlockPool | None = None
        self._requests: dict[str, _Tracked] = {}
        self._stores: dict[int, _Store] = {}
        self._loads: dict[str, ReadLease | None] = {}
        self._new_loads: list[LoadJob] = []
        self._next_job = 0
        self._evicted: dict[str, int] = {}
        self.interval = HybridPagesStats()
        self._total = HybridPagesStats()

    # ---- start

    def connect(self, handshakes: Mapping[tuple[int, int], Any]) -> None:
        """Takes the geometry that every worker found and makes the cache for it.

        Raises:
            GeometryError: a rank is missing or differs from the first one.
            BudgetError: ``host_gb`` cannot hold one entry of each kind.
        """
        found = sorted(
            (item for item in handshakes.values() if isinstance(item, Handshake)),
            key=lambda item: item.rank,
        )
        if [item.rank for item in found] != list(range(self.ranks)):
            raise GeometryError(
                f"worker geometries: expected one from each of {self.ranks} ranks, found ranks "
                f"{[item.rank for item in found]}"
            )
        geometry = Geometry.from_json(found[0].geometry)
        for item in found[1:]:
            if difference := geometry.difference(Geometry.from_json(item.geometry)):
                raise GeometryError(f"rank {item.rank} differs from rank 0: {difference}")
        slot_bytes = geometry.suggest_slot_bytes()
        slots = self.settings.host_bytes // slot_bytes
        self.cache = Cache(
            geometry, slot_bytes=slot_bytes, slots=slots, policy=self.settings.policy
        )
        self.arena = Arena.create(geometry, slot_bytes=slot_bytes, slots=slots)
        self.geometry = geometry
        logger.info("%s", self.describe())

    def describe(self) -> str:
        """One line: the geometry and what the budget holds."""
        geometry, cache = self._ready()
        sizes = {kind: 0 for kind in KINDS}
        for item in geometry.classes:
            sizes[item.kind] += item.entry_bytes
        page = sizes["attention"] + sizes["window"]
        block = page + sizes["recurrent"]
        stats = cache.stats()
        slots, slot_bytes = stats["slots"], stats["slot_bytes"]
        groups = ", ".join(
            f"{sum(group.kind == kind for group in geometry.groups)} {kind}"
            for kind in KINDS
            if any(group.kind == kind for group in geometry.groups)
        )
        tokens = slots * slot_bytes // max(block, 1) * geometry.block_tokens
        return (
            f"hybrid-pages: N={geometry.block_tokens} tokens a block; groups: {groups}; "
            f"{geometry.ranks} rank(s); page {_size(page)}, checkpoint "
            f"{_size(sizes['recurrent'])}; host budget {self.settings.host_gb:g} GiB = {slots} "
            f"slots of {_size(slot_bytes)}, holding at least "
            f"{tokens} tokens (a checkpoint at every boundary); "
            f"fingerprint {geometry.fingerprint.hex()[:12]}"
        )

    def bind_pool(self, pool: "BlockPool") -> None:
        """Takes vLLM's block pool, which pins source blocks while they are copied."""
        self._pool = pool

    def _ready(self) -> tuple[Geometry, Cache]:
        if self.geometry is None or self.cache is None:
            raise GeometryError(
                "no worker has reported its geometry: expected a handshake before the first request"
            )
        return self.geometry, self.cache

    # ---- lookup and load

    def track(self, request: "Request") -> _Tracked:
        """Follows a request from its arrival to its end."""
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            _, cache = self._ready()
            tracked = _Tracked(request, cache.namespace(_namespace(request)))
            self._requests[request.request_id] = tracked
        return tracked

    def match(self, request: "Request", local_tokens: int) -> int:
        """Tokens that can be loaded beyond ``local_tokens``; holds them until allocation.

        At least the prompt's last token is left to compute, so a transition is applied once.
        """
        _, cache = self._ready()
        tracked = self.track(request)
        _drop_lease(tracked)
        tracked.lookup = None
        n, stride = self.grid.block_tokens, self.grid.stride
        if request.skip_reading_prefix_cache or local_tokens % n:
            return 0
        limit = (request.num_tokens - 1) // n
        keys = request.block_hashes
        hit = cache.lookup(tracked.namespace, keys, stride=stride, limit=limit)
        tracked.lookup = (local_tokens, hit.blocks * n, hit.pages * n)
        if tracked.refused or hit.blocks * n <= local_tokens:
            return 0
        tracked.lease = cache.acquire(
            tracked.namespace, keys, stride=stride, first=local_tokens // n, limit=limit
        )
        return tracked.lease.blocks * n - local_tokens if tracked.lease else 0

    def allocated(
        self, request: "Request", block_ids: tuple[list[int], ...], external_tokens: int
    ) -> None:
        """Plans the load into the blocks that vLLM gave the request; counts the lookup."""
        tracked = self._requests.get(request.request_id)
        lease = None
        if tracked is not None:
            self._count_lookup(tracked, external_tokens)
            lease, tracked.lease = tracked.lease, None
        if not external_tokens:
            if lease is not None:
                lease.release()
            return
        self._loads[request.request_id] = lease
        try:
            entries = self._load_entries(lease, block_ids, external_tokens)
            self._new_loads.append(LoadJob(request.request_id, entries))
        except Exception as error:
            logger.exception("load plan of request %s failed", request.request_id)
            self._new_loads.append(LoadJob(request.request_id, [], refused=str(error)))

    def _load_entries(
        self, lease: ReadLease | None, block_ids: tuple[list[int], ...], external_tokens: int
    ) -> list[LoadEntry]:
        geometry, _ = self._ready()
        found = (lease.blocks - lease.first) * self.grid.block_tokens if lease else 0
        if lease is None or found != external_tokens:
            raise ValueError(
                f"expected {found} external tokens, as looked up, found {external_tokens}"
            )
        entries: list[LoadEntry] = []
        for entry in lease.entries:
            item = geometry.classes[entry.class_index]
            targets = [block_ids[group][entry.block_index] for group in item.groups]
            if not all(targets):
                # vLLM gives no block to a window page that the request will not read.
                if item.kind == "window" and not any(targets):
                    continue
                raise ValueError(
                    f"{item.kind} block {entry.block_index}: expected allocated blocks, found "
                    f"{targets}"
                )
            entries.append((entry.class_index, entry.slots, targets, entry.checksums))
        return entries

    def _count_lookup(self, tracked: _Tracked, external_tokens: int) -> None:
        if tracked.lookup is None:
            return
        local, restorable, paged = tracked.lookup
        tracked.lookup = None
        self.interval.count("lookups")
        self.interval.count("lookup_tokens", tracked.request.num_tokens)
        self.interval.count("hit_tokens", local, "local")
        self.interval.count("hit_tokens", external_tokens, "host")
        self.interval.count("missing_state_tokens", max(0, paged - max(restorable, local)))

    # ---- store

    def step(self, output: "SchedulerOutput") -> StepMetadata:
        """This step's copies, in both directions."""
        for request_id in output.preempted_req_ids or ():
            if tracked := self._requests.get(request_id):
                tracked.stored_blocks = 0
        state = output.kv_connector_block_state
        stores: list[StoreJob] = []
        for request_id, new_tokens in output.num_scheduled_tokens.items():
            tracked = self._requests.get(request_id)
            if tracked is None or state is None:
                continue
            try:
                job = self._plan_store(tracked, new_tokens, state)
            except Exception:
                logger.exception("store plan of request %s failed", request_id)
                self.interval.count("failures", label="store_plan")
                continue
            if job is not None:
                stores.append(job)
        loads, self._new_loads = self._new_loads, []
        return StepMetadata(
            arena=self.arena.path if self.arena else None,
            stores=stores,
            loads=loads,
            idle=not output.total_num_scheduled_tokens,
        )

    def _plan_store(
        self,
        tracked: _Tracked,
        new_tokens: int,
        state: "KVConnectorBlockState",
    ) -> StoreJob | None:
        """Reserves what this step completes: pages of filled blocks, and the state if it ends on
        a boundary. Nothing is pinned or kept when it raises."""
        geometry, cache = self._ready()
        request, n = tracked.request, self.grid.block_tokens
        tables = state.get_block_ids(request.request_id)
        if tables is None:
            return None
        offers = state.boundary_state_offloads.get(request.request_id, ())
        end = request.num_computed_tokens + new_tokens
        ready = min(end // n, len(request.block_hashes) // self.grid.stride)
        sources: dict[tuple[int, int], list[int]] = {}
        for item in geometry.classes:
            if item.kind == "recurrent":
                continue
            for block in range(tracked.stored_blocks, ready):
                ids = [tables[group][block] for group in item.groups]
                if all(ids):
                    sources[item.index, block] = ids
        if end % n == 0 and end // n == ready and ready:
            for item in geometry.classes:
                if item.kind == "recurrent" and (ids := self._boundary(item, end, offers)):
                    sources[item.index, ready - 1] = ids
        tracked.stored_blocks = max(tracked.stored_blocks, ready)
        if not sources:
            return None
        lease = cache.reserve(
            tracked.namespace, request.block_hashes, list(sources), stride=self.grid.stride
        )
        for reason, count in lease.skipped.items():
            if reason != "resident":
                self.interval.count("skipped_entries", count, reason)
        if not lease.entries:
            lease.abort()
            return None
        try:
            return self._start_store(lease, sources)
        except BaseException:
            lease.abort()
            raise

    def _boundary(
        self, item: Any, end: int, offers: Iterable[tuple[int, int, int]]
    ) -> list[int] | None:
        """The state blocks of a boundary at which this step ends, if the engine offers all of them.

        vLLM also offers states again that it has just loaded, and states inside a step: only a
        step's end proves that a block holds the state of exactly that boundary.
        """
        offered = {group: block for group, block, boundary in offers if boundary == end}
        ids = [offered.get(group, 0) for group in item.groups]
        if all(ids):
            return ids
        if any(ids):
            self.interval.count("skipped_entries", label="partial_state")
        return None

    def _start_store(
        self, lease: WriteLease, sources: dict[tuple[int, int], list[int]]
    ) -> StoreJob:
        geometry, _ = self._ready()
        if self._pool is None:
            raise RuntimeError("vLLM bound no block pool: expected bind_gpu_block_pool at start")
        entries: list[StoreEntry] = []
        pins: list[KVCacheBlock] = []
        for entry in lease.entries:
            ids = sources[entry.class_index, entry.block_index]
            entries.append((entry.class_index, entry.slots, ids))
            pins += (self._pool.blocks[block] for block in ids)
        kinds = [KINDS[geometry.classes[entry.class_index].kind] for entry in lease.entries]
        self._pool.touch(pins)
        job, self._next_job = self._next_job, self._next_job + 1
        self._stores[job] = _Store(lease, kinds, pins)
        return StoreJob(job, entries)

    # ---- results

    @property
    def stores_in_flight(self) -> bool:
        """Whether source blocks are pinned by copies that have not ended."""
        return bool(self._stores)

    def finished(self, metadata: Any, received: Iterable[str]) -> None:
        """Takes the workers' word for what ended: publishes stores, ends loads."""
        if isinstance(metadata, WorkerMetadata):
            for job, outcomes in metadata.stores.items():
                self._store_outcomes(job, outcomes)
            for request_id, outcomes in metadata.loads.items():
                self._load_outcomes(request_id, outcomes)
        elif metadata is not None:
            logger.error("expected WorkerMetadata, found %s", type(metadata).__name__)
            self.interval.count("failures", label="worker_metadata")
        for request_id in received:
            lease = self._loads.pop(request_id, None)
            if lease is not None:
                lease.release()

    def _store_outcomes(self, job: int, outcomes: list[Outcome]) -> None:
        store = self._stores.get(job)
        if store is None:
            self.interval.count("failures", label="worker_metadata")
            return
        store.outcomes.update((outcome.rank, outcome) for outcome in outcomes)
        if len(store.outcomes) < self.ranks:
            return
        del self._stores[job]
        ordered = [store.outcomes[rank] for rank in sorted(store.outcomes)]
        try:
            self._publish(store, ordered)
        except Exception:
            logger.exception("publishing store %d failed", job)
            self.interval.count("failures", label="publish")
        finally:
            store.lease.abort()  # after a commit: no effect
            if self._pool is not None:
                self._pool.free_blocks(store.pins)

    def _publish(self, store: _Store, ordered: list[Outcome]) -> None:
        failed = [outcome for outcome in ordered if outcome.error is not None]
        for outcome in failed:
            logger.warning("a store failed on rank %d: %s", outcome.rank, outcome.error)
        if failed:
            self.interval.count("failures", label=failed[0].reason)
            return
        store.lease.commit(
            [list(entry) for entry in zip(*(outcome.checksums for outcome in ordered), strict=True)]
        )
        for outcome in ordered:
            self.interval.count("stored_bytes", outcome.nbytes)
            self.interval.count("stored_seconds", outcome.seconds)
        for kind in store.kinds:
            self.interval.count("stored_entries", label=kind)

    def _load_outcomes(self, request_id: str, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.error is None:
                self.interval.count("loaded_bytes", outcome.nbytes)
                self.interval.count("loaded_seconds", outcome.seconds)
        failed = [outcome for outcome in outcomes if outcome.error is not None]
        if not failed:
            return
        for outcome in failed:
            logger.warning(
                "the load of request %s failed on rank %d and is recomputed: %s",
                request_id,
                outcome.rank,
                outcome.error,
            )
        self.interval.count("failures", label=failed[0].reason)
        if tracked := self._requests.get(request_id):
            tracked.refused = True
        lease = self._loads.get(request_id)
        if lease is not None and self.cache is not None:
            try:
                self.cache.invalidate(lease)
            except Exception:
                logger.exception("invalidating the load of request %s failed", request_id)
                self.interval.count("failures", label="invalidate")

    def forget(self, request: "Request") -> None:
        """A request ended: lets go of what no copy under way needs."""
        if tracked := self._requests.pop(request.request_id, None):
            _drop_lease(tracked)

    def reset(self) -> None:
        """Forgets every page and checkpoint; copies under way end unpublished."""
        for tracked in self._requests.values():
            _drop_lease(tracked)
            tracked.stored_blocks = 0
        if self.cache is not None:
            self.cache.clear()

    # ---- figures

    def stats(self) -> dict[str, dict[str, float]]:
        """Counters since the start, and gauges of now. Takes nothing from :meth:`take_stats`."""
        self._observe()
        return HybridPagesStats(copy.deepcopy(self._total.data)).aggregate(self.interval).data

    def take_stats(self) -> HybridPagesStats | None:
        """What happened since the last call, with the gauges of now; None if nothing did."""
        self._observe()
        if self.interval.is_empty():
            return None
        interval, self.interval = self.interval, HybridPagesStats()
        self._total.aggregate(interval)
        return interval

    def _observe(self) -> None:
        """Brings the cache's own figures into the interval."""
        if self.cache is None:
            return
        now = self.cache.stats()
        for kind, size in zip(KINDS.values(), _SIZES, strict=True):
            evicted = now[f"evicted_{kind}"]
            self.interval.count("evicted_entries", evicted - self._evicted.get(kind, 0), kind)
            self._evicted[kind] = evicted
            self.interval.gauge("resident_entries", now[kind], kind)
            self.interval.gauge("resident_bytes", now[size], kind)
        self.interval.gauge("free_bytes", now["free_slots"] * now["slot_bytes"])
        self.interval.gauge("leased_bytes", now["leased_slots"] * now["slot_bytes"])
        self.interval.gauge("metadata_bytes", now["metadata_bytes"])


def _drop_lease(tracked: _Tracked) -> None:
    lease, tracked.lease = tracked.lease, None
    if lease is not None:
        lease.release()


def _namespace(request: "Request") -> bytes:
    """What a request's bytes depend on beyond its block hashes.

    vLLM's hashes cover tokens, salt, images and the adapter's name; an adapter of the same name
    with another id or path is another adapter.
    """
    lora = request.lora_request
    if lora is None:
        return b""
    return json.dumps([lora.lora_name, lora.lora_int_id, lora.lora_path]).encode()


def _size(nbytes: int) -> str:
    for unit, scale in (("GiB", GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.4g} {unit}"
    return f"{nbytes} B"
