"""Restores of joint hits from tiers below the host, and how long requests wait for them.

A hit that fits into the host is restored in one wave, and other requests find it, too. A larger one
has several waves: the request waits for the first one, and gets the others while it is loaded, see
:mod:`hybrid_pages.vllm.scheduler.loads.load`.
"""

import math
import time
from collections.abc import Callable
from typing import Literal

from hybrid_pages import Cache, Hit
from hybrid_pages.adapter.disk import DEADLINE_MS
from hybrid_pages.vllm.metrics import Figures
from hybrid_pages.vllm.scheduler.loads.pace import Pace
from hybrid_pages.vllm.scheduler.requests.keys import Keys
from hybrid_pages.vllm.scheduler.requests.tracked import Tracked

_RETRIES = 4
"""How often one lookup tries to restore. Each try but the first follows one that found damage."""


Asked = Literal["done", "asking", "full"]
"""The result of asking for a request before its turn: nothing more is to be done, a tier has asked
its store, or there is no room now."""


class Asking:
    """How long requests without blocks wait for a tier that has asked its store.

    seconds: the longest wait. If the rate of prefill is known, a request waits no longer than it
    takes to compute what the answer may save.
    """

    def __init__(self, seconds: float, pace: Pace | None, figures: Figures) -> None:
        self.seconds, self._pace, self._figures = seconds, pace, figures

    def waits(self, tracked: Tracked, missing: int) -> bool:
        """Whether a request waits longer.

        missing: how many tokens the answer may save; 0 if nothing was asked.
        """
        if missing <= 0:
            tracked.asks_until = -math.inf
        if tracked.asks_until == -math.inf:
            return False  # one answer is enough, even if it is outdated when the request runs
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
    """The restores of requests that have no blocks yet.

    wait_seconds: the longest wait for reads, and for room while no load ends. After that, what the
    host has is used. asking: how long requests wait for a tier that has asked its store.
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
        """When a load or a wave last ended, so that room became free."""
        self.crowded = False
        """Whether a wave has found no room since this was last reset."""

    def look_up(self, tracked: Tracked, first: int, limit: int) -> Hit | None:
        """The joint hit, for a request that needs no load of its ``first`` blocks.

        None if vLLM is to ask again. If the hit is longer than that of the host,
        ``tracked.restore`` restores it, and the first wave is ready.
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
                tracked.waits_until = math.inf  # a later lookup may wait again
                return hit
            if progress == "failed":
                tracked.drop_restore()
            elif self._may_wait(tracked, queued=progress == "queued"):
                return None
            else:
                return self._give_up(tracked, hit)
        tracked.drop_restore()
        return hit

    def ask(self, tracked: Tracked, local: Callable[[], int], *, room: int, most: int) -> Asked:
        """Begins the restore of a request that waits for its turn: sets ``tracked.restore``.

        Hits that need several waves are left to the request's turn.

        Args:
            tracked: the request.
            local: how many tokens of it the engine's own cache has.
            room: how many slots a restore may take now.
            most: how many it may ever take.
        """
        keys, namespace = self.keys.of(tracked), tracked.run.namespace
        n = self.keys.grid.block_tokens
        limit = (tracked.request.num_tokens - 1) // n
        hit = self.cache.lookup(namespace, keys, limit=limit)
        if hit.asking:
            return "asking"
        if hit.blocks <= hit.host or hit.blocks <= (first := local() // n):
            return "done"
        restore = self.cache.restore(namespace, keys, first=first, limit=limit)
        if restore is None:
            tracked.not_worth = first, hit.blocks, hit.host
            return "done"
        whole, slots = restore.whole, restore.slots
        progress = restore.progress() if whole and slots <= room else "queued"
        if progress in ("waiting", "ready"):
            tracked.restore, tracked.depths = restore, restore.depths
            return "done"
        restore.end()
        return "full" if whole and slots <= most and progress == "queued" else "done"

    def _give_up(self, tracked: Tracked, hit: Hit) -> Hit:
        """Ends the wait of a request."""
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
        self.crowded |= queued
        if tracked.waits_until == math.inf:
            tracked.waits_until = now + self.wait_seconds
        elif queued:
            tracked.waits_until = max(tracked.waits_until, self.moved + self.wait_seconds)
        return now < tracked.waits_until
