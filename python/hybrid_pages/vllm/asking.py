"""Tiers that ask others what there is: how long a request waits for the answer."""

import math
import time

from hybrid_pages.vllm.metrics import Figures
from hybrid_pages.vllm.pace import Pace
from hybrid_pages.vllm.tracking import Tracked


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
