"""Remembers the ends of answers, each of which the next turn of its conversation supersedes.

A text that was sent for its own sake, such as a warmed beginning, is no such end. Neither is one
that two requests have ended with: it is not known how many conversations go on from there.
"""

from collections.abc import Iterable

_MOST = 16_384
"""How many ends are remembered; the oldest are forgotten first."""


class Turns:
    """Remembers ends by the keys of their tails."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._ends: dict[bytes, frozenset[int] | None] = {}
        """By key, where other tails of the same request end, in tokens; None unless it is the end
        of one answer, from which no turn has gone on."""

    def ended(self, tail: bytes, *, answered: bool, others: Iterable[int] = ()) -> None:
        """Called when a request has left a tail at its end.

        tail: its key. answered: whether the request was answered, by more than one token. others:
        where tails of its prompt end that are of no use to turns that go on from its answer.
        """
        is_first = tail not in self._ends
        self._ends.pop(tail, None)
        self._ends[tail] = frozenset(others) if answered and is_first else None
        if len(self._ends) > self._most:
            del self._ends[next(iter(self._ends))]

    def supersede(self, tail: bytes) -> frozenset[int] | None:
        """Where the other tails of a request end that are superseded with the one at its end, by
        the first turn that goes on from it; None if that is not superseded."""
        others = self._ends.get(tail)
        if others is not None:
            self._ends[tail] = None
        return others

    def forget(self) -> None:
        """Forgets all ends, since everything computed so far is outdated."""
        self._ends.clear()
