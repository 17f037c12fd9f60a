"""Remembers the ends of answers, each of which the next turn of its conversation supersedes.

A text that was sent for its own sake, such as a warmed beginning, is no such end. Neither is one
that two requests have ended with: it is not known how many conversations go on from there.
"""

_MOST = 16_384
"""How many ends are remembered; the oldest are forgotten first."""


class Turns:
    """Remembers ends by the keys of their tails."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._ends: dict[bytes, bool] = {}
        """By key, whether it is the end of one answer, from which no turn has gone on."""

    def ended(self, tail: bytes, *, answered: bool) -> None:
        """Called when a request has left a tail at its end.

        tail: its key. answered: whether the request was answered, by more than one token.
        """
        is_first = self._ends.pop(tail, None) is None
        self._ends[tail] = answered and is_first
        if len(self._ends) > self._most:
            del self._ends[next(iter(self._ends))]

    def supersede(self, tail: bytes) -> bool:
        """Whether a turn that went on from a tail supersedes it; only the first one does."""
        superseded = self._ends.get(tail, False)
        if superseded:
            self._ends[tail] = False
        return superseded

    def forget(self) -> None:
        """Forgets all ends, since everything computed so far is outdated."""
        self._ends.clear()
