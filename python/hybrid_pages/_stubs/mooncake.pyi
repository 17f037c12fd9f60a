"""Entries in a Mooncake Store."""

from collections.abc import Sequence
from os import PathLike
from typing import final

from hybrid_pages._stubs.arena import Arena
from hybrid_pages._stubs.geometry import Geometry

@final
class Mooncake:
    """A tier in a Mooncake Store, for one :class:`Cache`. Without the cache it does nothing.

    Mooncake's client runs in a process of its own, which this starts, and ends when it hangs. What
    is published goes to the store in the background, and any process with the same identity finds
    it. A store that fails, hangs or has damaged values never raises: it costs entries, each failure
    is counted by reason, and :meth:`notes` has the first of each kind.
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
        """Take memory for what arrives. Nothing is started yet.

        master: `host:port`. command: starts the client's process; `hybrid_pages.mooncake.command()`
        makes it. deadline_ms: a read, or a question what is there, that takes longer fails. weighs:
        writes what a second request has used, and reads what takes less time than to compute; else
        everything. queue_bytes: of slots that wait to be written; what is offered beyond that is
        declined. staging_bytes: memory that reads arrive in.

        Raises InvalidArgumentError for a setting out of range, RemoteError without memory.
        """

    @property
    def place(self) -> str:
        """How the store is called in logs: its URL."""

    def connect(self, arena: Arena, identity: bytes) -> None:
        """Begin to use the store for an identity, over the arena in which the cache's slots lie.

        identity: 32 bytes that name everything that the entries' bytes depend on, the geometry
        included. Before this, and until the client's process is ready, the tier finds nothing and
        takes nothing. A store that does not answer is tried again.

        Raises RemoteError if the thread cannot start, and at the second call; ArenaError if the
        arena lacks a plane; InvalidArgumentError for another length or slots of another size.
        """

    def settle(self, seconds: float) -> bool:
        """Wait until all copies and removals ended: others can find all that was written.

        False if that takes longer.
        """

    def close(self) -> None:
        """End the copies, the threads and the client's process.

        The cache may be used on; it finds nothing here, and nothing is written. The second call
        does nothing.
        """

    def notes(self) -> list[str]:
        """Lines for a log, each given once: the first failure of each kind."""

    def stats(self) -> dict[str, int]:
        """Counts since the start, or of the moment.

        hits, misses: of lookups of entries that the cache did not know; asked: entries that the
        store was asked for; reads, writes: entries; read_bytes: their payload; written_bytes: with
        headers; read_us, write_us: microseconds that they took; spared_writes: the bytes were
        there; reading, writing: now; unproven: offers that no second request had used; dropped:
        offers while the store took none; puts, gets, lists: batches of writes, reads and questions;
        outages; out: 1 while it is left alone, or the client is not ready; shared: 0 after a clear,
        when nothing is; helpers: times that the client's process was started; latency_us,
        bandwidth: as last measured, 0 before; failed_*: by reason.
        """
