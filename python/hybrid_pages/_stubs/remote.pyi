"""Entries that machines share."""

from typing import final

from hybrid_pages._stubs.arena import Arena
from hybrid_pages._stubs.geometry import Geometry

@final
class Remote:
    """A tier in a store that machines share, for one :class:`Cache`. Without the cache it does
    nothing.

    What is published goes to the store in the background, and any process with the same identity
    finds it. A store that fails, hangs or has damaged objects never raises: it costs entries, each
    failure is counted by reason, and :meth:`notes` has the first of each kind.
    """

    def __new__(
        cls,
        geometry: Geometry,
        *,
        slot_bytes: int,
        url: str,
        deadline_ms: int = 2000,
        admit: str = "auto",
        queue_bytes: int = 1 << 30,
        policy: str = "lru",
    ) -> Remote:
        """Make a client of a store. Nothing is asked of it yet.

        url: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or
        `file:///DIRECTORY`, which is made if its parent is there. Settings and credentials come
        from the environment. deadline_ms: a read, or a question what is there, that takes longer
        fails. admit: "auto" writes what a second request has used, and reads what takes less time
        than to compute; "all" everything. queue_bytes: of slots that wait to be written; what is
        offered beyond that is declined.

        Raises InvalidArgumentError for another URL and for a number out of range, RemoteError if
        the client or the directory cannot be made.
        """

    @staticmethod
    def check(url: str) -> str:
        """Make a client as for a tier, and drop it. Returns how the place is called in logs.

        Raises InvalidArgumentError, RemoteError: as for the tier.
        """

    @property
    def place(self) -> str:
        """How the place is called in logs: the URL, which holds no credentials."""

    def connect(self, arena: Arena, identity: bytes) -> None:
        """Begin to use the store for an identity, over the arena in which the cache's slots lie.

        identity: 32 bytes that name everything that the entries' bytes depend on, the geometry
        included. Before this the tier finds nothing and takes nothing. A store that does not answer
        is tried again.

        Raises RemoteError if threads cannot start, and at the second call; ArenaError if the arena
        lacks a plane; InvalidArgumentError for another length or slots of another size.
        """

    def describe(self, about: str) -> None:
        """Write down, beside the packs, what the identity was made from: for people.

        Nothing reads it to find entries. Before :meth:`connect` this does nothing.
        """

    def settle(self, seconds: float) -> bool:
        """Wait until all copies ended: others can find all that was written.

        False if that takes longer.
        """

    def close(self) -> None:
        """End the copies and the threads.

        The cache may be used on; it finds nothing here, and nothing is written. The second call
        does nothing.
        """

    def notes(self) -> list[str]:
        """Lines for a log, each given once: the first failure of each kind."""

    def stats(self) -> dict[str, int]:
        """Counts since the start, or of the moment.

        hits, misses: of lookups of entries that the cache did not know; reads, writes: entries;
        read_bytes: their payload; written_bytes: with tables; read_us, write_us: microseconds that
        they took; spared_writes: the bytes were there; reading, writing: now; unproven: offers that
        no second request had used; dropped: offers while the store took none; puts, gets, lists:
        requests to the store; outages; out: 1 while it is left alone; shared: 0 after a clear, when
        nothing is; entries, packs, stored_bytes: of the catalog, what the store is known to have;
        latency_us, bandwidth: as last measured, 0 before; failed_*: by reason.
        """
