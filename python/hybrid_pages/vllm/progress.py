"""How far a worker's memory is pinned: for the scheduler half, and in the log."""

from hybrid_pages import Pinning
from hybrid_pages.adapter.memory import GIB
from hybrid_pages.vllm.log import logger

_LINES = 8
"""Most lines in the log for one plane."""


class Progress:
    """What was reported of one rank's plane.

    Args:
        rank: of the worker.
        nbytes: of its plane.
    """

    def __init__(self, rank: int, nbytes: int) -> None:
        self._rank, self._nbytes = rank, nbytes
        self._reported = self._logged = 0
        self._failed = False

    def of(self, pinned: Pinning) -> int | None:
        """The slots that may be used, if they have become more since the last call."""
        ready = pinned.usable_slots
        if pinned.error is not None and not self._failed:
            self._failed = True
            logger.warning("rank %d: %s", self._rank, pinned.error)
        if ready == self._reported:
            return None
        self._reported = ready
        if ready == pinned.slots or (ready - self._logged) * _LINES >= pinned.slots:
            self._logged = ready
            total = self._nbytes / GIB
            logger.info(
                "hybrid-pages: rank %d has %.1f of %.1f GiB of host memory ready after %.1f s",
                self._rank,
                total * ready / pinned.slots,
                total,
                pinned.seconds,
            )
        return ready
