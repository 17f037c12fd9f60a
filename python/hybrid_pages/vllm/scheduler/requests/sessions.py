"""Where the conversations that applications name leave what others have, too."""

from collections import OrderedDict

MOST = 8192
"""The most sessions that are remembered."""


class SessionStarts:
    """How many blocks of each recent session were known before its first request."""

    def __init__(self) -> None:
        self._shared: OrderedDict[bytes, int] = OrderedDict()

    def came(self, session: bytes, known: int) -> None:
        """Notes a request of a session, of which so many blocks are known."""
        self._shared.setdefault(session, known)
        self._shared.move_to_end(session)
        if len(self._shared) > MOST:
            self._shared.popitem(last=False)

    def ended(self, session: bytes, known: int) -> int:
        """Forgets a session. Returns how many of its blocks it shares with others, at most.

        known: how many were known before its last request, which counts if no other is remembered.
        """
        return min(self._shared.pop(session, known), known)

    def forget(self) -> None:
        """Forgets every session."""
        self._shared.clear()
