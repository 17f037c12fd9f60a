"""Follows what applications say of a conversation's future: ``expect_in`` and ``release``."""

from hybrid_pages.vllm.scheduler.connection import Connection
from hybrid_pages.vllm.scheduler.loads.expected import Expected, ExpectedPrefix
from hybrid_pages.vllm.scheduler.requests.hints import session_name
from hybrid_pages.vllm.scheduler.requests.sessions import SessionStarts
from hybrid_pages.vllm.scheduler.requests.tails import can_have_tails
from hybrid_pages.vllm.scheduler.requests.tracked import Tracked


class Outlook:
    """The sessions of one engine. connection: has its cache, once it is connected."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sessions = SessionStarts()
        self._expected: Expected | None = None

    def came(self, tracked: Tracked) -> None:
        """Called when the first lookup of a request has a result."""
        lookup, n = tracked.lookup, self._connection.grid.block_tokens
        if lookup is not None:
            tracked.known = max(lookup.local, lookup.restorable, lookup.paged) // n
        name = _name(tracked)
        if name is not None:
            self._sessions.came(name, tracked.known)
            if self._expected is not None:
                self._expected.came(name)

    def ended(self, tracked: Tracked) -> bool:
        """Called when a request has ended and its stores are planned. Returns whether this keeps
        its hold on its namespace, for the session's next request."""
        hints, name = tracked.hints, _name(tracked)
        if not (hints.release or hints.expect_in is not None):
            return False
        chain = self._chain(tracked)
        if hints.release:
            first = tracked.known
            if name is not None:
                first = self._sessions.ended(name, first)
                if self._expected is not None:
                    self._expected.came(name)
            ends = self._ends(tracked, chain, first)
            self._connection.cache.give_up(tracked.run.namespace, chain, first=first, ends=ends)
        elif hints.expect_in is not None:
            if self._expected is None:
                self._expected = self._begin()
            prefix = ExpectedPrefix(tracked.run.namespace, chain, hints.priority)
            return self._expected.expect(name, prefix, hints.expect_in)
        return False

    def _chain(self, tracked: Tracked) -> list[bytes]:
        """The keys of all that a request has computed, that of its tail included."""
        keys, request = self._connection.keys.of(tracked), tracked.request
        n, position = self._connection.grid.block_tokens, tracked.run.position
        position = request.num_tokens if position is None else min(position, request.num_tokens)
        blocks = min(len(keys), position // n)
        chain = [keys[block] for block in range(blocks)]
        rest = position - blocks * n
        if 0 < rest < n and can_have_tails(request):
            chain += self._connection.keys.tails(tracked, blocks, [rest])
        return chain

    def _ends(self, tracked: Tracked, chain: list[bytes], first: int) -> list[bytes]:
        """The keys of the tails inside a request's tokens that hang from blocks behind the first
        ones: where earlier requests of its conversation ended."""
        request, n, ends = tracked.request, self._connection.grid.block_tokens, list[bytes]()
        if can_have_tails(request):
            behind, _ = self._connection.cache.tail_lengths(
                tracked.run.namespace, chain, first=first + 1, ask=False
            )
            for blocks, lengths in behind:
                most = min(n - 1, request.num_tokens - blocks * n)
                fitting = [tokens for tokens in lengths if tokens <= most]
                ends += self._connection.keys.tails(tracked, blocks, fitting)
        return ends

    def _begin(self) -> Expected:
        connection = self._connection
        below = connection.may_load and (
            connection.disk is not None or connection.remote is not None
        )
        release = connection.namespaces.release
        return Expected(connection.cache, below=below, release=release)

    def observe(self) -> None:
        """Adds what was brought to the figures."""
        if self._expected is not None:
            self._connection.figures.observe_expected(self._expected.brought, self._expected.failed)

    def forget(self) -> None:
        """Forgets every session, and expects nothing any more."""
        self._sessions.forget()
        if self._expected is not None:
            self._expected.clear()

    def close(self) -> None:
        """Ends the thread that brings prefixes, if there is one."""
        if self._expected is not None:
            self._expected.close()


def _name(tracked: Tracked) -> bytes | None:
    session = tracked.hints.session
    return None if session is None else session_name(session, tracked.request.cache_salt)
