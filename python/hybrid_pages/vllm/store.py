"""Stores: from filled blocks to published entries.

Blocks fill, their entries are reserved, the engine's source blocks are pinned, every rank copies,
the lease commits, the pins go. A failure anywhere costs that store alone.
"""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hybrid_pages import Cache, Geometry, WriteLease
from hybrid_pages.adapter.errors import EngineError
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.checkpoints import Checkpoints
from hybrid_pages.vllm.grid import BlockGrid, Tables
from hybrid_pages.vllm.log import logger
from hybrid_pages.vllm.messages import Outcome, StoreEntry, StoreJob
from hybrid_pages.vllm.metrics import KINDS, Figures
from hybrid_pages.vllm.speculative_states import SpeculativeStates
from hybrid_pages.vllm.states import State, States
from hybrid_pages.vllm.tracking import Tracked

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.sched.output import KVConnectorBlockState


@dataclass
class _Store:
    """Entries on their way out of the engine."""

    owner: Tracked
    lease: WriteLease
    kinds: list[str]
    pins: "list[KVCacheBlock]"
    void: bool = False
    """The source blocks turned out to hold something else."""
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
        self.states = (SpeculativeStates if grid.drafts else States)(geometry, grid)
        self.keys = self.states.keys
        self.classes, self.ranks = geometry.classes, geometry.ranks
        self._narrow = any(each.is_narrow for each in grid.groups)
        self.pool: BlockPool | None = None
        self._in_flight: dict[int, _Store] = {}
        self._unsent: list[StoreJob] = []
        self._next_job = 0

    def __len__(self) -> int:
        """Stores whose source blocks are pinned."""
        return len(self._in_flight)

    # ---- what to store

    def plan(
        self, tracked: Tracked, new_tokens: int, state: "KVConnectorBlockState"
    ) -> StoreJob | None:
        """Plans a store of all that this step completes: pages of filled blocks, and states that
        are wanted.

        Nothing stays reserved or pinned when it raises.
        """
        request = tracked.request
        start = request.num_computed_tokens
        end = start + new_tokens
        offers = state.boundary_state_offloads.get(request.request_id, ())
        self.states.advance(tracked, start, end)
        states_due = self.states.due(tracked, end, offers)
        filled = tracked.position or 0
        if not states_due and self._reach(tracked, filled) <= tracked.offered_blocks:
            return None  # most decode steps: the block tables are not even resolved
        tables = state.get_block_ids(request.request_id)
        if tables is None:
            return None
        found = self.states.find(tracked, start, end, tables, offers, self._bound())
        return self._job(tracked, filled, tables, found)

    def reported(self, tracked: Tracked, tables: Callable[[], Tables]) -> bool:
        """Plans a store of what the drafts that were accepted have completed.

        The job goes with the next step, whose allocation frees the blocks of a window that is
        narrower than a block of ours. Returns whether there may be one.
        """
        if not isinstance(self.states, SpeculativeStates):
            return False
        due = self.states.reached(tracked) > 0
        if self._narrow and not due:
            end = self.states.final(tracked)
            due = end is not None and self._reach(tracked, end) > tracked.offered_blocks
        if due:
            self.finish(tracked, tables())
        return due

    def finish(self, tracked: Tracked, tables: Tables) -> None:
        """Plans a store of the last blocks of a request, whose keys only its end makes known.

        The job goes with the next step.
        """
        end = self.states.final(tracked)
        if end is None or self.keys.changed(tracked):
            return
        late = self.states.find_late(tracked, tables, self._bound())
        job = self._job(tracked, end, tables, [] if late is None else [late])
        if job is not None:
            self._unsent.append(job)

    def take_unsent(self) -> list[StoreJob]:
        """Jobs of requests that have ended, for this step's metadata."""
        unsent, self._unsent = self._unsent, []
        return unsent

    def _job(
        self, tracked: Tracked, end: int, tables: Tables, found: Iterable[State]
    ) -> StoreJob | None:
        sources: dict[tuple[int, int], list[int]] = {}
        for state in found:
            if self.checkpoints.wants(tracked, state):
                sources |= self._checkpoint(state)
        reach = self._reach(tracked, end)
        sources |= self._pages(tables, tracked.offered_blocks, reach)
        refused = "hint" if not tracked.hints.store else "stale" if tracked.stale else None
        if refused is not None:
            self.figures.count("skipped_entries", len(sources), refused)
        job = self._reserve(tracked, sources) if sources and refused is None else None
        tracked.offered_blocks = max(tracked.offered_blocks, reach)
        return job

    def _reach(self, tracked: Tracked, end: int) -> int:
        """Leading blocks that are filled after ``end`` tokens, have a key, and are worth a page."""
        keys = self.keys.known(tracked.request)
        return self.checkpoints.reach(tracked, min(end // self.grid.block_tokens, keys))

    def _pages(self, tables: Tables, first: int, end: int) -> dict[tuple[int, int], list[int]]:
        """Source blocks by (class, block index) of the pages filled in [first, end)."""
        sources = {}
        for item in self.classes:
            if item.kind != "recurrent":
                for block in range(first, end):
                    ids = self.grid.ids(item.groups, tables, block)
                    if all(ids):  # a window group has no block where the window has passed
                        sources[item.index, block] = ids
        return sources

    def _checkpoint(self, state: State) -> dict[tuple[int, int], list[int]]:
        """Source blocks of a state, if every group's is known."""
        sources = {}
        for item in self.classes:
            if item.kind == "recurrent":
                if all(group in state.blocks for group in item.groups):
                    ids = [state.blocks[group] for group in item.groups]
                    sources[item.index, state.boundary - 1] = ids
                else:
                    self.figures.count("skipped_entries", label="partial_state")
        return sources

    def _reserve(
        self, tracked: Tracked, sources: dict[tuple[int, int], list[int]]
    ) -> StoreJob | None:
        lease = self.cache.reserve(
            tracked.namespace,
            self.keys.of(tracked),
            list(sources),
            stride=self.keys.stride,
            hints=tracked.for_policy,
        )
        for reason, count in lease.skipped.items():
            if reason != "resident":
                self.figures.count("skipped_entries", count, reason)
        if not lease.entries:
            lease.abort()
            return None
        try:
            return self._start(tracked, lease, sources)
        except BaseException:
            lease.abort()
            raise

    def _bound(self) -> "BlockPool":
        if self.pool is None:
            raise EngineError("vLLM bound no block pool: expected bind_gpu_block_pool at start")
        return self.pool

    # ---- from the engine's blocks to published entries

    def _start(
        self, tracked: Tracked, lease: WriteLease, sources: dict[tuple[int, int], list[int]]
    ) -> StoreJob:
        pool = self._bound()
        entries: list[StoreEntry] = []
        pins: list[KVCacheBlock] = []
        for entry in lease.entries:
            ids = sources[entry.class_index, entry.block_index]
            entries.append((entry.class_index, entry.slots, ids))
            pins += (pool.blocks[block] for block in ids)
        kinds = [KINDS[self.classes[entry.class_index].kind] for entry in lease.entries]
        versions.pin(pool, pins)
        job, self._next_job = self._next_job, self._next_job + 1
        self._in_flight[job] = _Store(tracked, lease, kinds, pins)
        return StoreJob(job, entries)

    def void(self, requests: Container[str], blocks: Container[int] = ()) -> None:
        """Publishes nothing of the stores under way that belong to these requests or copy these
        blocks."""
        for store in self._in_flight.values():
            pinned = any(block.block_id in blocks for block in store.pins)
            if pinned or store.owner.request.request_id in requests:
                store.void = True

    def drop_unsent(self) -> None:
        """Drops the jobs that were not sent to the workers."""
        for job in self.take_unsent():
            store = self._in_flight.pop(job.job)
            store.lease.abort()
            versions.unpin(self._bound(), store.pins)

    def ended(self, job: int, outcomes: Iterable[Outcome], *, trusted: bool = True) -> None:
        """Takes ranks' outcomes of a job; publishes it when all of them have copied.

        Args:
            job: its number.
            outcomes: of one or more ranks.
            trusted: whether every rank has what the scheduler planned.
        """
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
            if store.void:
                self.figures.count("skipped_entries", len(store.kinds), "invalid")
            elif trusted:
                self._publish(store)
            else:
                self.figures.count("skipped_entries", len(store.kinds), "unconfirmed")
        except Exception:
            logger.exception("publishing store %d failed", job)
            self.figures.count("failures", label="publish")
        finally:
            store.lease.abort()  # does nothing after a commit
            if self.pool is not None:
                versions.unpin(self.pool, store.pins)

    def _publish(self, store: _Store) -> None:
        ordered = [store.outcomes[rank] for rank in range(self.ranks)]
        failed = [outcome for outcome in ordered if outcome.error is not None]
        for outcome in failed:
            logger.warning("a store failed on rank %d: %s", outcome.rank, outcome.error)
        if failed:
            self.figures.count("failures", label=failed[0].reason)
            return
        hashed = any(outcome.checksums for outcome in ordered)
        checksums = zip(*(outcome.checksums for outcome in ordered), strict=True)
        store.lease.commit([list(entry) for entry in checksums] if hashed else None)
        for outcome in ordered:
            self.figures.count("stored_bytes", outcome.nbytes)
            self.figures.count("stored_seconds", outcome.seconds)
        for kind in store.kinds:
            self.figures.count("stored_entries", label=kind)
