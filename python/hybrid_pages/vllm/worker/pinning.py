"""Reports how many slots of a worker's plane are pinned, to the scheduler half and in the log."""

import threading

from hybrid_pages import Pinning
from hybrid_pages.adapter.memory import GIB
from hybrid_pages.vllm.versions import logger

_LINES = 8
"""The most lines in the log for one plane, besides the last one."""
_LOOK_SECONDS = 1.0


class Progress:
    """Reports about one rank's plane.

    A thread writes the log, since an engine without requests takes no step.

    Args:
        rank: the worker's.
        nbytes: the size of its plane.
        pinning: pins that plane.
    """

    def __init__(self, rank: int, nbytes: int, pinning: Pinning) -> None:
        self._rank, self._nbytes, self._pinning = rank, nbytes, pinning
        self._reported = 0
        self._closed = threading.Event()
        threading.Thread(target=self._follow, name="hybrid-pages-progress", daemon=True).start()

    def more(self, ready: int) -> int | None:
        """The number of usable slots, if it has grown since the last call; else None."""
        if ready == self._reported:
            return None
        self._reported = ready
        return ready

    def close(self) -> None:
        """Ends writing to the log."""
        self._closed.set()

    def _follow(self) -> None:
        pinning, logged = self._pinning, 0
        while not self._closed.wait(_LOOK_SECONDS):
            ended = pinning.wait(0)
            ready = pinning.usable_slots
            if (ready - logged) * _LINES >= pinning.slots or (ended and ready > logged):
                logged = ready
                self._say(ready)
            if ended:
                if pinning.error is not None:
                    logger.warning("rank %d: %s", self._rank, pinning.error)
                break

    def _say(self, ready: int) -> None:
        total = self._nbytes / GIB
        logger.info(
            "hybrid-pages: rank %d has %.1f of %.1f GiB of host memory ready after %.1f s",
            self._rank,
            total * ready / self._pinning.slots,
            total,
            self._pinning.seconds,
        )
