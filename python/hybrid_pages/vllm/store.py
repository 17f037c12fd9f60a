"""Stores: from filled blocks to published entries.

Blocks fill, their entries are reserved, the engine's source blocks are pinned, every rank copies,
the lease commits, the pins go. A failure anywhere costs that store alone.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hybrid_pages import Cache, Geometry, StoreEntries, WriteLease
from hybrid_pages.adapter.errors import EngineError
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.checkpoints import Checkpoints
from hybrid_pages.vllm.grid import Tables
from hybrid_pages.vllm.keys import Keys
from hybrid_pages.vllm.log import logger
from hybrid_pages.vllm.messages import Outcome, StoreJob
from hybrid_pages.vllm.metrics import Figures
from hybrid_pages.vllm.speculative_states import SpeculativeStates
from hybrid_pages.vllm.states import Offer, State, States
from hybrid_pages.vllm.tracking import Tracked

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_utils import KVCacheBlock


_Source = tuple[int, int, list[int]]
"""(class index, block index, engine blocks)."""


@dataclass(slots=True)
class _Store:
    """Entries on their way out of the engine."""

    owner: Tracked
    lease: WriteLease
    entries: StoreEntries
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
        keys: Keys,
        checkpoints: Checkpoints,
        figures: Figures,
    ) -> None:
        self.cache, self.keys, self.grid, self.figures = cache, keys, keys.grid, figures
        self.checkpoints = checkpoints
        self.states = (SpeculativeStates if self.grid.drafts else States)(geometry, keys)
        self.ranks = geometry.ranks
        self._recurrent = [
            (item.index, item.groups) for item in geometry.classes if item.kind == "recurrent"
        ]
        self.columns = self.grid.columns(geometry)
        self._narrow = any(each.is_narrow for each in self.grid.groups)
        self.pool: BlockPool | None = None
        self._in_flight: dict[int, _Store] = {}
        self.unsent: list[StoreJob] = []
        """Jobs of requests that have ended, for the next step's metadata."""
        self._next_job = 0

    def __len__(self) -> int:
        """Stores whose source blocks are pinned."""
        return len(self._in_flight)

    # ---- what to store

    def plan(
        self,
        tracked: Tracked,
        new_tokens: int,
        offers: Sequence[Offer],
        tables: Callable[[str], Tables],
    ) -> StoreJob | None:
        """Plans a store of all that this step completes: pages of filled blocks, and states that
        are wanted.

        Nothing stays reserved or pinned when it raises.
        """
        request = tracked.request
        start = request.num_computed_tokens
        end = start + new_tokens
        filled = self.states.advance(tracked, start, end)
        tracked.quiet_until = 0
        may_want = self.checkpoints.may_want(tracked, end)
        states_due = self.states.due(tracked, end, offers, may_want=may_want)
        reach = self._reach(tracked, filled)
        if not states_due and reach <= tracked.offered_blocks:
            if end >= request.num_tokens:
                tracked.quiet_until = self.states.quiet_until(tracked, end)
            return None
        tracked.reports_from = 0
        blocks = tables(request.request_id)
        states: list[_Source] = []
        if states_due:
            furthest = tracked.furthest
            found = self.states.find(tracked, start, end, blocks, offers, self._bound())
            states = self._wanted(tracked, found)
            if tracked.furthest != furthest:
                reach = self._reach(tracked, filled)
        return self._job(tracked, reach, blocks, states)

    def reported(self, tracked: Tracked, tables: Callable[[str], Tables]) -> bool:
        """Plans a store of what the drafts that were accepted have completed.

        The job goes with the next step, whose allocation frees the blocks of a window that is
        narrower than a block of ours. Returns whether there may be one.
        """
        if not isinstance(self.states, SpeculativeStates):
            return False
        if versions.processed(tracked.request) < tracked.reports_from:
            return False
        due, end = self.states.reached(tracked) > 0, self.states.final(tracked)
        if self._narrow and not due:
            due = end is not None and self._reach(tracked, end) > tracked.offered_blocks
        if due:
            self.finish(tracked, tables(tracked.request.request_id))
        elif end is not None:
            tracked.reports_from = self.states.reports_from(tracked)
        return due

    def finish(self, tracked: Tracked, tables: Tables) -> None:
        """Plans a store of the last blocks of a request, whose keys only its end makes known.

        The job goes with the next step.
        """
        end = self.states.final(tracked)
        if end is None or self.keys.changed(tracked):
            return
        late = self.states.find_late(tracked, tables, self._bound())
        states = self._wanted(tracked, () if late is None else (late,))
        job = self._job(tracked, self._reach(tracked, end), tables, states)
        if job is not None:
            self.unsent.append(job)

    def _wanted(self, tracked: Tracked, found: Iterable[State]) -> list[_Source]:
        """Source blocks of the states that are to be stored, if every group's is known; they may
        make more pages worth it."""
        states: list[_Source] = []
        for state in found:
            if not self.checkpoints.wants(tracked, state):
                continue
            for index, groups in self._recurrent:
                ids = [state.blocks[group] for group in groups if group in state.blocks]
                if len(ids) == len(groups):
                    states.append((index, state.boundary - 1, ids))
                else:
                    self.figures.count("skipped_entries", label="partial_state")
        return states

    def _job(
        self, tracked: Tracked, reach: int, tables: Tables, states: list[_Source]
    ) -> StoreJob | None:
        first, job = tracked.offered_blocks, None
        end = max(first, reach)
        refused = "hint" if not tracked.hints.store else "stale" if tracked.stale else None
        if refused is not None:
            pages = self.columns.filled(tables, first, end)
            self.figures.count("skipped_entries", len(states) + len(pages), refused)
        elif states or first < end:
            job = self._offer(tracked, tables, first, end, states)
        tracked.offered_blocks = end
        return job

    def _reach(self, tracked: Tracked, end: int) -> int:
        """Leading blocks that are filled after ``end`` tokens, have a key, and are worth a page."""
        blocks, known = end // self.grid.block_tokens, self.keys.known(tracked.request)
        if not self.checkpoints.all_pages:
            known = min(known, tracked.furthest)
        return min(blocks, known)

    def _offer(
        self, tracked: Tracked, tables: Tables, first: int, end: int, states: list[_Source]
    ) -> StoreJob | None:
        """Reserves the states, and the pages of the blocks [first, end) that the tables have; a
        window group has no block where the window has passed."""
        offered = self.cache.offer(
            tracked.namespace,
            self.keys.of(tracked),
            self.columns,
            tables,
            first=first,
            end=end,
            states=states,
            hints=tracked.for_policy,
        )
        if offered is None:
            return None
        lease, entries = offered
        for reason, count in lease.skipped.items():
            if reason != "resident":
                self.figures.count("skipped_entries", count, reason)
        if not entries:
            lease.abort()
            return None
        try:
            pool = self._bound()
            pins = entries.sources(pool.blocks)
            versions.pin(pool, pins)
        except BaseException:
            lease.abort()
            raise
        job, self._next_job = self._next_job, self._next_job + 1
        self._in_flight[job] = _Store(tracked, lease, entries, pins)
        return StoreJob(job, entries)

    def _bound(self) -> "BlockPool":
        if self.pool is None:
            raise EngineError("vLLM bound no block pool: expected bind_gpu_block_pool at start")
        return self.pool

    # ---- from the engine's blocks to published entries

    def void(self, requests: Container[str], blocks: Container[int] = ()) -> None:
        """Publishes nothing of the stores under way that belong to these requests or copy these
        blocks."""
        for store in self._in_flight.values():
            pinned = any(block.block_id in blocks for block in store.pins)
            if pinned or store.owner.request.request_id in requests:
                store.void = True

    def drop_unsent(self) -> None:
        """Drops the jobs that were not sent to the workers."""
        unsent, self.unsent = self.unsent, []
        for job in unsent:
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
        for outcome in outcomes:
            store.outcomes[outcome.rank] = outcome
        if len(store.outcomes) < self.ranks:
            return
        del self._in_flight[job]
        try:
            if store.void:
                self.figures.count("skipped_entries", len(store.entries), "invalid")
            elif trusted:
                self._publish(store)
            else:
                self.figures.count("skipped_entries", len(store.entries), "unconfirmed")
        except Exception:
            logger.exception("publishing store %d failed", job)
            self.figures.count("failures", label="publish")
        finally:
            store.lease.abort()  # does nothing after a commit
            if self.pool is not None:
                versions.unpin(self.pool, store.pins)

    def _publish(self, store: _Store) -> None:
        checksums: list[list[int]] = []
        failed: Outcome | None = None
        nbytes, seconds = 0, 0.0
        for rank in range(self.ranks):
            outcome = store.outcomes[rank]
            if outcome.error is not None:
                logger.warning("a store failed on rank %d: %s", rank, outcome.error)
                failed = failed or outcome
            checksums.append(outcome.checksums)
            nbytes += outcome.nbytes
            seconds += outcome.seconds
        if failed is not None:
            self.figures.count("failures", label=failed.reason)
            return
        if any(checksums):
            store.lease.commit_shards(checksums)
        else:
            store.lease.commit(None)
        self.figures.stored(nbytes, seconds)
