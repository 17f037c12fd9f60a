"""Brings prefixes to the host before the requests come that were said to need them.

An engine that has nothing to do makes no steps, so this has a thread of its own. It calls nothing
but the cache, which any thread may do, and it never waits for a read.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hybrid_pages import Cache, Hints
from hybrid_pages.vllm.scheduler.requests.hints import MOST_SECONDS
from hybrid_pages.vllm.versions import logger

LEAD = 5.0
"""How many seconds before a request is expected its prefix is asked for."""
GRACE = 15.0
"""For how many seconds after that time the prefix is retained if the request does not come."""
_AGAIN = 0.25
"""Seconds between two looks at a prefix that is being read."""
MOST = 4096
"""The most requests that are expected at a time."""


class ExpectedPrefix(NamedTuple):
    """What a request is expected to begin with."""

    namespace: int
    """It is held, and may have no boundary in the host any more."""
    keys: Sequence[bytes]
    priority: int


@dataclass(slots=True)
class _Wanted:
    prefix: ExpectedPrefix
    session: bytes | None
    needed: float
    """When the request is expected."""
    begun: bool = False
    """Whether reads were begun."""


class Expected:
    """The requests that are expected, in the order of time.

    Args:
        cache: of the engine.
        below: whether there is a tier below that prefixes can be brought back from. Without one,
            the host retains them from the beginning.
        release: gives back the hold on a prefix's namespace. Any thread may call it.
    """

    def __init__(self, cache: Cache, *, below: bool, release: Callable[[int], None]) -> None:
        self._cache, self._below, self._release = cache, below, release
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._order: list[tuple[float, int]] = []
        """A heap of times and numbers. Numbers that are not wanted any more are passed over."""
        self._wanted: dict[int, _Wanted] = {}
        self._sessions: dict[bytes, int] = {}
        self._numbers = itertools.count()
        self._closed = False
        self.brought = 0
        """How many prefixes were read from tiers below, as far as they were there."""
        self.failed = 0
        """How many could not be looked up."""

    def expect(self, session: bytes | None, prefix: ExpectedPrefix, seconds: float) -> bool:
        """Expects a request in so many seconds, unless there are too many others.

        session: its name; a session has one next request. Returns whether the hold on the prefix's
        namespace is kept, to be given back later.
        """
        if not self._below:
            self._retain(prefix, seconds)
            return False
        if session is not None:
            self.came(session)
        now = time.monotonic()
        with self._changed:
            if self._closed or len(self._wanted) >= MOST:
                return False
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="hybrid-pages-expected", daemon=True
                )
                self._thread.start()
            number = next(self._numbers)
            self._wanted[number] = _Wanted(prefix, session, now + seconds)
            if session is not None:
                self._sessions[session] = number
            if len(self._order) > 2 * len(self._wanted):
                self._order = [each for each in self._order if each[1] in self._wanted]
                heapq.heapify(self._order)
            heapq.heappush(self._order, (now + max(seconds - LEAD, 0.0), number))
            self._changed.notify()
        return True

    def came(self, session: bytes) -> None:
        """Called when a request of a session comes: it is not expected any more."""
        if session in self._sessions:
            with self._changed:
                self._drop(self._sessions.get(session, -1))

    def clear(self) -> None:
        """Expects nothing any more."""
        with self._changed:
            for number in list(self._wanted):
                self._drop(number)
            self._order.clear()

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(10)

    def _drop(self, number: int) -> None:
        if (wanted := self._wanted.pop(number, None)) is not None:
            if wanted.session is not None:
                self._sessions.pop(wanted.session, None)
            self._release(wanted.prefix.namespace)

    # ---- the thread

    def _run(self) -> None:
        while (number := self._due()) is not None:
            with self._changed:
                wanted = self._wanted.get(number)
            if wanted is None:
                continue
            again, failure = False, None
            try:
                again = self._bring(wanted)
            except Exception as error:
                failure = error
            with self._changed:
                # One that came meanwhile has given its namespace back.
                if failure is not None and number in self._wanted:
                    self.failed += 1
                    logger.warning("an expected prefix could not be looked up: %s", failure)
                if again and number in self._wanted:
                    heapq.heappush(self._order, (time.monotonic() + _AGAIN, number))
                else:
                    self._drop(number)

    def _due(self) -> int | None:
        """Waits for the next prefix that is to be brought. None after the end."""
        with self._changed:
            while not self._closed:
                if not self._order:
                    self._changed.wait()
                    continue
                at, number = self._order[0]
                left = at - time.monotonic()
                if left <= 0 or number not in self._wanted:
                    heapq.heappop(self._order)
                    return number
                self._changed.wait(left)
        return None

    def _bring(self, wanted: _Wanted) -> bool:
        """Begins to read a prefix, or retains what is there. Returns whether to look again."""
        prefix = wanted.prefix
        hit = self._cache.lookup(prefix.namespace, prefix.keys)
        left = wanted.needed - time.monotonic()
        if left > -GRACE and (hit.asking or hit.blocks > hit.host):
            if hit.asking:
                return True
            if self._cache.promote(prefix.namespace, prefix.keys):
                self.brought += not wanted.begun
                wanted.begun = True
                return True
        self._retain(prefix, max(left, 0.0))
        return False

    def _retain(self, prefix: ExpectedPrefix, seconds: float) -> None:
        hints = Hints(priority=prefix.priority, retain=min(seconds + GRACE, MOST_SECONDS))
        now = time.monotonic_ns() // 1_000_000
        self._cache.expect(prefix.namespace, prefix.keys, now=now, hints=hints)
