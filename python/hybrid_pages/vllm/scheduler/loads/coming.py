"""Requests that wait a moment for a store that is under way.

On a GPU, stores run in the background. A next turn that comes at once, as an agent's does, would
find the end of the answer before it still being written, and compute what it is about to have.
"""

import math
import time

from hybrid_pages.vllm.metrics import Figures
from hybrid_pages.vllm.scheduler.loads.pace import Pace
from hybrid_pages.vllm.scheduler.requests.tracked import Tracked

MOST_SECONDS = 0.1
"""The longest wait of a request."""
TOKENS_PER_SECOND = 20_000
"""How fast prompts are taken to be computed where that is not measured."""


class Coming:
    """How long requests without blocks wait for what is being stored: at most as long as it takes
    to compute what that may save.

    pace: measures how fast prompts are computed, if anything does.
    """

    def __init__(self, figures: Figures, pace: Pace | None = None) -> None:
        self._figures, self._pace = figures, pace

    def waits(self, tracked: Tracked, have: int, coming: int) -> bool:
        """Whether a request waits longer.

        have: how many of its tokens there are. coming: how many there will be.
        """
        if tracked.comes_until == -math.inf:
            return False
        if coming <= have:
            if tracked.awaits:
                self._end(tracked, "found" if have >= tracked.awaits else "lost")
            return False
        now = time.monotonic()
        if tracked.comes_until == math.inf:
            tracked.comes_until = now + min(MOST_SECONDS, self._seconds(coming - have))
        if now < tracked.comes_until:
            tracked.awaits = coming
            return True
        if tracked.awaits:
            self._end(tracked, "late")
        return False

    def _seconds(self, tokens: int) -> float:
        """How long it takes to compute so many tokens."""
        measured = self._pace is not None and self._pace.tokens_per_second
        return tokens / (measured or TOKENS_PER_SECOND)

    def _end(self, tracked: Tracked, outcome: str) -> None:
        self._figures.count("awaited_stores", label=outcome)
        tracked.awaits, tracked.comes_until = 0, -math.inf
