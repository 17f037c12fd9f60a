"""The tier over an object store or a directory that machines share."""

from typing import final

from hybrid_pages._stubs.arena import Arena
from hybrid_pages._stubs.geometry import Geometry

@final
class Remote:
    """A tier over a store that machines share, for one :class:`Cache`.

    Published entries are written in the background, and any process with the same identity finds
    them. A store that fails, hangs or has damaged objects never raises: it costs entries, each
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
        encrypt_key: str = "",
    ) -> Remote:
        """Make a client of a store. Nothing is sent to the store yet.

        url: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or
        `file:///DIRECTORY`, which is made if its parent exists. Settings and credentials come from
        the environment. deadline_ms: a read or a list that takes longer fails. admit: "auto" writes
        entries that a second request has used, and reads those that take longer to compute; "all"
        writes and reads everything. queue_bytes: the most bytes of slots that wait to be written;
        entries beyond that are declined. policy: decides which entries count as the least useful.
        encrypt_key: the text of a key file, whose keys entries are encrypted with; empty to leave
        them as they are.

        Raises InvalidArgumentError for another kind of URL and for a number out of range,
        RemoteError if the client or the directory cannot be made.
        """

    @staticmethod
    def check(url: str) -> str:
        """Check whether a client of a store can be made. Returns the name of the store for logs.

        Raises InvalidArgumentError and RemoteError as the constructor does.
        """

    @property
    def place(self) -> str:
        """The name of the store for logs: its URL, which has no credentials."""

    def connect(self, arena: Arena, identity: bytes) -> None:
        """Begin to use the store for an identity.

        arena: holds the cache's slots. identity: 32 bytes that name everything that the bytes of
        entries depend on, the geometry included. Before this the tier finds nothing and takes
        nothing. A store that does not answer is tried again.

        Raises RemoteError if threads cannot start, and at the second call; ArenaError if the arena
        lacks a plane; InvalidArgumentError for an identity of another length or slots of another
        size.
        """

    def describe(self, about: str) -> None:
        """Write a description of the identity beside the packs, for people.

        Entries are found without it. Before :meth:`connect` this does nothing.
        """

    def settle(self, seconds: float) -> bool:
        """Wait until all copies have ended, so that others find all written entries.

        seconds: to wait at most; False if that is not enough.
        """

    def close(self) -> None:
        """End the copies and the threads.

        The cache can still be used: it finds nothing here, and nothing is written. The second call
        does nothing.
        """

    def notes(self) -> list[str]:
        """Messages for a log, each returned once: the first failure of each kind."""

    def stats(self) -> dict[str, int]:
        """Counts since the start, and present values.

        hits, misses: lookups of entries that the cache did not know. reads, writes: entries read
        and written. read_bytes: the payload read. written_bytes: the bytes written, tables
        included. read_us, write_us: the microseconds that reads and writes took. spared_writes:
        writes of bytes that were in the store already. reading, writing: entries being copied now.
        unproven: entries declined because no second request had used them. dropped: entries
        declined because the store was not used. puts, gets, lists: requests to the store. outages:
        times that the store was taken out of use; out: 1 while it is. shared: 0 after a clear, when
        nothing is shared. entries, packs, stored_bytes: what the store is known to have.
        latency_us, bandwidth: as last measured, 0 before. failed_*: failures by reason.
        """
