"""Lookup, admission, leases."""

from collections.abc import Sequence
from typing import Literal, TypeAlias, TypeVar, final

from hybrid_pages._stubs.blocks import PrefixKeys, StoreEntries, TableColumns
from hybrid_pages._stubs.changes import Changes
from hybrid_pages._stubs.disk import Disk
from hybrid_pages._stubs.geometry import Geometry
from hybrid_pages._stubs.mooncake import Mooncake
from hybrid_pages._stubs.remote import Remote

_Block = TypeVar("_Block")
_Keys: TypeAlias = Sequence[bytes] | PrefixKeys

@final
class Hit:
    """The answer of a lookup, in blocks from the start of the prompt."""

    @property
    def blocks(self) -> int:
        """The joint hit: every class has what it needs to resume after this many blocks."""

    @property
    def pages(self) -> int:
        """Leading blocks whose attention pages are all there, at least `blocks`.

        The difference is what a missing checkpoint or window page costs. Equals `blocks` for a
        geometry without attention groups.
        """

    @property
    def host(self) -> int:
        """The joint hit of the host alone, which can be loaded now.

        Less than `blocks` where entries are only in a tier below: see :meth:`Cache.promote`.
        """

    @property
    def missing(self) -> str | None:
        """Why `blocks` is less than `pages`; None if they are equal.

        The first of these that holds at any of the boundaries in between: "writing", a checkpoint
        is being written; "evicted", one was there, and was evicted or dropped; "window", pages
        of a window are missing; "never_made", no checkpoint was ever stored there.
        """

    @property
    def asking(self) -> bool:
        """Whether a tier below asks somebody for more: the same lookup may soon find more."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class Hints:
    """What an application says of a request.

    session: an id; requests with the same are turns of one conversation. priority: from -10 to 10;
    each step doubles what the request's checkpoints are worth. retain: seconds, at most a day;
    what the request stores or uses leaves after everything that is not retained. store: whether
    anything of it is stored; what it uses counts as used either way.

    Raises InvalidArgumentError for a number out of range.
    """

    def __new__(
        cls,
        *,
        session: bytes | None = None,
        priority: int = 0,
        retain: float = 0.0,
        store: bool = True,
    ) -> Hints: ...

@final
class Admission:
    """Which boundaries of a prompt deserve a checkpoint, in blocks."""

    @property
    def boundaries(self) -> list[int]:
        """Those that the policy chose, shallow first."""

    @property
    def fork(self) -> int | None:
        """The deepest one that an earlier prompt had too, if no state to resume from is as deep.

        Known from keys: it doesn't matter what was evicted. A state made there serves whoever
        shares that prefix.
        """

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class LeaseEntry:
    """One page or checkpoint under a lease, all ranks together."""

    @property
    def class_index(self) -> int: ...
    @property
    def block_index(self) -> int: ...
    @property
    def slots(self) -> list[int]:
        """Where its payload lies: byte `p` of a rank's shard in `slots[p // part]` at `p % part` of
        that rank's plane, which has `part = slot_bytes // ranks` bytes of each slot."""

    @property
    def checksums(self) -> list[int]:
        """The :func:`checksum` of each rank's shard; empty while it is being written, and
        if it was committed without any."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class ReadLease:
    """Keeps what a load reads where it is, until released, left as a context or dropped."""

    @property
    def first(self) -> int:
        """First block that the load covers."""

    @property
    def blocks(self) -> int:
        """The joint hit: the block after the last that the load covers."""

    @property
    def entries(self) -> list[LeaseEntry]:
        """The entries to load.

        Attention pages of [first, blocks), window pages of their last window, and the checkpoint
        of block `blocks - 1`; by block.
        """

    def targets(
        self, columns: TableColumns, tables: Sequence[Sequence[object]], resumes: int
    ) -> list[tuple[int, list[int], list[int | None], list[int]]]:
        """What a load of the entries writes: class, slots, engine blocks and checksums of each.

        tables: of the request, as :meth:`Cache.offer` takes them. resumes: the tokens that the
        request has behind the load. An engine block is None where the request has none and will
        read none, since its window has passed; an entry of which nothing is read is left out.

        Raises InvalidArgumentError if the request has no engine block for what it will read.
        """

    @property
    def released(self) -> bool: ...
    def release(self) -> None:
        """End it. The second call does nothing."""

    def __enter__(self) -> ReadLease: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class Restore:
    """Brings a hit to the host wave by wave; what it needs stays in the tiers below meanwhile.

    A context manager; leaving, ending and dropping it gives up what was not taken. Waves that were
    taken are leases of their own.
    """

    @property
    def first(self) -> int:
        """First block that it covers."""

    @property
    def blocks(self) -> int:
        """The joint hit: the block after the last that it covers."""

    @property
    def whole(self) -> bool:
        """Whether it is one wave, which other requests find in the host, too."""

    @property
    def depths(self) -> list[tuple[str, int]]:
        """How deep the joint hit is with the host alone, and with one more tier each, by name."""

    def progress(self) -> Literal["queued", "waiting", "ready", "done", "failed"]:
        """Begin what can be begun, and say where it is; never waits.

        queued: there is no room for the next wave yet. waiting: it is being read. ready:
        :meth:`take` it. done: every wave was taken. failed: something that is needed is gone
        or damaged; what was taken is right, and a new lookup says what is left to find.
        """

    def take(self) -> ReadLease | None:
        """The wave that is ready: a lease from its first block to the one after its last.

        The next wave may be read while this one is loaded.
        """

    def end(self) -> None:
        """End it; a second time does nothing."""

    def __enter__(self) -> Restore: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class WriteLease:
    """Room for entries that no lookup finds until they are committed.

    Left as a context or dropped without a commit, the room is free again.
    """

    @property
    def entries(self) -> list[LeaseEntry]:
        """The entries to write, by block: those neither there nor in writing, and with room."""

    @property
    def skipped(self) -> dict[str, int]:
        """How many of the wanted entries are not among `entries`, by reason that applies.

        resident: there already. in_writing: this call or another lease writes it already.
        no_room: everything that could make room is in use or of the same prefix.
        not_ready: the same, while some slots are not ready. tenant_share: the same, of what its
        tenant has. orphan: a page before it is neither there nor in writing, so that it could never
        be reached.
        """

    @property
    def ended(self) -> bool: ...
    def commit(self, checksums: Sequence[Sequence[int]] | None) -> None:
        """Publish all entries at once; their bytes must be whole.

        checksums: for each entry, in order, the :func:`checksum` of each rank's shard; None if
        nobody has computed any, which a cache with tiers below the host rejects. Entries
        that were dropped meanwhile (`Cache.clear`, `Cache.invalidate`, the end of the page before
        them) stay unpublished.

        Raises LeaseError if it has ended; InvalidArgumentError if the checksums have another
        shape, and then the lease goes on.
        """

    def abort(self) -> None:
        """Give the room back. Does nothing after the end."""

    def __enter__(self) -> WriteLease: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class Cache:
    """Which prefixes are there, and which slots hold their pages and checkpoints.

    A prefix is a namespace and the engine's chained hashes, `stride` of them per block: the key of
    block `i` is `keys[(i + 1) * stride - 1]`, 8 to 32 bytes. Every method raises
    InvalidArgumentError for a number out of range, an unknown namespace or a key of another
    length, and then nothing has changed.
    """

    def __new__(
        cls,
        geometry: Geometry,
        *,
        slot_bytes: int,
        slots: int,
        policy: str = "lru",
        tenant_share: float = 1.0,
        disk: Disk | None = None,
        remote: Remote | Mooncake | None = None,
    ) -> Cache:
        """An empty cache over `slots` slots of `slot_bytes` bytes.

        tenant_share: the share of the slots, above 0 and at most 1, that the entries of one tenant
        cannot exceed; see :meth:`namespace`. disk, remote: tiers below, which no other cache has,
        made for the same geometry and slots; the disk comes first.

        Raises BudgetError, naming what is needed, if they, or a share of them, can't hold one entry
        of each class.
        """

    def namespace(self, identity: bytes, tenant: bytes = b"") -> int:
        """The number of an identity under which keys are unique, and one hold of it.

        The same for the same bytes as long as it has a hold or an entry. Then the identity is
        freed: its number is unknown for good, and the identity gets another when it comes back.

        tenant: whose share its entries count against. Raises InvalidArgumentError for an identity
        that is another tenant's.
        """

    def release_namespace(self, number: int) -> None:
        """Give back one hold of :meth:`namespace`. Until then the identity stays known.

        Raises InvalidArgumentError for an unknown number, and for one that has entries and no hold.
        """

    def lookup(
        self, namespace: int, keys: _Keys, *, stride: int = 1, limit: int | None = None
    ) -> Hit:
        """The joint hit, at most `limit` blocks, and why it is no deeper. Refreshes nothing."""

    def promote(
        self,
        namespace: int,
        keys: _Keys,
        *,
        stride: int = 1,
        first: int = 0,
        limit: int | None = None,
    ) -> bool:
        """Bring what the joint hit needs and only tiers below have into the host; with too little
        room for it, what the deepest boundary needs that has room.

        Returns whether that is under way: ask again later, or :meth:`acquire` the hit of the host
        alone. False when nothing is missing or the host has no room. Nothing is held for the caller
        until it asks again: :meth:`restore` does that.
        """

    def restore(
        self,
        namespace: int,
        keys: _Keys,
        *,
        stride: int = 1,
        first: int = 0,
        limit: int | None = None,
    ) -> Restore | None:
        """Begin to bring the joint hit to the engine, also one that is larger than the host.

        None if the host has all of it, or it is no deeper than `first` blocks, which need no load:
        then :meth:`acquire` it.
        """

    def restores(self) -> dict[str, int]:
        """Counts of restores.

        begun: since the start. in_waves: those that have not ended and need several waves. waves:
        that were taken. failed: restores that needed something that was gone or damaged. shallower:
        promotions that had no room for the joint hit. not_worth: restores and promotions that left
        out a part of the hit, or all of it, since computing is faster.
        """

    def acquire(
        self,
        namespace: int,
        keys: _Keys,
        *,
        stride: int = 1,
        first: int = 0,
        limit: int | None = None,
    ) -> ReadLease | None:
        """Hold what must be loaded to resume at the host's hit, the first `first` blocks excepted.

        None if the hit is no deeper than `first`. The pages of the hit and its checkpoint, and no
        other checkpoint, are refreshed when the lease ends; until then none of them is evicted.
        """

    def admit(
        self,
        namespace: int,
        keys: _Keys,
        *,
        now: int,
        tokens: int,
        stride: int = 1,
        blocks: int | None = None,
        limit: int | None = None,
        hints: Hints | None = None,
    ) -> Admission:
        """Which boundaries of a prompt of `tokens` tokens deserve a checkpoint.

        For the caller to follow as far as it can. To be called once per request, before its
        entries are reserved, with the keys of all full blocks of its prompt: the policy learns
        from it what is used, and when. now: milliseconds on any clock that never goes back, below
        2^62; InvalidArgumentError beyond.
        blocks: those that the prompt has, if the keys may be of more.
        limit: the deepest boundary, in blocks, from which the request could resume.
        hints: what the application says of it; nothing is admitted if it is not to be stored.
        """

    def finish(
        self,
        namespace: int,
        keys: _Keys,
        *,
        end: int,
        output_tokens: int,
        stride: int = 1,
    ) -> None:
        """Tell the policy how many tokens a request produced.

        keys: of all full blocks of prompt and output; the prompt has the first `end` of the
        blocks. Forks are found in the output as well.
        """

    def reserve(
        self,
        namespace: int,
        keys: _Keys,
        entries: Sequence[tuple[int, int]],
        *,
        stride: int = 1,
        hints: Hints | None = None,
    ) -> WriteLease:
        """Find room for entries (class_index, block_index), in any order.

        Shallow entries get room first; a checkpoint, the missing pages up to it and the window
        pages it needs get room together or not at all, and then nothing deeper does. The prefix
        being extended is never evicted for it, and is refreshed when the lease ends. A tenant that
        has its share gets room from its own entries. hints: say how long the entries are kept, and
        those that they stand on.

        Raises InvalidArgumentError also for a class or a block out of range and for keys that
        are in use for another prefix: they can't be chained hashes.
        """

    def offer(
        self,
        namespace: int,
        keys: _Keys,
        columns: TableColumns,
        tables: Sequence[Sequence[object]],
        *,
        first: int,
        end: int,
        states: Sequence[tuple[int, int, Sequence[int]]],
        stride: int = 1,
        hints: Hints | None = None,
    ) -> tuple[WriteLease, StoreEntries] | None:
        """Reserve what a step of an engine has completed, and say what to copy.

        It reserves the pages of blocks [first, end) that have all their engine blocks in `tables`,
        and `states`: class, block and engine blocks of each. Returns a lease as :meth:`reserve`
        does, and its entries as the engine's `store` takes them, so the lease lists none; None if
        there is nothing to reserve. Raises as :meth:`reserve` does, and InvalidArgumentError for an
        engine block out of range.
        """

    def invalidate(self, lease: ReadLease) -> int:
        """Drop the entries of a lease and what can't be reached without them: a load failed.

        They are never found again; their slots return when their last lease ends. Returns how many
        resident entries were dropped. Raises LeaseError if the lease was released or belongs to
        another cache.
        """

    def clear(self) -> int:
        """Forget every entry; slots under a lease return when it ends. Returns how many.

        Namespaces that somebody holds stay.
        """

    def follow(self) -> None:
        """Follow from now on which blocks are announced, for :meth:`changes`.

        A block is announced in the host, or in the tiers below it, while some boundary at its end
        or deeper can be resumed from by that medium alone. Without this call nothing of the kind
        is kept, and there are no changes.

        Raises InvalidArgumentError for a geometry without attention groups.
        """

    def unnoted(self, namespace: int, keys: _Keys, *, stride: int = 1) -> list[int]:
        """The blocks of a prefix that the cache knows and that have no :meth:`note`."""

    def note(
        self, namespace: int, keys: _Keys, notes: dict[int, bytes], *, stride: int = 1
    ) -> None:
        """Keep a note with blocks of a prefix, by index, for as long as the cache knows them.

        :meth:`changes` hands them back. What has one keeps it; unknown blocks get none.
        """

    def changes(self, *, below: bool = False, anew: bool = False) -> Changes:
        """What the follower is to be told of a medium since the last call.

        What cancels out is never told.

        Args:
            below: of the tiers below the host, and not of the host.
            anew: first all that was told is removed, and then all that is announced is told again.
        """

    def retire(self, namespace: int) -> None:
        """Announce nothing of a namespace any more, as long as its number is known."""

    def failure(self) -> str | None:
        """Why the cache finds and stores nothing any more: there was a panic inside.

        Every call that can fail raises HybridPagesError then, and leases end without giving slots
        back: somebody may still fill them. Only a new process has a cache again.
        """

    def audit(self) -> str | None:
        """The first contradiction in what the cache knows, if there is one: for tests and tools."""

    def poll(self) -> None:
        """Take note of copies to and from tiers below that ended.

        Lookups, promotions and commits do so, too: it is for times when there are none.
        """

    def tiers(self) -> list[dict[str, int | str]]:
        """Counts of each tier below the host, in order, since the start but for slots and entries.

        name; slots, free_slots, evictable_slots: its room, in slots of the host; entries; evicted:
        to make room; written, read: entries; declined: offered, and not wanted, or no room, or the
        queue was full; found: entries from before this cache; failed_writes, failed_reads,
        corrupt_reads (of other bytes than were written): each cost that entry in the tier.
        """

    def set_compute_rate(self, blocks_per_second: float | None) -> None:
        """Say how many blocks of a prompt the engine computes in a second; None if not known.

        Then tiers below are read even where computing would be faster.

        Raises InvalidArgumentError for a rate that is not above 0.
        """

    def set_ready_slots(self, slots: int) -> None:
        """Hand out only the first so many slots from now on: the memory of the others is not ready.

        All are at the beginning. Raises InvalidArgumentError if a slot behind them was handed out
        before, or there are not as many.
        """

    def stats(self) -> dict[str, int]:
        """Counts and sizes at this moment.

        slots, ready_slots (those that may be handed out by now), free_slots, slot_bytes;
        pages, checkpoints, windows: resident entries by kind;
        page_bytes, checkpoint_bytes, window_bytes: bytes of their slots; leased_slots: slots
        that a lease reads, writes or needs to stay; writing_entries; nodes: boundaries in the
        index; stored_pages, stored_checkpoints, stored_windows (published by write leases),
        evicted_pages, evicted_checkpoints, evicted_windows, reclaimed (entries dropped because a
        page before them went): since the start; metadata_bytes: memory of the index, policy,
        tables and pool; tenants: with entries, where a tenant's share is less than all.
        """
