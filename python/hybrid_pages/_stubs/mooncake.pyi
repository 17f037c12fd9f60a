"""The tier over a Mooncake Store."""

from collections.abc import Sequence
from os import PathLike
from typing import final

from hybrid_pages._stubs.arena import Arena
from hybrid_pages._stubs.geometry import Geometry

@final
class Mooncake:
    """A tier over a Mooncake Store, for one :class:`Cache`.

    Mooncake's client runs in a process of its own, which this object starts, and ends if it hangs.
    Published entries are written in the background, and any process with the same identity finds
    them. A store that fails, hangs or has damaged values never raises: it costs entries, each
    failure is counted by reason, and :meth:`notes` has the first of each kind.
    """

    def __new__(
        cls,
        geometry: Geometry,
        *,
        slot_bytes: int,
        master: str,
        command: Sequence[str | PathLike[str]],
        deadline_ms: int = 2000,
        weighs: bool = True,
        queue_bytes: int = 1 << 30,
        staging_bytes: int = 1 << 26,
        policy: str = "lru",
    ) -> Mooncake:
        """Take the staging memory. The client's process is not started yet.

        master: `host:port` of the Mooncake master. command: starts the client's process, see
        `hybrid_pages.mooncake.command()`. deadline_ms: a read or a lookup that takes longer fails.
        weighs: write only entries that a second request has used, and read only those that take
        longer to compute; if false, write and read everything. queue_bytes: the most bytes of slots
        that wait to be written; entries beyond that are declined. staging_bytes: memory that reads
        arrive in.

        Raises InvalidArgumentError for a setting out of range, RemoteError without memory.
        """

    @property
    def place(self) -> str:
        """The name of the store for logs: its URL."""

    def connect(self, arena: Arena, identity: bytes) -> None:
        """Begin to use the store for an identity.

        arena: holds the cache's slots. identity: 32 bytes that name everything that the bytes of
        entries depend on, the geometry included. Before this, and until the client's process is
        ready, the tier finds nothing and takes nothing. A store that does not answer is tried
        again.

        Raises RemoteError if the thread cannot start, and at the second call; ArenaError if the
        arena lacks a plane; InvalidArgumentError for an identity of another length or slots of
        another size.
        """

    def settle(self, seconds: float) -> bool:
        """Wait until all copies and removals have ended, so that others find all written entries.

        seconds: to wait at most; False if that is not enough.
        """

    def close(self) -> None:
        """End the copies, the threads and the client's process.

        The cache can still be used: it finds nothing here, and nothing is written. The second call
        does nothing.
        """

    def notes(self) -> list[str]:
        """Messages for a log, each returned once: the first failure of each kind."""

    def stats(self) -> dict[str, int]:
        """Counts since the start, and present values.

        hits, misses: lookups of entries that the cache did not know. asked: entries that the store
        was asked for. reads, writes: entries read and written. read_bytes: the payload read.
        written_bytes: the bytes written, headers included. read_us, write_us: the microseconds that
        reads and writes took. spared_writes: writes of bytes that were in the store already.
        reading, writing: entries being copied now. unproven: entries declined because no second
        request had used them. dropped: entries declined because the store was not used. puts, gets,
        lists: batches of writes, reads and lookups. outages: times that the store was taken out of
        use; out: 1 while it is, or the client is not ready. shared: 0 after a clear, when nothing
        is shared. helpers: times that the client's process was started. latency_us, bandwidth: as
        last measured, 0 before. failed_*: failures by reason.
        """
