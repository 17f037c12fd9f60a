"""The cache: lookups, admission and leases."""

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
    """The result of a lookup. Lengths are in blocks from the start of the prompt."""

    @property
    def blocks(self) -> int:
        """The joint hit: the longest prefix after which every class can resume."""

    @property
    def pages(self) -> int:
        """How many leading blocks have all their attention pages, at least `blocks`.

        The difference is what missing checkpoints or window pages cost. Equals `blocks` for a
        geometry without attention groups.
        """

    @property
    def host(self) -> int:
        """The joint hit of the host's entries alone, which can be loaded now.

        It is less than `blocks` where entries are only in a tier below the host: see
        :meth:`Cache.promote`.
        """

    @property
    def missing(self) -> str | None:
        """Why `blocks` is less than `pages`; None if they are equal.

        The first of these reasons that applies to any of the boundaries in between: "writing", a
        checkpoint is being written; "evicted", a checkpoint was evicted or dropped; "window", pages
        of a window are missing; "never_made", no checkpoint was ever stored.
        """

    @property
    def asking(self) -> bool:
        """Whether a tier below has sent a question to its store: a later lookup may find more."""

    @property
    def coming(self) -> int:
        """The joint hit that there will be when all that is being written is whole."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class Hints:
    """An application's hints about a request.

    session: an id; requests with equal ids are turns of one conversation. priority: from -10 to 10;
    each step doubles the value of the request's checkpoints. retain: seconds, at most a day, for
    which the entries of the request leave only after everything that is not retained. store:
    whether entries of the request are stored; entries that it uses count as used either way.

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
    """The boundaries of a prompt that deserve a checkpoint, in blocks."""

    @property
    def boundaries(self) -> list[int]:
        """The boundaries that the policy chose, shallow ones first."""

    @property
    def fork(self) -> int | None:
        """The deepest boundary shared with an earlier prompt, unless a state is there already.

        It is known from keys, even if entries were evicted. A state there serves all prompts with
        this prefix.
        """

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class LeaseEntry:
    """One page or checkpoint under a lease, for all ranks together."""

    @property
    def class_index(self) -> int: ...
    @property
    def block_index(self) -> int: ...
    @property
    def slots(self) -> list[int]:
        """The slots of the payload.

        Byte `p` of a rank's shard is in `slots[p // part]` at `p % part`, in that rank's plane,
        which has `part = slot_bytes // ranks` bytes of each slot.
        """

    @property
    def checksums(self) -> list[int]:
        """The :func:`checksum` of each rank's shard.

        Empty while the entry is being written, and if it was committed without checksums.
        """

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class ReadLease:
    """Keeps entries in place while they are loaded.

    It ends when it is released, left as a context manager, or dropped.
    """

    @property
    def first(self) -> int:
        """The first block of the load."""

    @property
    def blocks(self) -> int:
        """The joint hit: the end of the load, in blocks."""

    @property
    def entries(self) -> list[LeaseEntry]:
        """The entries to load, by block.

        These are the attention pages of the blocks [first, blocks), the window pages that the last
        window sees, and the checkpoint of block `blocks - 1`.
        """

    def targets(
        self, columns: TableColumns, tables: Sequence[Sequence[object]], resumes: int
    ) -> list[tuple[int, list[int], list[int | None], list[int]]]:
        """The class, slots, engine blocks and checksums of each entry that a load copies.

        tables: as :meth:`Cache.offer` takes them. resumes: how many tokens the request has once it
        is loaded, which may end inside the last block. An engine block is None where the request
        will read none: its window has passed, or it lies behind these tokens. An entry of which
        nothing is read is left out.

        Raises InvalidArgumentError if the request has no engine block for what it will read, or if
        the last block is not the one in which it resumes.
        """

    @property
    def released(self) -> bool: ...
    def release(self) -> None:
        """End the lease. The second call does nothing."""

    def __enter__(self) -> ReadLease: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class Restore:
    """Brings a joint hit from the tiers below to the host, in one or several waves.

    A *wave* is the entries of consecutive blocks that the engine loads together, under a lease of
    its own. Entries of later waves stay in the tiers below. As a context manager, on :meth:`end`
    and when it is dropped, the restore gives up the waves that were not taken.
    """

    @property
    def first(self) -> int:
        """The first block of the restore."""

    @property
    def blocks(self) -> int:
        """The joint hit: the end of the restore, in blocks."""

    @property
    def whole(self) -> bool:
        """Whether there is one wave only. Other requests then find its entries in the host, too."""

    @property
    def slots(self) -> int:
        """The slots that all of what the hit needs takes in the host."""

    @property
    def depths(self) -> list[tuple[str, int]]:
        """The joint hit of the host, then with each tier below added, by the tier's name."""

    def progress(self) -> Literal["queued", "waiting", "ready", "done", "failed"]:
        """Begin reads that can begin, and return the progress. Never waits.

        queued: there is no room for the next wave yet. waiting: it is being read. ready:
        :meth:`take` returns it. done: all waves were taken. failed: an entry is missing or damaged.
        The waves that were taken are right, and a new lookup tells what else there is.
        """

    def take(self) -> ReadLease | None:
        """The lease of the wave that is ready; None if none is.

        The next wave may be read while this one is loaded.
        """

    def end(self) -> None:
        """End the restore. The second call does nothing."""

    def __enter__(self) -> Restore: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class WriteLease:
    """Slots for entries that lookups find only after a commit.

    If it is left as a context manager or dropped without a commit, the slots are free again.
    """

    @property
    def entries(self) -> list[LeaseEntry]:
        """The entries to write, by block: those that are missing and have room."""

    @property
    def skipped(self) -> dict[str, int]:
        """How many of the wanted entries are not among `entries`, by reason.

        resident: the entry exists. in_writing: this lease or another one writes it. no_room: all
        other entries are in use or of the same prefix. not_ready: no room for that reason, while
        some slots are not ready. tenant_share: no room within the share of the tenant. orphan: a
        page before the entry neither exists nor is written, so that the entry could not be reached.
        """

    @property
    def ended(self) -> bool: ...
    def commit(self, checksums: Sequence[Sequence[int]] | None) -> None:
        """Publish all entries at once. Their bytes must be complete.

        Entries that were dropped meanwhile (by `Cache.clear`, `Cache.invalidate` or the end of the
        page before them) stay unpublished.

        checksums: for each entry, in order, the :func:`checksum` of each rank's shard; None if
        there are none, which a cache with tiers below the host rejects.

        Raises LeaseError if the lease has ended; InvalidArgumentError if the checksums have another
        shape, in which case the lease stays open.
        """

    def abort(self) -> None:
        """Free the slots. Does nothing after the end of the lease."""

    def __enter__(self) -> WriteLease: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class Cache:
    """Knows which prefixes have pages and checkpoints, and which slots hold them.

    A prefix is a namespace and the engine's chained hashes, `stride` of them per block: the key of
    block `i` is `keys[(i + 1) * stride - 1]`, 8 to 32 bytes. Tokens behind them that fill no block
    are a *tail*, with a key from :func:`tail_key`. Every method raises
    InvalidArgumentError, and changes nothing, for a number out of range, an unknown namespace or a
    key of another length.
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

        tenant_share: the part of the slots, above 0 and at most 1, that the entries of one tenant
        cannot exceed; see :meth:`namespace`. disk, remote: tiers below the host, made for this
        geometry and slot size and used by no other cache; the disk comes first.

        Raises BudgetError, naming what is needed, if the slots, or a tenant's share of them, cannot
        hold one entry of each class; ForeignError if a tier was made for another geometry.
        """

    def namespace(self, identity: bytes, tenant: bytes = b"") -> int:
        """Hold a namespace, in which keys are unique. Returns its number.

        identity: names the namespace. Its number stays the same while the namespace is held or has
        entries. After that the number is never used again, and the identity gets a new one.

        tenant: the tenant against whose share the entries count. Raises InvalidArgumentError for an
        identity of another tenant.
        """

    def release_namespace(self, number: int) -> None:
        """Release one hold that :meth:`namespace` has returned.

        Raises InvalidArgumentError for an unknown number, and for a namespace without a hold.
        """

    def lookup(
        self,
        namespace: int,
        keys: _Keys,
        *,
        stride: int = 1,
        limit: int | None = None,
        tail: bytes | None = None,
    ) -> Hit:
        """Find the joint hit, of at most `limit` blocks, and why it is not longer.

        Entries do not count as used.

        tail: the key of a tail behind the first `limit` keys, or behind all of them, from
        :func:`tail_key`. It counts as one more block: a hit of that many blocks ends after the
        tail's tokens. Raises InvalidArgumentError for a tail of another block.
        """

    def promote(
        self,
        namespace: int,
        keys: _Keys,
        *,
        stride: int = 1,
        first: int = 0,
        limit: int | None = None,
        tail: bytes | None = None,
    ) -> bool:
        """Bring what the joint hit needs, and only tiers below have, into the host. With too little
        room, bring what the deepest boundary needs that still has room. tail: as in :meth:`lookup`.

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
        tail: bytes | None = None,
    ) -> Restore | None:
        """Begin to restore the joint hit, which may be larger than the host.

        None if the host has all of it, or if it is not longer than `first` blocks, which need no
        load: then :meth:`acquire` it. tail: as in :meth:`lookup`.
        """

    def restores(self) -> dict[str, int]:
        """Counts of restores.

        begun: restores since the start. in_waves: restores under way that need several waves.
        waves: waves that were taken. failed: restores that needed something that was gone or
        damaged. shallower: promotions that had no room for the joint hit. not_worth: restores and
        promotions that left out a part of the hit, or all of it, since computing is faster.
        """

    def acquire(
        self,
        namespace: int,
        keys: _Keys,
        *,
        stride: int = 1,
        first: int = 0,
        limit: int | None = None,
        tail: bytes | None = None,
    ) -> ReadLease | None:
        """Lease the entries that must be loaded to resume at the joint hit of the host.

        None if the hit is not longer than `first` blocks, which need no load. The entries are not
        evicted before the lease ends. Then the pages of the hit and its checkpoint count as used,
        and no other checkpoint. tail: as in :meth:`lookup`.
        """

    def tail_lengths(
        self,
        namespace: int,
        keys: _Keys,
        *,
        first: int = 0,
        stride: int = 1,
        limit: int | None = None,
        ask: bool = True,
    ) -> tuple[list[tuple[int, list[int]]], bool]:
        """How many tokens the tails have that hang from the boundaries of a prefix, in any tier.

        Boundaries count from `first` on, as far as the prefix's pages are known after a
        :meth:`lookup`. Boundary 0 is the start of prompts. ask: whether tiers below are asked, too,
        for tails that are not known yet.

        Returns:
            Boundaries that have tails, in blocks, the deepest last, each with the tokens of its
            tails, ascending. And whether a tier below has sent a question to its store: the same
            call may find more soon.
        """

    def has_tails(self, namespace: int, blocks: int, tails: list[bytes]) -> tuple[list[bool], bool]:
        """Which of these tails behind the first `blocks` blocks may be there, in any tier: for
        those a :meth:`lookup` is worth its time. And whether a tier below has sent a question to
        its store: the same call may find more soon.
        """

    def continue_tail(
        self, namespace: int, keys: _Keys, tail: bytes, *, stride: int = 1, limit: int | None = None
    ) -> None:
        """Tell the policy that a request goes on from a tail. Call it once per request.

        keys, limit, tail: as in :meth:`lookup`.
        """

    def supersede(
        self, namespace: int, keys: _Keys, tail: bytes, *, stride: int = 1, limit: int | None = None
    ) -> None:
        """Tell the policy that a request has stored a deeper end than this tail, from which it went
        on, or which it passed.

        Until it is used again, the tail goes first when room is needed. One that several requests
        have continued keeps its worth, and so does one that is retained.

        keys, limit, tail: as in :meth:`lookup`.
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
        """Announce a request. Returns the boundaries of its prompt that deserve a checkpoint.

        Call it once per request, before entries are reserved, with the keys of all full blocks of
        the prompt: the policy learns from it what is used, and when. The caller follows the answer
        as far as it can.

        now: milliseconds on a clock that never goes back, below 2^62. tokens: the prompt's length.
        blocks: the prompt's full blocks, if there are keys of more. limit: the deepest boundary, in
        blocks, from which the request could resume. hints: the application's; if they say not to
        store, no boundary deserves a checkpoint.
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
        """Announce the end of a request and the number of its output tokens to the policy.

        keys: the keys of all full blocks of prompt and output. end: how many of them are the
        prompt's. Later prompts that fork inside the output are found, too.
        """

    def expect(
        self, namespace: int, keys: _Keys, *, now: int, hints: Hints, stride: int = 1
    ) -> int:
        """Retain what the joint hit of the host needs, for a request that is expected.

        now: as in :meth:`admit`. hints: with the seconds to retain it. Returns the hit in blocks.
        """

    def give_up(
        self,
        namespace: int,
        keys: _Keys,
        *,
        first: int = 0,
        stride: int = 1,
        ends: list[bytes] | None = None,
    ) -> int:
        """Let a prefix go first, in every tier, until it is used again.

        It begins at the end of the prefix, and ends where another prefix goes on, too, be it by a
        tail.

        Args:
            namespace: of the prefix.
            keys: of the prefix.
            first: how many leading blocks are left as they are.
            stride: as in :meth:`lookup`.
            ends: tails on the way that are of this prefix, and are given up with it.

        Returns:
            How many blocks were given up.
        """

    def reserve(
        self,
        namespace: int,
        keys: _Keys,
        entries: Sequence[tuple[int, int]],
        *,
        stride: int = 1,
        limit: int | None = None,
        tail: bytes | None = None,
        hints: Hints | None = None,
    ) -> WriteLease:
        """Find room for entries (class_index, block_index), in any order.

        Shallow entries get room first. A checkpoint gets room together with the missing pages that
        it needs, or not at all, and then deeper entries get none. The prefix that is extended is
        not evicted, and counts as used when the lease ends. A tenant that has its whole share gets
        room from its own entries. hints: say how long the entries, and those before them, are kept.
        limit, tail: as in :meth:`lookup`; the tail is the last block.

        Raises InvalidArgumentError also for a class or a block out of range, and for keys that are
        in use for another prefix, which chained hashes never are.
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
        """Reserve the entries that a step of an engine has completed, and list what to copy.

        It reserves the pages of blocks [first, end) that have all their engine blocks in `tables`,
        and `states`: class, block and engine blocks of each. Returns a lease as :meth:`reserve`
        does, and its entries as the engine's `store` takes them, so the lease lists none; None if
        there is nothing to reserve. Raises as :meth:`reserve` does, and InvalidArgumentError for an
        engine block out of range.
        """

    def invalidate(self, lease: ReadLease) -> int:
        """Drop the entries of a lease whose load failed, and those that need them.

        They are never found again. Their slots are free when their last lease ends. Returns how
        many existing entries were dropped. Raises LeaseError if the lease was released or is of
        another cache.
        """

    def leave_to(self, lease: ReadLease, tier: str) -> int:
        """Leave the entries of a lease, and those that need them, to a tier below.

        They leave the host and the tiers before that one, if it has all entries of the lease.
        Returns how many left the host. Raises InvalidArgumentError for an unknown tier, and
        LeaseError as :meth:`invalidate` does.
        """

    def clear(self) -> int:
        """Drop all entries. Returns how many. Leased slots are free when their lease ends.

        Held namespaces stay.
        """

    def follow(self) -> None:
        """Begin to keep track of announced blocks for :meth:`changes`.

        A block is announced in a medium (the host, or the tiers below it) while a boundary at its
        end or deeper can be resumed from with that medium alone. Without this call there are no
        changes.

        Raises InvalidArgumentError for a geometry without attention groups.
        """

    def unnoted(self, namespace: int, keys: _Keys, *, stride: int = 1) -> list[int]:
        """The blocks of a prefix that the cache knows and that have no :meth:`note`."""

    def note(
        self, namespace: int, keys: _Keys, notes: dict[int, bytes], *, stride: int = 1
    ) -> None:
        """Attach notes to blocks of a prefix, by index, for as long as the cache knows the blocks.

        :meth:`changes` returns them. A block that has a note keeps it; unknown blocks get none.
        """

    def changes(self, *, below: bool = False, anew: bool = False) -> Changes:
        """The changes of announced blocks of a medium since the last call.

        Changes that cancel out are left out.

        Args:
            below: whether the medium is the tiers below the host; otherwise it is the host.
            anew: remove all blocks that were announced, and announce the present ones again.
        """

    def retire(self, namespace: int) -> None:
        """Stop announcing blocks of a namespace, for as long as its number is known."""

    def failure(self) -> str | None:
        """The panic inside the cache after which it finds and stores nothing; None if there was
        none.

        After a panic every call that can fail raises HybridPagesError, and leases end without
        freeing slots, which may still be written to. Only a new process has a working cache again.
        """

    def audit(self) -> str | None:
        """The first contradiction in the cache's data; None if there is none.

        For tests and tools.
        """

    def poll(self) -> None:
        """Process the copies to and from tiers below that have ended.

        Lookups, promotions and commits do that, too. Call it when there are none of these.
        """

    def tiers(self) -> list[dict[str, int | str]]:
        """Counts of each tier below the host, in order.

        name: the tier's name. slots, free_slots, evictable_slots: its present room, in slots of the
        host. entries: those it has now. Since the start: evicted: entries removed to make room;
        written, read: entries copied to and from it; declined: entries that were not wanted, had no
        room, or met a full queue;
        found: entries from before this cache; failed_writes, failed_reads, corrupt_reads (other
        bytes than were written): each of them cost an entry in the tier.
        """

    def set_compute_rate(self, blocks_per_second: float | None) -> None:
        """Set how many blocks of a prompt the engine computes in a second; None if not known.

        While it is not known, tiers below are read even where computing would be faster.

        Raises InvalidArgumentError for a rate that is not above 0.
        """

    def set_ready_slots(self, slots: int) -> None:
        """Limit the slots to use to the first ones, since the memory of the others is not ready.

        Without this call all slots are used. Raises InvalidArgumentError if a later slot was used
        before, or there are fewer slots.
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
        tables and pool; tenants: how many have entries, if a tenant's share is limited.
        """
