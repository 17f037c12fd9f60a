"""*Parked* requests: vLLM has given them blocks for a load, and has not scheduled them yet.

vLLM takes blocks back from running requests, but not from these. So there must be enough free
blocks beside those that parked requests hold for one of them to finish its prompt, or none ever
goes on. vLLM makes sure of that when it admits a load, except where sliding windows free blocks
while a request goes on: it counts the blocks behind the window as held
(``Scheduler._request_remaining_blocks``), and reserves too little.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybrid_pages.vllm import versions
from hybrid_pages.vllm.metrics import Figures
from hybrid_pages.vllm.scheduler.requests.tracked import Tracked

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.request import Request


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A request whose load vLLM has admitted."""

    request: "Request"
    number: int
    """The order of admission."""


class Parked:
    """Tells whether vLLM could finish another load.

    figures: counts the loads that are left out. drafts: the most draft tokens of a step.
    """

    def __init__(self, figures: Figures, drafts: int) -> None:
        self._figures = figures
        self._ahead = 1 + 2 * drafts if drafts else 0
        """How many tokens after a prompt need room in a step with drafts."""
        self._admitted: dict[str, _Admitted] = {}
        self._number = 0
        self.manager: KVCacheManager | None = None
        """vLLM's cache manager, if it reserves too few blocks; else None."""

    def bind(self, manager: "KVCacheManager") -> None:
        """Takes vLLM's cache manager."""
        self.manager = manager if versions.reserves_too_little(manager) else None

    # ---- the life of a load, as vLLM has it

    def admitted(self, tracked: Tracked) -> None:
        """Called when vLLM has given a request blocks for a load."""
        tracked.offered = False
        self._number += 1
        self._admitted[tracked.request.request_id] = _Admitted(tracked.request, self._number)

    def asked(self, tracked: Tracked) -> None:
        """Called when vLLM looks for blocks for a request that has none."""
        self.ended(tracked.request.request_id)
        tracked.offered = tracked.left_out = False

    def scheduled(self, tracked: Tracked) -> None:
        """Called when vLLM schedules a request."""
        self.ended(tracked.request.request_id)
        if tracked.left_out:
            self._figures.count("skipped_loads", label="no_room")
        tracked.offered = tracked.refused = tracked.left_out = False
        tracked.waits_for = None

    def ended(self, request_id: str) -> None:
        """Called when a request has lost its blocks, or has ended."""
        self._admitted.pop(request_id, None)

    # ---- another load

    def fits(self, tracked: Tracked, local: int, end: int) -> bool | None:
        """Whether a load up to ``end`` tokens, after ``local`` ones of vLLM's own, can be finished.

        None while the blocks that it needs are held by loads that were admitted before the first
        question. The request does not wait for later loads, since it does not keep them from being
        admitted.
        """
        if self.manager is None or not self._admitted or self._fits(tracked.request, local, end):
            tracked.offered, tracked.waits_for = True, None
            return True
        if tracked.waits_for is None:
            tracked.waits_for = self._number
        if any(each.number <= tracked.waits_for for each in self._admitted.values()):
            return None
        tracked.left_out = True
        return False

    def _fits(self, request: "Request", local: int, end: int) -> bool:
        manager = self.manager
        if manager is None:
            return True
        free = manager.block_pool.get_num_free_blocks()
        for each in self._admitted.values():
            computed = each.request.num_computed_tokens
            free -= versions.blocks_to_finish(manager, each.request, computed, self._ahead)
        if free <= 0:
            return False
        for known in (
            (0, local) if local else (0,)
        ):  # Looking for blocks that are shared takes time.
            if versions.blocks_to_finish(manager, request, end, self._ahead, local=known) <= free:
                return True
        return False

    def refuse(self, requests: Iterable[Tracked]) -> None:
        """Called when nothing runs or is copied, so that vLLM will never admit the offered load."""
        for tracked in requests:
            if tracked.offered:
                tracked.offered, tracked.refused = False, True
                self._figures.count("skipped_loads", label="never_admitted")
