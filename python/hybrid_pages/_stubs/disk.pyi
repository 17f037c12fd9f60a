"""Entries that outlive the process."""

from collections.abc import Callable
from os import PathLike
from typing import Any, final

from hybrid_pages._stubs.arena import Arena
from hybrid_pages._stubs.geometry import Geometry

DISK_LATENCY_LIMITS_US: list[int]
"""Upper limits, in microseconds, of the buckets of :meth:`Disk.latencies`; the last has none."""

@final
class Disk:
    """A tier on a local disk, for one :class:`Cache`. Without the cache it does nothing.

    What is published goes to disk in the background, and a later process with the same identity
    finds it again. Damaged files never raise: they cost entries, each failure is counted by reason,
    and :meth:`notes` has the first of each kind.
    """

    def __new__(
        cls,
        geometry: Geometry,
        *,
        slot_bytes: int,
        path: str | PathLike[str],
        quota_bytes: int,
        lane: int = 0,
        deadline_ms: int = 2000,
        threads: int = 4,
        queue_bytes: int = 1 << 30,
        policy: str = "lru",
    ) -> Disk:
        """Take a lane of a directory, which is made if its parent is there.

        quota_bytes: what all entries of the lane may take, those of other identities included.
        lane: the number of this process among those that share the directory. deadline_ms: when a
        call of the system takes longer, or nothing moves for so long, copies fail and the disk is
        out for some time; an entry may take longer as a whole. threads: so many reads and writes
        are under way at a time. queue_bytes: of slots that wait to be written; what is offered
        beyond that is declined.

        A marker that is damaged is written anew. What the system refuses otherwise is counted,
        and :meth:`connect` tries it again.

        Raises DiskError if the path is no directory of this user's or another process has the lane,
        ForeignError if something else is in it or another format, BudgetError for a quota that
        can't hold one entry of each class, InvalidArgumentError for a number out of range.
        """

    def connect(self, arena: Arena, identity: bytes) -> None:
        """Open the store of an identity over the arena in which the cache's slots lie.

        identity: 32 bytes that name everything that the entries' bytes depend on, the geometry
        included. Before this the disk finds nothing and takes nothing. If the system refuses to
        open it, it is out and stays as it is, and is tried again while the cache is used.

        Raises DiskError for symbolic links in the place of files, if another process has the
        directory, and at the second call; ForeignError if something else is in it; ArenaError if
        the arena lacks a plane; InvalidArgumentError for another length or slots of another size.
        """

    def describe(self, about: str) -> None:
        """Write down, in `about.json`, what the identity was made from: for people and tools.

        Nothing reads it to find entries. Before :meth:`connect` this does nothing; while the disk
        can't be opened, it waits for that. A failure is counted, and so is more than 1 MiB, which
        is not written.
        """

    def settle(self, seconds: float) -> bool:
        """Wait until all copies ended and a later process would find all that was written.

        False if that takes longer.
        """

    def close(self) -> None:
        """End the copies, and give the directory back: another disk may take it.

        The cache may be used on; it finds nothing here, and nothing is written. The second call
        does nothing.
        """

    def notes(self) -> list[str]:
        """Lines for a log, each given once: the first failure of each kind."""

    def stats(self) -> dict[str, int]:
        """Counts since the start, or of the moment.

        hits, misses: of lookups of entries that the cache did not know; reads, writes: entries;
        read_bytes: their payload; written_bytes: with headers and padding; spared_writes: the
        bytes were there; reading, writing: now; dropped: offers while the disk took none; outages;
        out: 1 while it hangs or can't be opened; entries: that can be found; left_over: of earlier
        processes, not found again yet; live_bytes, other_bytes (of other identities), quota_bytes;
        durable: entries written that outlive the process; persistent: 0 after a clear, when nothing
        does; direct: 1 if bytes go past the system's cache; failed_*: by reason.
        """

    def latencies(self) -> dict[str, tuple[list[int], int]]:
        """For "read" and "write": how many took how long, by bucket, and the sum in microseconds.

        The buckets end at :data:`DISK_LATENCY_LIMITS_US`.
        """

@final
class DiskTree:
    """A disk path as it lies there, for tools. A process may use it meanwhile.

    Format: docs/disk-format.md. Results are dictionaries that JSON can hold.
    """

    def __new__(cls, path: str | PathLike[str]) -> DiskTree:
        """Open a path that is there; nothing is made or changed.

        Raises DiskError if it is no directory of this user's, ForeignError if something else is in
        it or another format.
        """

    def lanes(self) -> list[dict[str, Any]]:
        """All lanes, but those that go meanwhile.

        Of each: lane, its name; process, the number of the process that uses it now, 0 where it is
        unknown; cleared, directories that no later process finds anything in, and what they take on
        disk: of the process that uses the lane since it was reset, or waiting to be removed;
        troubles, what could not be read; and identities, the one used longest ago first: identity,
        64 hexadecimal digits; bytes, what its files take on disk; used, seconds since 1970 when a
        file was last changed; about, what :meth:`Disk.describe` was given; ranks that share an
        entry, 0 if nothing says so; entries; classes, for each its entries and bytes of a cell;
        damaged_records of the index; aside_bytes of an index that was set aside; trouble, why the
        index can't be read.
        """

    def verify(
        self, lane: str, identity: str, progress: Callable[[int, int], object] | None = None
    ) -> dict[str, Any] | None:
        """Read all entries of an identity and compare them with their checksums.

        None if it went before that was done. Else: good entries; bytes that were read of those;
        changed, entries that moved or went meanwhile; damaged_records of the index; bad entries,
        each with class, block, cell (in the slab file of its class) and reason (as in the counts of
        :meth:`Disk.stats`). An entry is bad only if the index still has it there some time after it
        was read, and it is bad then, too.

        progress: is told how many bytes of how many are done; what it raises ends the call.

        Raises InvalidArgumentError for what is no lane or identity, DiskError for an index or a
        slab that can't be read.
        """

    def collect(
        self,
        *,
        unused_seconds: float | None = None,
        lanes: int | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Remove what was cleared or set aside, in lanes that no process uses.

        Of the result: removed, paths below the disk path and what they took on disk; busy, lanes
        that a process uses, and its number; failed, what could not be read or removed, and why.

        unused_seconds: remove identities, too, that no process has changed for so long. lanes:
        remove all identities in lanes from this number on. dry_run: remove nothing.

        Raises InvalidArgumentError for a negative time.
        """
