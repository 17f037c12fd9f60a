"""Loads: from a lookup to restored blocks.

A lookup takes a read lease, vLLM allocates blocks, every rank copies, vLLM resumes the request, and
the lease ends. What the host cannot hold at once is copied in waves, each with its own lease. After
a failure vLLM computes the request, and its entries are dropped.
"""

import math
import operator
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hybrid_pages import Cache, Geometry, InvalidArgumentError, ReadLease, Restore
from hybrid_pages.adapter.disk import DEADLINE_MS
from hybrid_pages.adapter.errors import EngineError
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.layout.grid import Tables
from hybrid_pages.vllm.messages import LoadEntry, LoadJob, Outcome
from hybrid_pages.vllm.metrics import Figures
from hybrid_pages.vllm.scheduler.loads.engine_tails import EngineTail
from hybrid_pages.vllm.scheduler.loads.load_bytes import LoadBytes
from hybrid_pages.vllm.scheduler.loads.pace import Pace
from hybrid_pages.vllm.scheduler.loads.parked import Parked
from hybrid_pages.vllm.scheduler.loads.restores import Asking, Restores
from hybrid_pages.vllm.scheduler.requests.keys import Keys
from hybrid_pages.vllm.scheduler.requests.tracked import Lookup, Place, Tracked
from hybrid_pages.vllm.versions import LocalTail, logger

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.request import Request


@dataclass
class _Load:
    """The load of one request, until all ranks have ended it."""

    tracked: Tracked | None
    lease: ReadLease | None = None
    """The lease of the entries that are being copied."""
    restore: Restore | None = None
    """The restore with the waves that are left; None if there are none."""
    tables: Tables = ()
    end: int = 0
    """After how many tokens the request resumes."""
    nbytes: dict[str, int] = field(default_factory=dict)
    """The bytes of the present copy or wave on each rank, by kind of entry."""
    silent: set[int] = field(default_factory=set)
    """The ranks that have not reported the end of the present copy or wave."""
    nameless: bool = False
    """Whether there was a report whose rank could not be read."""
    since: float = 0.0
    """When the last wave ended, or the read of the next one began if it had to wait for room."""
    queued: bool = False
    """Whether the next wave waits for room."""

    def release(self) -> None:
        """Ends the lease, so that its entries may be evicted again."""
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.release()

    def copies(self, ranks: int) -> None:
        """Begins a copy. Every rank has to report its end once."""
        self.silent, self.nameless = set(range(ranks)), False

    @property
    def copied(self) -> bool:
        """Whether no rank copies any more.

        A report whose rank could not be read counts as that of the only silent rank.
        """
        return len(self.silent) <= self.nameless

    def end_restore(self) -> None:
        """Ends the restore: there are no further waves."""
        restore, self.restore = self.restore, None
        if restore is not None:
            restore.end()


