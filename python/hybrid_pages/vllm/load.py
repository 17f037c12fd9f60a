"""Loads: from a lookup to restored blocks.

A lookup takes a read lease, vLLM allocates blocks, every rank copies, vLLM resumes the request, the
lease goes. A failure anywhere makes vLLM compute the request, and its entries are dropped.
"""

import math
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hybrid_pages import Cache, Geometry, InvalidArgumentError, ReadLease
from hybrid_pages.adapter.errors import EngineError
from hybrid_pages.vllm.grid import Tables
from hybrid_pages.vllm.keys import Keys
from hybrid_pages.vllm.log import logger
from hybrid_pages.vllm.messages import LoadEntry, LoadJob, Outcome
from hybrid_pages.vllm.metrics import Figures
from hybrid_pages.vllm.tracking import Lookup, Tracked

if TYPE_CHECKING:
    from vllm.v1.request import Request

PROMOTION_SECONDS = 2.0
"""A request waits no longer for tiers below; then the hit of the host counts."""


class Loads:
    """Looks prefixes up, plans their loads and ends them."""

    def __init__(self, geometry: Geometry, cache: Cache, keys: Keys, figures: Figures) -> None:
        self.cache, self.keys, self.grid, self.figures = cache, keys, keys.grid, figures
        self.columns = self.grid.columns(geometry)
        self._in_flight: dict[str, ReadLease | None] = {}
        self._failed: set[str] = set()
        self.planned: list[LoadJob] = []
        """Loads for the next step's metadata."""

    @property
    def in_flight(self) -> Iterable[str]:
        """Requests that are being loaded."""
        return self._in_flight

    def match(self, tracked: Tracked, local_tokens: int) -> int | None:
        """Tokens that can be loaded beyond ``local_tokens``; held until vLLM allocates for them.

        None while a tier below the host is read for this request: vLLM is to ask again. At least
        the last token is left to compute, so its transition is applied once.
        """
        tracked.drop_lease()
        tracked.lookup = None
        request, n, stride = tracked.request, self.grid.block_tokens, self.keys.stride
        if request.skip_reading_prefix_cache and tracked.reads_cache is None:
            return 0
        if local_tokens % n:
            raise EngineError(
                f"local hit: expected whole blocks of {n}, found {local_tokens} tokens"
            )
        limit = (request.num_tokens - 1) // n
        keys = self.keys.of(tracked)
        first = local_tokens // n
        hit = self.cache.lookup(tracked.namespace, keys, stride=stride, limit=limit)
        if hit.blocks > max(hit.host, first) and self._is_promoted(tracked, first, limit):
            return None
        tracked.lookup = Lookup(local_tokens, hit.host * n, hit.pages * n, hit.missing)
        if tracked.skips_loads or hit.host * n <= local_tokens:
            return 0
        tracked.lease = self.cache.acquire(
            tracked.namespace, keys, stride=stride, first=first, limit=limit
        )
        return tracked.lease.blocks * n - local_tokens if tracked.lease else 0

    def _is_promoted(self, tracked: Tracked, first: int, limit: int) -> bool:
        """Whether a tier below is read for a request, which has not waited for too long."""
        now = time.monotonic()
        if tracked.skips_loads:
            return False
        if now >= tracked.waits_until:
            if tracked.waits_until > -math.inf:
                tracked.waits_until = -math.inf
                self.figures.count("failures", label="promotion")
            return False
        keys, stride = self.keys.of(tracked), self.keys.stride
        if not self.cache.promote(tracked.namespace, keys, stride=stride, first=first, limit=limit):
            return False
        if tracked.waits_until == math.inf:
            tracked.waits_until = now + PROMOTION_SECONDS
        return True

    def allocated(
        self, request: "Request", tracked: Tracked | None, tables: Tables, n: int
    ) -> None:
        """Plans the load of ``n`` tokens into a request's blocks."""
        lease = None
        if tracked is not None:
            if n:  # vLLM calls again, with 0, when a loaded request is scheduled
                tracked.loaded = n
            lease, tracked.lease = tracked.lease, None
        if not n:
            if lease is not None:
                lease.release()
            return
        self._in_flight[request.request_id] = lease
        try:
            local = tracked.lookup.local if tracked and tracked.lookup else 0
            job = LoadJob(request.request_id, self._entries(lease, tables, local, n))
        except Exception as error:
            logger.exception("the load of request %s could not be planned", request.request_id)
            job = LoadJob(request.request_id, [], rejected=str(error))
        self.planned.append(job)

    def _entries(
        self, lease: ReadLease | None, tables: Tables, local: int, n: int
    ) -> list[LoadEntry]:
        held = lease.blocks * self.grid.block_tokens - local if lease else 0
        if lease is None or held != n:
            raise InvalidArgumentError(f"external tokens: expected the {held} looked up, found {n}")
        return lease.targets(self.columns, tables, local + n)

    def scheduled(self, tracked: Tracked, start: int) -> int:
        """Counts the ``start`` tokens that a request is scheduled behind.

        A request's lookup counts once, and so do its hits: most tokens that a preempted one finds
        when it comes back are those that it has computed itself.

        Returns:
            How many of them another connector says to have loaded, at most.
        """
        lookup, tracked.lookup = tracked.lookup, None
        host, rest = tracked.loaded, start - tracked.loaded
        if lookup is None:
            return rest
        # vLLM's own hit may end inside a block, and then no connector loads beyond it.
        other = rest - lookup.local if rest - lookup.local >= self.grid.block_tokens else 0
        hits = "preempted_hit_tokens" if tracked.counted else "hit_tokens"
        self.figures.count(hits, rest - other, "local")
        self.figures.count(hits, host, "host")
        if not tracked.counted:
            tracked.counted, tracked.others = True, other
            self.figures.count("lookups")
            self.figures.count("lookup_tokens", tracked.request.num_prompt_tokens)
            if lookup.missing is not None and lookup.paged > start:
                self.figures.count("missing_state_tokens", lookup.paged - start)
                self.figures.count("missing_states", label=lookup.missing)
        return other

    def ended(self, request_id: str, tracked: Tracked | None, outcomes: Iterable[Outcome]) -> None:
        """Takes ranks' outcomes of a load; a failed one drops its entries and is not tried again
        for this request."""
        failed = [outcome for outcome in outcomes if outcome.error is not None]
        for outcome in outcomes:
            if outcome.error is None:
                self.figures.count("loaded_bytes", outcome.nbytes)
                self.figures.count("loaded_seconds", outcome.seconds)
            else:
                logger.warning(
                    "the load of request %s failed on rank %d and is recomputed: %s",
                    request_id,
                    outcome.rank,
                    outcome.error,
                )
        if not failed:
            return
        self.figures.count("failures", label=failed[0].reason)
        self._failed.add(request_id)
        if tracked is not None:
            tracked.skips_loads, tracked.loaded = True, 0
        lease = self._in_flight.get(request_id)
        if lease is not None:
            self.cache.invalidate(lease)

    def released(self, request_id: str) -> bool:
        """Ends a load that every rank has ended: its slots may be evicted again.

        Returns:
            Whether it failed on some rank.
        """
        lease = self._in_flight.pop(request_id, None)
        if lease is not None:
            lease.release()
        failed = request_id in self._failed
        self._failed.discard(request_id)
        return failed
