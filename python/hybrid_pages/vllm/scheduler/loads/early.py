"""Asks the tiers below for what requests need while these still wait for their first turn.

vLLM asks for a request's hit when it could schedule the request, which may be long after it came.
Meanwhile what only tiers below have is read into the host, and kept there until the request's turn
or its end. A request that gets its turn in the step in which it came is never asked for here.

What is kept so is a small part of the host, and is given back as soon as a request whose turn has
come finds no room.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from hybrid_pages.vllm.metrics import Figures
from hybrid_pages.vllm.scheduler.loads.restores import Asked, Restores
from hybrid_pages.vllm.scheduler.requests.tracked import Tracked

if TYPE_CHECKING:
    from vllm.v1.request import Request

SHARE = 4
"""All that is kept for requests that wait is at most one part in so many of the host."""
_MOST_REQUESTS = 16
"""Requests that one step asks for."""
_MOST_BLOCKS = 4096
"""Blocks of prompts that one step looks up, beyond those of the first request."""


@dataclass(slots=True)
class _Waiting:
    """A request that was not asked for yet, or of which a tier below has to say more."""

    request: "Request"
    tracked: Tracked | None = None
    until: float = 0.0
    """When to stop asking, on the monotonic clock."""


class Early:
    """The requests that came and have not had their first turn.

    Args:
        track: begins to follow a request; None if it cannot be asked for before its turn.
        local: how many of the first tokens of a request, as many as are given, the engine's own
            cache has.
        figures: counts the restores that begin here.
    """

    def __init__(
        self,
        track: "Callable[[Request], Tracked | None]",
        local: Callable[[Tracked, int], int],
        figures: Figures,
    ) -> None:
        self._track, self._local, self._figures = track, local, figures
        self._waiting: dict[str, _Waiting] = {}
        self._asked: dict[str, Tracked] = {}
        """Requests that nothing more is asked for; some have a restore under way."""
        self._held: dict[str, int] = {}
        """The slots that the restore of a request takes."""
        self._full = False
        """Whether the next request has no room beside those that hold some."""

    @property
    def asks(self) -> bool:
        """Whether there is a request to ask for."""
        return bool(self._waiting or self._held)

    def arrived(self, request: "Request") -> None:
        """Notes a new request."""
        self._waiting[request.request_id] = _Waiting(request)

    def take(self, request_id: str) -> Tracked | None:
        """Hands over a request whose first turn has come, or that has ended, with what it holds.

        None if it was not followed before.
        """
        if self._held.pop(request_id, 0):
            self._full = False
        waiting = self._waiting.pop(request_id, None)
        asked = self._asked.pop(request_id, None)
        return asked if waiting is None else waiting.tracked

    def give_back(self) -> None:
        """Ends all restores. Their requests restore anew in their turn."""
        self._held.clear()
        self._full = False
        for tracked in self._asked.values():
            tracked.drop_restore()

    def drop_waiting(self) -> None:
        """Asks for none of the requests that wait now: they wait for their turn."""
        for name, waiting in self._waiting.items():
            if waiting.tracked is not None:
                self._asked[name] = waiting.tracked
        self._waiting.clear()

    def ask(self, restores: Restores, slots: int) -> None:
        """Asks for some of the requests, in the order in which they came.

        Args:
            restores: of the engine.
            slots: of the host.
        """
        if restores.crowded:
            restores.crowded = False
            self.give_back()
            return
        if self._full:
            return
        blocks = 0
        for name, waiting in list(islice(self._waiting.items(), _MOST_REQUESTS)):
            if blocks > _MOST_BLOCKS:
                return
            blocks += waiting.request.num_tokens // restores.block_tokens
            asked = self._ask(restores, waiting, slots // SHARE)
            if asked == "full":
                self._full = bool(self._held)
                return
            if asked == "done":
                del self._waiting[name]
                if waiting.tracked is not None:
                    self._asked[name] = waiting.tracked

    def _ask(self, restores: Restores, waiting: _Waiting, most: int) -> Asked:
        request, now = waiting.request, time.monotonic()
        if waiting.tracked is None:
            waiting.tracked, waiting.until = self._track(request), now + restores.wait_seconds
        tracked = waiting.tracked
        if tracked is None:
            return "done"
        room = most - sum(self._held.values())
        asked = restores.ask(tracked, lambda end: self._local(tracked, end), room=room, most=most)
        if tracked.restore is not None:
            self._held[request.request_id] = tracked.restore.slots
            self._figures.count("early_restores")
        late = now >= waiting.until and (asked == "asking" or not self._held)
        return "done" if late else asked
