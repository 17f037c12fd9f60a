"""Stores: from filled blocks to published entries.

Blocks fill, their entries are reserved, the engine's source blocks are pinned, every rank copies,
the lease commits, the pins go. A failure anywhere costs the store and nothing else.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hybrid_pages import Cache, Geometry, WriteLease
from hybrid_pages.vllm.checkpoints import Checkpoints
from hybrid_pages.vllm.layout import BlockGrid
from hybrid_pages.vllm.log import logger
from hybrid_pages.vllm.messages import Outcome, StoreEntry, StoreJob
from hybrid_pages.vllm.metrics import KINDS, Figures
from hybrid_pages.vllm.tracking import Tracked

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.sched.output import KVConnectorBlockState


@dataclass
class _Store:
    """Entries on their way out of the engine."""

    lease: WriteLease
    kinds: list[str]
    pins: "list[KVCacheBlock]"
    outcomes: dict[int, Outcome] = field(default_factory=dict)


class Stores:
    """Plans stores and publishes what every rank has copied."""

    def __init__(
        self,
        geometry: Geometry,
        cache: Cache,
        grid: BlockGrid,
        checkpoints: Checkpoints,
        figures: Figures,
    ) -> None:
        self.cache, self.grid, self.figures = cache, grid, figures
        self.checkpoints = checkpoints
        self.classes, self.ranks = geometry.classes, geometry.ranks
        self.pool: BlockPool | None = None
        self._in_flight: dict[int, _Store] = {}
        self._next_job = 0

    def __len__(self) -> int:
        """Stores whose source blocks are pinned."""
        return len(self._in_flight)

    def plan(
        self, tracked: Tracked, new_tokens: int, state: "KVConnectorBlockState"
    ) -> StoreJob | None:
        """What this step completes: pages of filled blocks, and the state if it ends on a boundary.

        Nothing stays reserved or pinned when it raises.
        """
        request, n = tracked.request, self.grid.block_tokens
        end = request.num_computed_tokens + new_tokens
        ready = min(end // n, len(request.block_hashes) // self.grid.stride)
        offers = state.boundary_state_offloads.get(request.request_id, ())
        if ready <= tracked.stored_blocks and not offers:
            return None  # most decode steps: the block tables are not even resolved
        tables = state.get_block_ids(request.request_id)
        if tables is None:
            return None
        reach = self.checkpoints.reach(tracked, ready)
        sources = self._pages(tables, tracked.stored_blocks, reach)
        if ready and end == ready * n:
            offered = {group: block for group, block, tokens in offers if tokens == end}
            if self.checkpoints.wants(tracked, ready, bool(offered)):
                sources |= self._checkpoint(tables, ready - 1, offered)
        tracked.stored_blocks = max(tracked.stored_blocks, ready)
        if not sources:
            return None
        lease = self.cache.reserve(
            tracked.namespace, request.block_hashes, list(sources), stride=self.grid.stride
        )
        for reason, count in lease.skipped.items():
            if reason != "resident":
                self.figures.count("skipped_entries", count, reason)
        if not lease.entries:
            lease.abort()
            return None
        try:
            return self._start(lease, sources)
        except BaseException:
            lease.abort()
            raise

    def _pages(
        self, tables: Sequence[Sequence[int]], first: int, end: int
    ) -> dict[tuple[int, int], list[int]]:
        """Source blocks by (class, block index) of the pages filled in [first, end)."""
        sources = {}
        for item in self.classes:
            if item.kind != "recurrent":
                for block in range(first, end):
                    ids = [tables[group][block] for group in item.groups]
                    if all(ids):  # a window group has no block where the window has passed
                        sources[item.index, block] = ids
        return sources

    def _checkpoint(
        self, tables: Sequence[Sequence[int]], block: int, offered: Mapping[int, int]
    ) -> dict[tuple[int, int], list[int]]:
        """Source blocks of the state at the end of ``block``, where this step ends.

        Only a step's end proves that the block at that place of the table holds the state of
        exactly that boundary: vLLM also offers states that it has just loaded, and states inside
        a step. Where it offers this boundary, it must name the same block.
        """
        sources = {}
        for item in self.classes:
            if item.kind == "recurrent":
                ids = [tables[group][block] for group in item.groups]
                same = all(
                    offered.get(group, source) == source
                    for group, source in zip(item.groups, ids, strict=True)
                )
                if all(ids) and same:
                    sources[item.index, block] = ids
                else:
                    self.figures.count("skipped_entries", label="partial_state")
        return sources

    def _start(self, lease: WriteLease, sources: dict[tuple[int, int], list[int]]) -> StoreJob:
        if self.pool is None:
            raise RuntimeError("vLLM bound no block pool: expected bind_gpu_block_pool at start")
        entries: list[StoreEntry] = []
        pins: list[KVCacheBlock] = []
        for entry in lease.entries:
            ids = sources[entry.class_index, entry.block_index]
            entries.append((entry.class_index, entry.slots, ids))
            pins += (self.pool.blocks[block] for block in ids)
        kinds = [KINDS[self.classes[entry.class_index].kind] for entry in lease.entries]
        self.pool.touch(pins)
        job, self._next_job = self._next_job, self._next_job + 1
        self._in_flight[job] = _Store(lease, kinds, pins)
        return StoreJob(job, entries)

    def ended(self, job: int, outcomes: Iterable[Outcome]) -> None:
        """Takes ranks' outcomes of a job; publishes it when all of them have copied."""
        store = self._in_flight.get(job)
        if store is None:
            logger.error("a worker reported store %d, which is not in flight", job)
            self.figures.count("failures", label="worker_metadata")
            return
        store.outcomes.update((outcome.rank, outcome) for outcome in outcomes)
        if len(store.outcomes) < self.ranks:
            return
        del self._in_flight[job]
        try:
            self._publish(store)
        except Exception:
            logger.exception("publishing store %d failed", job)
            self.figures.count("failures", label="publish")
        finally:
            store.lease.abort()  # of no effect after a commit
            if self.pool is not None:
                self.pool.free_blocks(store.pins)

    def _publish(self, store: _Store) -> None:
        ordered = [store.outcomes[rank] for rank in range(self.ranks)]
        failed = [outcome for outcome in ordered if outcome.error is not None]
        for outcome in failed:
            logger.warning("a store failed on rank %d: %s", outcome.rank, outcome.error)
        if failed:
            self.figures.count("failures", label=failed[0].reason)
            return
        checksums = zip(*(outcome.checksums for outcome in ordered), strict=True)
        store.lease.commit([list(entry) for entry in checksums])
        for outcome in ordered:
            self.figures.count("stored_bytes", outcome.nbytes)
            self.figures.count("stored_seconds", outcome.seconds)
        for kind in store.kinds:
            self.figures.count("stored_entries", label=kind)
