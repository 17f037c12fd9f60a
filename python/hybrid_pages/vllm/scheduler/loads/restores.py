"""Hits that tiers below the host have, or may have: how long a request waits for them.

A restore brings the hit up. One that the host can hold is one wave, and every request finds it
then. A larger one has several: the request waits for the first, and gets the others while it is
being loaded, see :mod:`hybrid_pages.vllm.scheduler.loads.load`.
"""

import math
import time

from hybrid_pages import Cache, Hit
from hybrid_pages.adapter.disk import DEADLINE_MS
from hybrid_pages.vllm.metrics import Figures
from hybrid_pages.vllm.scheduler.loads.pace import Pace
from hybrid_pages.vllm.scheduler.requests.keys import Keys
from hybrid_pages.vllm.scheduler.requests.tracked import Tracked

_RETRIES = 4
"""Restores that are tried in one lookup, each after one that has found damage."""


class Asking:
    """Waits of requests that vLLM has given no blocks yet.

    seconds: a request waits no longer, and, where the pace is known, no longer than it takes to
    compute what the answer may save.
    """

    def __init__(self, seconds: float, pace: Pace | None, figures: Figures) -> None:
        self.seconds, self._pace, self._figures = seconds, pace, figures

    def waits(self, tracked: Tracked, missing: int) -> bool:
        """Whether a request waits on. missing: tokens that the answer may save; 0 if nothing is
        asked."""
        if missing <= 0:
            tracked.asks_until = -math.inf
        if tracked.asks_until == -math.inf:
            return False  # one answer is enough, though it gets old while the request waits
        now = time.monotonic()
        if tracked.asks_until == math.inf:
            worth = math.inf if self._pace is None else self._pace.seconds(missing)
            tracked.asks_until = now + min(self.seconds, worth)
        if now < tracked.asks_until:
            return True
        self._figures.count("remote_unanswered")
        tracked.asks_until = -math.inf
        return False


class Restores:
    """Restores of requests that vLLM has given no blocks yet.

    wait_seconds: a request waits no longer for reads, nor for room while no load ends; then the hit
    of the host counts. asking: how long it waits for a tier that asks what there is.
    """

    def __init__(
        self,
        cache: Cache,
        keys: Keys,
        figures: Figures,
        *,
        wait_seconds: float = DEADLINE_MS / 1000,
        asking: Asking | None = None,
    ) -> None:
        self.cache, self.keys, self.figures = cache, keys, figures
        self.asking = asking
        self.wait_seconds = wait_seconds
        self.moved = -math.inf
        """When room last became free, since a load or a wave of one has ended."""

    def look_up(self, tracked: Tracked, first: int, limit: int) -> Hit | None:
        """The joint hit, for a request that needs no load of its ``first`` blocks.

        None if vLLM is to ask again. If what the request can have is larger than what the host has,
        ``tracked.restore`` brings it, and its first wave is ready.
        """
        keys, namespace = self.keys.of(tracked), tracked.run.namespace
        for _ in range(_RETRIES):
            hit = self.cache.lookup(namespace, keys, limit=limit)
            if tracked.skips_loads or tracked.refused:
                break
            if self.asking is not None:
                missing = (limit - max(hit.blocks, first)) * self.keys.grid.block_tokens
                if self.asking.waits(tracked, missing if hit.asking else 0):
                    return None
            if tracked.waits_until != -math.inf and self._is_losing(tracked, hit):
                if self._may_wait(tracked, queued=False):
                    return None
                return self._give_up(tracked, hit)
            depths = hit.blocks, hit.host
            if hit.blocks <= max(hit.host, first) or tracked.not_worth == (first, *depths):
                break
            if tracked.waits_until == -math.inf:
                break
            if tracked.restore is None or tracked.restore.first != first:
                tracked.drop_restore()
                tracked.restore = self.cache.restore(namespace, keys, first=first, limit=limit)
            if tracked.restore is None:
                tracked.not_worth = first, *depths
                break
            if tracked.depths is None:
                tracked.depths = tracked.restore.depths
            progress = tracked.restore.progress()
            if progress == "ready":
                tracked.waits_until = math.inf  # a later lookup waits anew
                return hit
            if progress == "failed":
                tracked.drop_restore()
            elif self._may_wait(tracked, queued=progress == "queued"):
                return None
            else:
                return self._give_up(tracked, hit)
        tracked.drop_restore()
        return hit

    def _give_up(self, tracked: Tracked, hit: Hit) -> Hit:
        """The request has waited long enough."""
        self.figures.count("failures", label="promotion")
        tracked.waits_until = -math.inf
        tracked.drop_restore()
        return hit

    @staticmethod
    def _is_losing(tracked: Tracked, hit: Hit) -> bool:
        """Whether a part of what is being read was found damaged, and other parts are still read.

        What is computed in their place could not be stored before their reads have ended.
        """
        restore = tracked.restore
        return (
            restore is not None and hit.blocks < restore.blocks and restore.progress() == "waiting"
        )

    def _may_wait(self, tracked: Tracked, *, queued: bool) -> bool:
        now = time.monotonic()
        if tracked.waits_until == math.inf:
            tracked.waits_until = now + self.wait_seconds
        elif queued:
            tracked.waits_until = max(tracked.waits_until, self.moved + self.wait_seconds)
        return now < tracked.waits_until