class Loads:
    """Looks prefixes up, plans their loads and ends them.

    wait_seconds, asking, pace: see :class:`~hybrid_pages.vllm.scheduler.loads.restores.Restores`.
    """

    def __init__(
        self,
        geometry: Geometry,
        cache: Cache,
        keys: Keys,
        figures: Figures,
        *,
        wait_seconds: float = DEADLINE_MS / 1000,
        asking: Asking | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.cache, self.keys, self.grid, self.figures = cache, keys, keys.grid, figures
        self.restores = Restores(
            cache, keys, figures, wait_seconds=wait_seconds, asking=asking, pace=pace
        )
        self.columns, self.ranks = self.grid.columns(geometry), geometry.ranks
        self.sizes = LoadBytes(geometry)
        self.kinds = {item.kind for item in geometry.classes}
        self.alone = False
        """Whether it is certain that there is no other connector."""
        self.parked = Parked(figures, keys.grid.drafts)
        self.manager: KVCacheManager | None = None
        self.in_flight: dict[str, _Load] = {}
        """Loads that were planned and have not ended, by request."""
        self._in_waves: set[str] = set()
        self._failed: set[str] = set()
        self._planned: list[LoadJob] = []

    def bind(self, manager: "KVCacheManager") -> None:
        """Takes vLLM's cache manager."""
        self.manager = manager
        self.parked.bind(manager)

    @property
    def wait_seconds(self) -> float:
        """How long a request waits for tiers below."""
        return self.restores.wait_seconds

    @property
    def joint_only(self) -> str | None:
        """Why requests begin with vLLM's joint hit, and not with pages behind it whose states are
        loaded; None if they may. Empty for models that have no states."""
        if "recurrent" not in self.kinds:
            return ""
        if "window" in self.kinds:
            return "window"  # vLLM keeps their pages only where it keeps states
        if self.grid.drafts:
            return "drafts"
        return None if self.alone else "beside"

    def pages(
        self, tracked: Tracked, joint: int, deepest: int, tail: EngineTail | None
    ) -> int | LocalTail:
        """With how many tokens of vLLM's own pages a request begins: as many as it has before the
        place where it is to resume, or the joint hit, if no state is loaded behind that.

        joint: the tokens of vLLM's joint hit. deepest: those of its pages. tail: a tail in vLLM's
        pool that is deeper than that hit.
        """
        tracked.pages, tracked.engine_tail = 0, None
        if self.joint_only is not None or tracked.refused:
            return joint
        loads = not (tracked.joint_only or tracked.skips_loads)
        if tail is not None and (deepest == joint or not loads):
            tracked.engine_tail = tail.place
            return tail.local
        if not loads:
            return joint
        found = self.restores.lookups.look_up(tracked, joint, tracked.request.num_tokens - 1)
        end = max(found.anywhere.tokens, found.host.tokens)
        if tail is not None and tail.place.tokens >= end:
            tracked.engine_tail = tail.place
            return tail.local
        pages = self.pages_before(end, joint, deepest)
        if pages > joint:
            tracked.pages = pages
        return pages

    def pages_before(self, end: int, joint: int, deepest: int) -> int:
        """How many tokens a request that resumes after ``end`` can have from vLLM's own cache.

        vLLM has a connector load at least one token behind them.
        """
        if self.joint_only is not None:
            return joint
        n = self.grid.block_tokens
        return max(joint, min(deepest, end - 1) // n * n)

    def match(self, tracked: Tracked, local_tokens: int) -> int | None:
        """How many tokens can be loaded beyond ``local_tokens``. Held until vLLM allocates blocks.

        None while a tier below the host is read for this request, so that vLLM asks again. At least
        the last token is left to compute, so that its state transition is applied once.
        """
        pages, tracked.pages = tracked.pages, 0
        tokens = self._match(tracked, local_tokens)
        if tokens == 0 and pages and local_tokens == pages:
            tracked.joint_only, tracked.offered = True, False
            return None  # there may be a state before the end of these pages
        return tokens

    def _match(self, tracked: Tracked, local_tokens: int) -> int | None:
        tracked.drop_lease()
        tracked.lookup = None
        self.parked.asked(tracked)
        request, n = tracked.request, self.grid.block_tokens
        if request.skip_reading_prefix_cache and tracked.reads_cache is None:
            return 0
        if local_tokens % n:
            raise EngineError(
                f"local hit: expected whole blocks of {n}, found {local_tokens} tokens"
            )
        hit = self._engine_hit(tracked, local_tokens)
        found = self.restores.look_up(tracked, hit, request.num_tokens - 1)
        if found is None:
            return None
        if tracked.restore is None or tracked.place is None:
            tracked.place = found.host
        end = tracked.place.tokens
        held = versions.fork_of(request)
        tracked.lookup = Lookup(local_tokens, hit, end, found.paged, found.missing, held)
        if tracked.skips_loads or tracked.refused or end <= hit:
            tracked.offered = hit % n > 0 and tracked.engine_tail is not None
            return 0
        fits = self.parked.fits(tracked, local_tokens, end)
        if fits is None:
            return None
        if not fits:
            tracked.drop_restore()
            return 0
        if tracked.restore is not None:
            return end - local_tokens
        return self._acquire(tracked, tracked.place, local_tokens)

    def _engine_hit(self, tracked: Tracked, local_tokens: int) -> int:
        """The length of vLLM's own prefix hit. If it ends inside a block, vLLM tells its whole
        blocks only, and takes a load that leads further in place of the rest."""
        tail = tracked.engine_tail
        if tail is not None and tail.whole * self.grid.block_tokens == local_tokens:
            return tail.tokens
        if not self.grid.keeps_inside or self.manager is None:
            return local_tokens
        if tracked.check is not None and tracked.check.leaves_own:
            return 0
        return max(local_tokens, versions.local_tokens(self.manager, tracked.request)[0])

    def _acquire(self, tracked: Tracked, place: Place, local_tokens: int) -> int:
        """Takes a lease on what the host has up to a place. Returns how many tokens it has beyond
        ``local_tokens``."""
        n = self.grid.block_tokens
        tracked.lease = self.cache.acquire(
            tracked.run.namespace,
            tracked.keys,
            first=local_tokens // n,
            limit=place.whole,
            tail=place.tail,
        )
        if tracked.lease is None:
            return 0
        tracked.place = place.after(tracked.lease.blocks, n)
        return tracked.place.tokens - local_tokens

    def allocated(
        self, request: "Request", tracked: Tracked | None, tables: Tables, n: int
    ) -> None:
        """Plans the load of ``n`` tokens into a request's blocks."""
        load = _Load(tracked, tables=tables)
        if tracked is not None:
            if n:  # vLLM calls again, with 0, when a loaded request is scheduled
                tracked.loaded = n
                self.parked.admitted(tracked)
                self._count_reloaded(tracked, n)
            load.lease, tracked.lease = tracked.lease, None
            load.restore, tracked.restore = tracked.restore, None
        if not n:
            if self.alone and (load.lease or load.restore):
                self.figures.count("skipped_loads", label="turned_down")
            load.release()
            load.end_restore()
            return
        name = request.request_id
        self.in_flight[name] = load
        load.copies(self.ranks)
        try:
            local = tracked.lookup.local if tracked and tracked.lookup else 0
            load.end = local + n
            place = tracked.place if tracked else None
            held = place.tokens - local if place and (load.lease or load.restore) else 0
            if held != n:
                raise InvalidArgumentError(
                    f"external tokens: expected the {held} looked up, found {n}"
                )
            if load.restore is None:
                job = LoadJob(name, self._entries(load))
            else:
                job = self._wave(name, load, load.restore)
        except Exception as error:
            logger.exception("the load of request %s could not be planned", name)
            load.end_restore()
            job = LoadJob(name, [], rejected=str(error))
        self._planned.append(job)

    def unused(self, requests: Mapping[str, Tracked]) -> list[str]:
        """The requests whose loads have ended and which have not run since, by name."""
        return [
            name
            for name, tracked in requests.items()
            if tracked.loaded and tracked.run.position is None
            if name not in self.in_flight and versions.waits(tracked.request)
        ]

    def sources(self, tracked: Tracked, n: int) -> dict[str, int]:
        """The ``n`` tokens of a load that was just planned, by the tiers that made them a hit."""
        local = 0 if tracked.lookup is None else tracked.lookup.local
        return _by_tier(tracked.depths, local, local + n)

    def _count_reloaded(self, tracked: Tracked, n: int) -> None:
        """Counts of ``n`` tokens that are loaded those whose pages vLLM has itself."""
        lookup = tracked.lookup
        again = 0 if lookup is None else min(lookup.held - lookup.local, n)
        if again <= 0 or self.joint_only == "":
            return
        single = "last_block" if again <= self.grid.block_tokens else "refused"
        self.figures.count("reloaded_tokens", again, self.joint_only or single)

    def _entries(self, load: _Load) -> list[LoadEntry]:
        if load.lease is None:
            raise InvalidArgumentError("expected a lease of what is loaded, found none")
        entries = load.lease.targets(self.columns, load.tables, load.end)
        load.nbytes = self.sizes.of(entries)
        if load.tracked is not None and load.tracked.check is not None:
            load.tracked.check.loaded_bytes += sum(load.nbytes.values())
        return entries

    # ---- waves

    def _wave(self, name: str, load: _Load, restore: Restore) -> LoadJob:
        """The first wave of a load that has several."""
        self._in_waves.add(name)
        if restore.progress() != "ready":
            raise InvalidArgumentError("expected the first wave to be there, found it gone")
        return self._next(name, load, restore)

    def _next(self, name: str, load: _Load, restore: Restore) -> LoadJob:
        """Takes the wave that is ready; the one after it is read meanwhile."""
        load.lease = restore.take()
        if load.lease is None:
            raise InvalidArgumentError("expected a wave that is ready, found none")
        load.copies(self.ranks)
        entries = self._entries(load)
        last = restore.progress() == "done"
        if last:
            load.end_restore()
        return LoadJob(name, entries, last=last)

    def _advance(self) -> None:
        """Plans the next wave of each load that has one and is not copying."""
        for name in sorted(self._in_waves):
            load = self.in_flight[name]
            restore = load.restore
            if restore is None:
                self._in_waves.discard(name)
            elif load.lease is not None:
                restore.progress()  # reads ahead
            elif (job := self._planned_wave(name, load, restore)) is not None:
                self._planned.append(job)

    def _planned_wave(self, name: str, load: _Load, restore: Restore) -> LoadJob | None:
        request = None if load.tracked is None else load.tracked.request
        if name not in self._failed and request is not None and not request.is_finished():
            progress = restore.progress()
            if progress in ("queued", "waiting"):
                if self._may_wait(load, queued=progress == "queued"):
                    return None
            elif progress == "ready":
                try:
                    return self._next(name, load, restore)
                except Exception as error:
                    logger.warning("the next wave of %s could not be planned: %s", name, error)
                    load.release()
            self._fail(name, load.tracked, "promotion")
        load.end_restore()
        load.copies(self.ranks)  # they copy nothing, but report the end
        return LoadJob(name, [])

    def _may_wait(self, load: _Load, *, queued: bool) -> bool:
        """Ends loads whose reads, or whose waits for room, take too long."""
        now = time.monotonic()
        self.restores.crowded |= queued
        if queued:
            load.since = max(load.since, self.restores.moved)
        elif load.queued:
            load.since = now
        load.queued = queued
        return now < load.since + self.restores.wait_seconds

    def _fail(self, name: str, tracked: Tracked | None, reason: str) -> None:
        self.figures.count("failures", label=reason)
        self._failed.add(name)
        if tracked is not None:
            tracked.skips_loads, tracked.loaded = True, 0
            if tracked.check is not None:
                tracked.check.failed = reason

    # ---- the end

    def scheduled(self, tracked: Tracked, start: int) -> int:
        """Counts the ``start`` tokens after which a request is scheduled.

        A request's lookup and hits count once: a preempted request that comes back finds mostly
        tokens that it has computed itself.

        Returns:
            How many of these another connector may have loaded, at most.
        """
        lookup, tracked.lookup = tracked.lookup, None
        self.parked.scheduled(tracked)
        tracked.joint_only = False
        rest = start - tracked.loaded
        if lookup is None:
            return rest
        # vLLM's own hit may end inside a block, and then no connector loads beyond it.
        other = rest - lookup.local if rest - lookup.local >= self.grid.block_tokens else 0
        hits = "preempted_hit_tokens" if tracked.counted else "hit_tokens"
        self._count_hits(tracked, hits, rest - other, "local")
        self._goes_on(tracked, start)
        depths, tracked.depths = tracked.depths, None
        tracked.asks_until = tracked.comes_until = math.inf
        tracked.awaits = 0
        for tier, tokens in _by_tier(depths, rest, start).items():
            self._count_hits(tracked, hits, tokens, tier)
        if not tracked.counted:
            tracked.counted, tracked.others = True, other
            self.figures.count("lookups")
            self.figures.count("lookup_tokens", tracked.request.num_prompt_tokens)
            self._count_missing(tracked, lookup, start)
        return other

    def _goes_on(self, tracked: Tracked, start: int) -> None:
        """Tells the policy that a request resumes inside a block, if it does, and counts that."""
        place = tracked.place if tracked.loaded else tracked.engine_tail
        if tracked.counted or place is None or place.tail is None or place.tokens != start:
            return
        namespace = tracked.run.namespace
        if tracked.loaded or self.cache.has_tails(namespace, place.whole, [place.tail])[0][0]:
            self.cache.continue_tail(namespace, tracked.keys, place.tail, limit=place.whole)
        self.figures.count("tail_tokens", start % self.grid.block_tokens)

    def _count_missing(self, tracked: Tracked, lookup: Lookup, start: int) -> None:
        """Counts why a request is not scheduled after more tokens than ``start``."""
        reason = lookup.missing if lookup.paged > start else None
        if reason is not None:
            self.figures.count("missing_state_tokens", lookup.paged - start)
        if tracked.answer > start:
            self.figures.count("missing_answer_tokens", tracked.answer - start)
            reason = "answer" if reason in (None, "never_made") else reason
        if reason is not None:
            self.figures.count("missing_states", label=reason)

    def _count_hits(self, tracked: Tracked, hits: str, tokens: int, source: str) -> None:
        self.figures.count(hits, tokens, source)
        if tokens and tracked.check is not None:
            of_source = tracked.check.hits
            of_source[source] = of_source.get(source, 0) + tokens

    def take_planned(self) -> list[LoadJob]:
        """Loads planned since the last call, for this step's metadata: next waves, too."""
        if self._in_waves:
            self._advance()
        planned, self._planned = self._planned, []
        return planned

    def ended(self, request_id: str, tracked: Tracked | None, outcomes: Iterable[Outcome]) -> None:
        """Takes ranks' outcomes of a load.

        A failed load drops its entries, and is not tried again for the request.
        """
        load = self.in_flight.get(request_id)
        failures = []
        try:
            for outcome in outcomes:
                failures.append(self._heard(request_id, load, outcome))
        except Exception as error:
            failures.append(self._unreadable(request_id, load, error))
        reason = next((failure for failure in failures if failure is not None), None)
        if reason is not None:
            self._fail(request_id, tracked, reason)
        if load is None:
            return
        if reason is not None and load.lease is not None:
            self.cache.invalidate(load.lease)
        if load.restore is not None and load.copied:
            load.release()  # so that the next wave may begin
            load.since = self.restores.moved = time.monotonic()

    def _heard(self, request_id: str, load: _Load | None, outcome: Outcome) -> str | None:
        """Takes one rank's outcome of a load. Returns why the load has failed, if it has."""
        try:
            rank = operator.index(outcome.rank)
            if not 0 <= rank < self.ranks:
                raise InvalidArgumentError(f"rank: expected one below {self.ranks}, found {rank}")
        except Exception as error:
            return self._unreadable(request_id, load, error)
        try:
            if load is not None:
                if rank not in load.silent:
                    raise InvalidArgumentError(f"expected one outcome of rank {rank}, found two")
                load.silent.discard(rank)
            if outcome.error is not None:
                logger.warning(
                    "the load of request %s failed on rank %d and is recomputed: %s",
                    request_id,
                    rank,
                    outcome.error,
                )
                return str(outcome.reason)
            nbytes, seconds = operator.index(outcome.nbytes), float(outcome.seconds)
        except Exception as error:
            return self._unreadable(request_id, None, error)
        for kind, planned in load.nbytes.items() if load is not None and nbytes else ():
            self.figures.count("loaded_bytes", planned, kind)
        self.figures.count("loaded_seconds", seconds)
        return None

    def _unreadable(self, request_id: str, load: _Load | None, error: Exception) -> str:
        """Counts a report that makes no sense. load: given if the rank is not known, either."""
        if load is not None:
            load.nameless = True
        logger.error(
            "what a rank said of the load of request %s cannot be read, so it is recomputed",
            request_id,
            exc_info=error,
        )
        return "worker_metadata"

    def released(self, request_id: str) -> bool:
        """Ends a load that every rank has ended: its slots may be evicted again.

        Returns:
            Whether it failed on some rank.
        """
        load = self.in_flight.pop(request_id, None)
        if load is not None:
            if load.silent and request_id not in self._failed:
                logger.error(
                    "%d ranks did not say how request %s was loaded", len(load.silent), request_id
                )
                self._fail(request_id, load.tracked, "worker_metadata")
            load.release()
            load.end_restore()
            self.restores.moved = time.monotonic()
        self._in_waves.discard(request_id)
        failed = request_id in self._failed
        self._failed.discard(request_id)
        return failed


def _by_tier(depths: Sequence[tuple[str, int]] | None, first: int, end: int) -> dict[str, int]:
    """The tokens from ``first`` to ``end`` by the tiers that made them a hit; depths: see
    :class:`~hybrid_pages.vllm.scheduler.requests.tracked.Tracked`."""
    found: dict[str, int] = {}
    last = depths[-1][0] if depths else "host"
    for tier, tokens in (*(depths or ()), (last, end)):
        depth = max(first, min(end, tokens))
        if depth > first:
            found[tier] = found.get(tier, 0) + depth - first
        first = depth
    return found
