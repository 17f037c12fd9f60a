"""Restores of joint hits from tiers below the host, and how long requests wait for them.

A hit that fits into the host is restored in one wave, and other requests find it, too. A larger one
has several waves: the request waits for the first one, and gets the others while it is loaded, see
:mod:`hybrid_pages.vllm.scheduler.loads.load`.
"""

import math
import time
from collections.abc import Callable
from typing import Literal

from hybrid_pages import Cache, Restore
from hybrid_pages.adapter.disk import DEADLINE_MS
from hybrid_pages.vllm.metrics import Figures
from hybrid_pages.vllm.scheduler.loads.coming import Coming
from hybrid_pages.vllm.scheduler.loads.lookups import Lookups, PromptDepth
from hybrid_pages.vllm.scheduler.loads.pace import Pace
from hybrid_pages.vllm.scheduler.requests.keys import Keys
from hybrid_pages.vllm.scheduler.requests.tracked import Place, Tracked

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
    host has is used. asking: how long requests wait for a tier that has asked its store. pace:
    measures how fast prompts are computed, if anything does.
    """

    def __init__(
        self,
        cache: Cache,
        keys: Keys,
        figures: Figures,
        *,
        wait_seconds: float = DEADLINE_MS / 1000,
        asking: Asking | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.cache, self.figures, self.block_tokens = cache, figures, keys.grid.block_tokens
        self.lookups = Lookups(cache, keys)
        self.asking = asking
        self.coming = Coming(figures, pace)
        self.wait_seconds = wait_seconds
        self.moved = -math.inf
        """When a load or a wave last ended, so that room became free."""
        self.crowded = False
        """Whether a wave has found no room since this was last reset."""

    def look_up(self, tracked: Tracked, local: int, most: int) -> PromptDepth | None:
        """How deep a request can be resumed that has ``local`` tokens, after ``most`` at most.

        None if vLLM is to ask again. If tiers below have more than the host,
        ``tracked.restore`` restores it up to ``tracked.place``, and the first wave is ready.
        """
        first = local // self.block_tokens
        for _ in range(_RETRIES):
            found = self.lookups.look_up(tracked, local, most)
            if tracked.skips_loads or tracked.refused:
                break
            if self.asking is not None:
                missing = found.asked - max(found.anywhere.tokens, local)
                if self.asking.waits(tracked, missing if found.asked else 0):
                    return None
            if tracked.restore is None:
                have = max(found.anywhere.tokens, local)
                if self.coming.waits(tracked, have, found.coming):
                    return None
            if tracked.waits_until != -math.inf and self._is_losing(tracked, found):
                if self._may_wait(tracked, queued=False):
                    return None
                return self._give_up(tracked, found)
            depths = found.anywhere.tokens, found.host.tokens
            best = max(found.host.tokens, local)
            if found.anywhere.tokens <= best or tracked.not_worth == (local, *depths):
                break
            if tracked.waits_until == -math.inf:
                break
            if tracked.restore is None or tracked.restore.first != first:
                tracked.drop_restore()
                restore = self._restore(tracked, found.anywhere, first, best)
                if restore is None:
                    tracked.not_worth = local, *depths
                    break
                self._keep(tracked, restore, found.anywhere)
            progress = tracked.restore.progress() if tracked.restore else "failed"
            if progress == "ready":
                tracked.waits_until = math.inf  # a later lookup may wait again
                return found
            if progress == "failed":
                tracked.drop_restore()
            elif self._may_wait(tracked, queued=progress == "queued"):
                return None
            else:
                return self._give_up(tracked, found)
        tracked.drop_restore()
        return found

    def ask(self, tracked: Tracked, local: Callable[[int], int], *, room: int, most: int) -> Asked:
        """Begins the restore of a request that waits for its turn: sets ``tracked.restore``.

        Hits that need several waves are left to the request's turn.

        Args:
            tracked: the request.
            local: how many of its first tokens, as many as are given, the engine's own cache has.
            room: how many slots a restore may take now.
            most: how many it may ever take.
        """
        found = self.lookups.look_up(tracked, 0, tracked.request.num_tokens - 1)
        if found.asked:
            return "asking"
        place, host = found.anywhere, found.host
        if place.tokens <= host.tokens or place.tokens <= (taken := local(place.tokens)):
            return "done"
        first = taken // self.block_tokens
        taken = first * self.block_tokens
        restore = self._restore(tracked, place, first, max(host.tokens, taken))
        if restore is None:
            tracked.not_worth = taken, place.tokens, host.tokens
            return "done"
        whole, slots = restore.whole, restore.slots
        progress = restore.progress() if whole and slots <= room else "queued"
        if progress in ("waiting", "ready"):
            self._keep(tracked, restore, place)
            return "done"
        restore.end()
        return "full" if whole and slots <= most and progress == "queued" else "done"

    def _restore(self, tracked: Tracked, place: Place, first: int, best: int) -> Restore | None:
        """Begins a restore up to a place, or as deep as it takes less time than computing. None if
        that is no deeper than ``best`` tokens."""
        restore = self.cache.restore(
            tracked.run.namespace, tracked.keys, first=first, limit=place.whole, tail=place.tail
        )
        if restore is None:
            return None
        if place.after(restore.blocks, self.block_tokens).tokens > best:
            return restore
        restore.end()
        return None

    def _keep(self, tracked: Tracked, restore: Restore, place: Place) -> None:
        """Notes a restore for a request that may go on from a place."""
        n = self.block_tokens
        tracked.restore, tracked.place = restore, place.after(restore.blocks, n)
        if tracked.depths is None:
            tracked.depths = [
                (name, place.after(blocks, n).tokens) for name, blocks in restore.depths
            ]

    def _give_up(self, tracked: Tracked, found: PromptDepth) -> PromptDepth:
        """Ends the wait of a request."""
        self.figures.count("failures", label="promotion")
        tracked.waits_until = -math.inf
        tracked.drop_restore()
        return found

    @staticmethod
    def _is_losing(tracked: Tracked, found: PromptDepth) -> bool:
        """Whether a part of what is being read was found damaged, and other parts are still read.

        What is computed in their place could not be stored before their reads have ended.
        """
        restore, place = tracked.restore, tracked.place
        if restore is None or place is None or found.anywhere.tokens >= place.tokens:
            return False
        return restore.progress() == "waiting"

    def _may_wait(self, tracked: Tracked, *, queued: bool) -> bool:
        now = time.monotonic()
        self.crowded |= queued
        if tracked.waits_until == math.inf:
            tracked.waits_until = now + self.wait_seconds
        elif queued:
            tracked.waits_until = max(tracked.waits_until, self.moved + self.wait_seconds)
        return now < tracked.waits_until
