"""A tier on a local disk, whose entries outlive the process, and tools for its files."""

from collections.abc import Callable
from os import PathLike
from typing import Any, final

from hybrid_pages._stubs.arena import Arena
from hybrid_pages._stubs.geometry import Geometry

DISK_LATENCY_LIMITS_US: list[int]
"""Upper limits, in microseconds, of the buckets of :meth:`Disk.latencies`. The last bucket has
none."""

def encrypt_key_ids(text: str) -> tuple[str, str]:
    """Two short names, of 16 hexadecimal digits each.

    The first is that of the key for all in the text of a key file, by which directories tell keys
    apart. The second is that of all that the file says, comments aside: engines that share entries
    have the same.

    Raises InvalidArgumentError for a text without a key, or with something else in it; the error
    does not repeat the text.
    """

def without_tenant_key(text: str, tenant: list[int]) -> str:
    """The text of a key file without the key of a tenant, which nobody can make from it.

    The tenant gets a new key, and all others keep theirs. tenant: the 32 bytes of the SHA-256 of
    its `cache_salt`.

    Raises InvalidArgumentError for a text that is no key file, and if the key for all alone makes
    the tenant's key.
    """

@final
class Disk:
    """A tier on a local disk, for one :class:`Cache`.

    Published entries are written in the background, and a later process with the same identity
    finds them again. Damaged files never raise: they cost entries, each failure is counted by
    reason, and :meth:`notes` has the first of each kind.
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
        encrypt_key: str = "",
    ) -> Disk:
        """Take a lane of a directory. The directory is made if its parent exists.

        quota_bytes: the most that entries of the lane may take, those of other identities included.
        lane: number of this process among those that share the directory. deadline_ms: if a system
        call takes longer, or nothing moves for this long, copies fail and the disk is not used for
        some time. An entry as a whole may take longer. threads: how many reads and writes run at a
        time. queue_bytes: the most bytes of slots that wait to be written; entries beyond that are
        declined. policy: decides which entries stay on the disk. encrypt_key: the text of a key
        file, whose keys entries are encrypted with; empty to leave them as they are. A lane whose
        entries have another key is refused by :meth:`connect`, with DiskError.

        A damaged marker file is written anew. Other failures of the system are counted, and
        :meth:`connect` tries again.

        Raises DiskError if the path is not a directory of this user or another process has the
        lane, ForeignError if the directory has other files or another format, BudgetError for a
        quota that cannot hold one entry of each class, InvalidArgumentError for a number out of
        range.
        """

    def connect(self, arena: Arena, identity: bytes, *, meanwhile: bool = False) -> None:
        """Begin to use the disk for an identity.

        Before this call nothing is found and nothing is written. If the system cannot open the
        files, they stay as they are, and opening is tried again while the cache is used.

        arena: holds the cache's slots. identity: 32 bytes that name everything that the bytes of
        entries depend on, the geometry included. meanwhile: open a store of many entries by a
        thread, since reading its index takes long. Until then the disk is out, and what would be
        raised because of its files is counted and noted.

        Raises DiskError for symbolic links in the place of files, if another process has the
        directory, and at the second call; ForeignError if the directory has other files; ArenaError
        if the arena lacks a plane; InvalidArgumentError for an identity of another length or slots
        of another size.
        """

    def describe(self, about: str) -> None:
        """Write a description of the identity to `about.json`, for people and tools.

        Entries are found without it. Before :meth:`connect` this does nothing; while the disk
        cannot be opened, it is delayed. A failure is counted, and so is a text of more than 1 MiB,
        which is not written.
        """

    def settle(self, seconds: float) -> bool:
        """Wait until all copies have ended and a later process would find all written entries.

        seconds: to wait at most; False if that is not enough.
        """

    def close(self) -> None:
        """End the copies and release the directory, which another process may then use.

        The cache can still be used: it finds nothing here, and nothing is written. The second call
        does nothing.
        """

    def notes(self) -> list[str]:
        """Messages for a log, each returned once: the first failure of each kind."""

    def stats(self) -> dict[str, int]:
        """Counts since the start, and present values.

        hits, misses: lookups of entries that the cache did not know. reads, writes: entries read
        and written. read_bytes: the payload read. written_bytes: the bytes written, headers and
        padding included. spared_writes: writes of bytes that were on the disk already. reading,
        writing: entries being copied now. dropped: entries declined because the disk was not used.
        outages: times that the disk was taken out of use; out: 1 while it is. entries: how many can
        be found. left_over: entries of earlier processes that were not found again yet. live_bytes,
        other_bytes: the room of this identity's entries and of others'. quota_bytes: the most that
        both may take. durable: written entries that outlive the process. persistent: 0 after a
        clear, when nothing outlives it. direct: 1 if bytes bypass the system's page cache.
        failed_*: failures by reason.
        """

    def latencies(self) -> dict[str, tuple[list[int], int]]:
        """The histograms of "read" and "write": the count of each bucket, and the sum in
        microseconds.

        :data:`DISK_LATENCY_LIMITS_US` has the limits of the buckets.
        """

@final
class DiskTree:
    """The files of a disk tier, for tools. A process may use them at the same time.

    Format: docs/disk-format.md. Results are dictionaries that JSON can hold.
    """

    def __new__(cls, path: str | PathLike[str]) -> DiskTree:
        """Open an existing directory. Nothing is created or changed.

        Raises DiskError if it is not a directory of this user, ForeignError if it has other files
        or another format.
        """

    def lanes(self) -> list[dict[str, Any]]:
        """Describe all lanes. Lanes that are removed meanwhile are left out.

        Each lane has

        - lane: its name;
        - process: number of the process that uses it now, 0 if unknown;
        - cleared: directories whose entries no later process finds, with their size on disk. They
          are of the present process since its cache was reset, or wait to be removed;
        - troubles: what could not be read;
        - identities, the least recently used one first. Each has identity: 64 hexadecimal digits;
          bytes: the size of its files on disk; used: when a file was last changed, in seconds since
          1970; about: the text of :meth:`Disk.describe`; ranks: how many share an entry, 0 if
          unknown; entries: their number; classes: the entries and the bytes of a cell of each
          class; damaged_records: of the index; aside_bytes: of an index that was set aside;
          trouble: why the index cannot be read.
        """

    def verify(
        self,
        lane: str,
        identity: str,
        progress: Callable[[int, int], object] | None = None,
        *,
        encrypt_key: str = "",
    ) -> dict[str, Any] | None:
        """Read all entries of an identity and compare them with their checksums.

        None if the identity was removed meanwhile. Otherwise: good: number of good entries; bytes:
        read of those; unopened: how many of those are encrypted with a key that was not given, so
        that only their headers were compared; changed: number of entries that were moved or removed
        meanwhile; damaged_records: of the index; encrypted: whether the entries are; bad: list of
        bad entries, each with class, block, cell (in the slab file of the class) and reason (as in
        the counts of :meth:`Disk.stats`). An entry is bad only if a second read some time later
        finds the index unchanged and the entry bad again.

        progress: called with the bytes that are done and the bytes in all; if it raises, the call
        ends. encrypt_key: the text of a key file, to open what is encrypted.

        Raises InvalidArgumentError for an invalid lane or identity and for another key than that of
        the lane, DiskError for an index or a slab that cannot be read.
        """

    def collect(
        self,
        *,
        unused_seconds: float | None = None,
        lanes: int | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """Remove cleared directories and indexes that were set aside, in lanes that are not in use.

        Returns removed: paths below the directory and the size that they had on disk; busy: lanes
        in use, and the number of the process that uses each; failed: what could not be read or
        removed, and why.

        unused_seconds: also remove identities that no process has changed for this long. lanes:
        also remove all identities in lanes from this number on. dry_run: remove nothing.

        Raises InvalidArgumentError for a negative time.
        """
