"""The Rust core: geometry, arena, copies, cache and lab. Every class is thread-safe."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import final

__all__ = [
    "FORMAT_VERSION",
    "POLICIES",
    "Admission",
    "Arena",
    "ArenaError",
    "ArrayView",
    "BudgetError",
    "Cache",
    "Completion",
    "CudaDevice",
    "CudaEngine",
    "CudaError",
    "ForeignError",
    "Geometry",
    "GeometryError",
    "Group",
    "Hit",
    "HostEngine",
    "HybridPagesError",
    "InvalidArgumentError",
    "Layer",
    "LayerMap",
    "LeaseEntry",
    "LeaseError",
    "PageClass",
    "ReadLease",
    "ReplayRow",
    "Segment",
    "Trace",
    "TraceError",
    "TransferError",
    "WriteLease",
    "__version__",
    "checksum",
    "cuda_devices",
    "replay_traces",
]

FORMAT_VERSION: int

POLICIES: tuple[str, ...]
"""Names of the policies that `Cache` and `replay_traces` take."""

__version__: str

# errors

class HybridPagesError(Exception):
    """Every error that hybrid-pages raises."""

class GeometryError(HybridPagesError, ValueError):
    """A geometry that contradicts itself or the memory it is laid over."""

class InvalidArgumentError(HybridPagesError, ValueError):
    """An argument out of range or of the wrong length."""

class ForeignError(HybridPagesError):
    """Bytes that belong to another geometry, format or engine."""

class ArenaError(HybridPagesError):
    """The shared mapping could not be made, opened or used."""

class BudgetError(HybridPagesError):
    """A budget that cannot hold what was asked of it."""

class LeaseError(HybridPagesError):
    """A lease used after its end or against another cache."""

class TransferError(HybridPagesError):
    """A copy that did not happen, or whose bytes were not those that left the engine."""

class CudaError(TransferError):
    """No CUDA here, or a function of its driver that failed.

    call, code, name: of such a function: its name, the result's number and name; None for others.
    """

    call: str | None
    code: int | None
    name: str | None

class TraceError(HybridPagesError, ValueError):
    """A trace that can't be read, with the file and the line."""

# geometry

@final
class Segment:
    """A dense, typed piece of one layer's page or checkpoint on one rank.

    dtype: bool, uint8, int8, float8_e4m3fn, float8_e5m2, bfloat16, float16, float32, float64,
    int16, int32 or int64.
    """

    def __new__(cls, name: str, dtype: str, shape: Sequence[int]) -> Segment: ...
    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def bytes(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class Layer:
    """One layer's share of a page or checkpoint on one rank: its segments, densely in order."""

    def __new__(cls, name: str, segments: Sequence[Segment]) -> Layer: ...
    @property
    def name(self) -> str: ...
    @property
    def segments(self) -> tuple[Segment, ...]: ...
    @property
    def bytes(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class Group:
    """Layers that share a block table. kind: attention, window or recurrent.

    window_tokens: how many tokens a layer of a window group sees, itself included.
    """

    def __new__(
        cls, kind: str, layers: Sequence[Layer], *, window_tokens: int | None = None
    ) -> Group: ...
    @property
    def kind(self) -> str: ...
    @property
    def layers(self) -> tuple[Layer, ...]: ...
    @property
    def window_tokens(self) -> int | None: ...
    @property
    def bytes(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class PageClass:
    """Groups whose bytes at one block form one entry: whole or absent, for all ranks."""

    @property
    def index(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def groups(self) -> tuple[int, ...]: ...
    @property
    def window_blocks(self) -> int | None: ...
    @property
    def rank_bytes(self) -> int: ...
    @property
    def entry_bytes(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Geometry:
    """What a page and a checkpoint are made of. Equal when fingerprints are.

    classes: attention first, then windows from the narrowest, then recurrent.
    identity: what else the bytes depend on, such as model, revision, layout and backend.
    """

    def __new__(
        cls,
        *,
        block_tokens: int,
        groups: Sequence[Group],
        ranks: int = 1,
        identity: Mapping[str, str],
    ) -> Geometry: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def groups(self) -> tuple[Group, ...]: ...
    @property
    def classes(self) -> tuple[PageClass, ...]: ...
    @property
    def identity(self) -> dict[str, str]: ...
    @property
    def fingerprint(self) -> bytes: ...
    def to_json(self) -> str: ...
    @staticmethod
    def from_json(text: str) -> Geometry: ...
    def suggest_slot_bytes(self) -> int:
        """The largest power of two, 512 B to 2 MiB, that wastes at most 1/64 by rounding."""

    def slots_per_entry(self, class_index: int, slot_bytes: int) -> int: ...
    def difference(self, other: Geometry) -> str | None:
        """One line naming the first thing that differs, this side being the expected one."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

# arena

@final
class Arena:
    """Slots in shared memory. Nothing is left behind when the processes that map it are gone.

    path: where other processes of the same user open it, as long as its creator lives.
    """

    @staticmethod
    def create(geometry: Geometry, *, slot_bytes: int, slots: int) -> Arena: ...
    @staticmethod
    def open(path: str, geometry: Geometry) -> Arena: ...
    @property
    def path(self) -> str: ...
    @property
    def slots(self) -> int: ...
    @property
    def slot_bytes(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def read(self, slot: int) -> bytes:
        """One slot's bytes. For tools and tests: nobody may be writing the slot."""

    def write(self, slot: int, data: bytes) -> None:
        """Write a slot's first bytes. For tools and tests: nobody else may be using it."""

# engine

@final
class ArrayView:
    """Where an array of another library lies: address, shape, strides in bytes, device.

    array: with `__dlpack__` (https://dmlc.github.io/dlpack, version 1; the capsule is not used up)
    or `__cuda_array_interface__` (version 2 or 3). Its library hands out the memory itself, which
    is kept as long as the view.
    stream: handle of the stream that will use the array, 0 for the default one; DLPack's libraries
    make it wait for what is still being written.

    Raises InvalidArgumentError for a copy, a read-only array if it is to be writable, and for any
    description that makes no sense; TypeError for what is no array; whatever the array's library
    raises.
    """

    def __new__(
        cls, array: object, *, stream: int | None = None, writable: bool = True
    ) -> ArrayView: ...
    @property
    def address(self) -> int:
        """Of the first item; others may lie before it."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def device_type(self) -> str:
        """cpu, cuda, cuda_host (pinned) or cuda_managed."""

    @property
    def device_id(self) -> int | None:
        """The device's number; None if the array does not say."""

    @property
    def stream(self) -> int | None:
        """The stream after which the contents are there, by `__cuda_array_interface__`."""

@final
class LayerMap:
    """Where one layer's blocks lie in the engine's memory [address, address + nbytes).

    Block b starts at address + b * block_stride; its bytes are the runs (offset, length), in
    payload order. Layers that are adjacent in a block are copied in one go if their maps name
    the same region. The memory must stay readable and writable until the engine is closed, and
    nothing else may write a block while a transfer uses it.
    """

    def __new__(
        cls,
        *,
        group: int,
        layer: int,
        address: int,
        nbytes: int,
        block_stride: int,
        runs: Sequence[tuple[int, int]],
    ) -> LayerMap: ...
    @property
    def group(self) -> int: ...
    @property
    def layer(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def block_stride(self) -> int: ...
    @property
    def runs(self) -> tuple[tuple[int, int], ...]: ...

@final
class Completion:
    """How a transfer ended.

    bytes: those that are whole where they were to go: all or, after a failure, none.
    checksums: of a store that succeeded, :func:`checksum` of this rank's part of each entry, in
    order.
    """

    @property
    def ticket(self) -> int: ...
    @property
    def ok(self) -> bool: ...
    @property
    def error(self) -> str | None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def checksums(self) -> list[int]: ...

@final
class HostEngine:
    """Copies between host memory and an arena by threads of its own.

    layers: one map for each layer of the geometry. owners: kept alive until the engine is
    closed or dropped, both of which wait for the transfers in flight.
    """

    def __new__(
        cls,
        geometry: Geometry,
        arena: Arena,
        *,
        rank: int,
        num_blocks: int,
        layers: Sequence[LayerMap],
        threads: int = 2,
        owners: object = None,
    ) -> HostEngine: ...
    def store(self, entries: Sequence[tuple[int, Sequence[int], Sequence[int]]]) -> int:
        """Copy entries (class, slots, a block a group) to their slots; a ticket.

        Checked whole before the first byte moves.
        """

    def load(self, entries: Sequence[tuple[int, Sequence[int], Sequence[int], int | None]]) -> int:
        """Copy entries (class, slots, a block a group, checksum) back; a ticket.

        The checksums are of this rank's part, None is not compared. All are compared before the
        first byte moves: a load that fails by one has written nothing.
        """

    def poll(self) -> list[Completion]:
        """What ended since the last poll, each once. Never waits for a copy."""

    def wait(self, ticket: int, timeout: float | None = None) -> bool:
        """Wait until a transfer has ended and say whether it has."""

    @property
    def in_flight(self) -> int: ...
    def close(self) -> None:
        """Wait for the transfers in flight and refuse any more. Nothing the second time."""

@final
class CudaDevice:
    """A device of this process."""

    @staticmethod
    def count() -> int:
        """How many devices the driver shows to this process. Makes no context.

        Raises CudaError without a driver, or if one of its functions fails.
        """

    @property
    def ordinal(self) -> int:
        """Its number, as `CUDA_VISIBLE_DEVICES` orders them."""

    @property
    def name(self) -> str: ...
    @property
    def uuid(self) -> str:
        """32 hexadecimal digits."""

    @property
    def capability(self) -> tuple[int, int]: ...
    @property
    def multiprocessors(self) -> int: ...

@final
class CudaEngine:
    """Copies between a device's memory and an arena, by the copy engine or by kernels.

    layers: one map for each layer of the geometry, in memory of the device.
    device: its number. share: of the multiprocessors that kernels may take, above 0 and at most 1;
    by default an eighth. staging_bytes: of each direction's ring on the device; by default 16 MiB.
    method: "copy" (the copy engine), "kernel" (reaches the slots over the bus itself), "staged" (a
    kernel to a ring, the copy engine from there) or "auto", the cheapest of them for each transfer
    by a calibration that is made once a device and kept in the user's cache directory.
    owners: kept alive until the engine is closed or dropped, both of which wait for the transfers
    in flight.

    A stream is a handle (`hybrid_pages.cuda.stream_handle`), 0 for the default one; it must be a
    live stream of the device. A load that fails, also by its checksums, leaves its blocks
    undefined: what they held has to be computed again. When the device itself is broken, all
    transfers in flight fail and later ones raise.

    Raises CudaError without driver or device, or if the driver refuses; ForeignError if the arena
    belongs to another geometry; InvalidArgumentError and GeometryError for arguments, layers that
    do not fit and memory that is not the device's.
    """

    def __new__(
        cls,
        geometry: Geometry,
        arena: Arena,
        *,
        rank: int,
        num_blocks: int,
        layers: Sequence[LayerMap],
        device: int = 0,
        share: float | None = None,
        staging_bytes: int | None = None,
        method: str = "auto",
        owners: object = None,
    ) -> CudaEngine: ...
    def store(
        self, entries: Sequence[tuple[int, Sequence[int], Sequence[int]]], stream: int = 0
    ) -> int:
        """Copy entries (class, slots, a block a group) to their slots; a ticket.

        It reads what the stream was given until now. Checked whole before the first byte moves.
        """

    def load(
        self,
        entries: Sequence[tuple[int, Sequence[int], Sequence[int], int | None]],
        stream: int = 0,
    ) -> int:
        """Copy entries (class, slots, a block a group, checksum) back; a ticket.

        It writes after the last :meth:`fence`; without one, after what the stream was given until
        now. The checksums are of this rank's part, None is not compared.
        """

    def fence(self, stream: int = 0) -> None:
        """Loads that follow, until the next fence, wait for what the stream was given until now.

        They wait for nothing that it is given later.
        """

    def poll(self) -> list[Completion]:
        """What ended since the last poll, each once. Never waits for a copy."""

    def wait(self, ticket: int, timeout: float | None = None) -> bool:
        """Wait until a transfer has ended and say whether it has."""

    @property
    def in_flight(self) -> int: ...
    def close(self) -> None:
        """Wait for the transfers in flight and refuse any more. Nothing the second time."""

    @property
    def device(self) -> CudaDevice: ...
    @property
    def pinned(self) -> bool:
        """Whether the device reaches the arena without a detour."""

    @property
    def warnings(self) -> list[str]:
        """What is not as it should be, and what it costs."""

    @property
    def methods(self) -> list[str]:
        """Those that work here."""

    @property
    def calibration(self) -> dict[str, dict[str, dict[str, float]]] | None:
        """Costs by direction and method, None if none was needed.

        In seconds: fixed, per_copy, per_byte.
        """

def cuda_devices() -> list[CudaDevice]:
    """The devices that the driver shows to this process, in order. Makes a context for a moment.

    The driver is `libcuda.so.1`, or the library that the environment names in HYBRID_PAGES_LIBCUDA.

    Raises CudaError without a driver, or if one of its functions fails.
    """

def checksum(data: bytes) -> int:
    """What entries are checked by: XXH3-64 over the hashes of tiles, and the length.

    A tile is 16384 bytes, the last one filled up with zeros; its hash is its XXH3-64. Hashes and
    length are 8 bytes each, little-endian (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md).
    """

# cache

@final
class Hit:
    """What a lookup found, in blocks from the start of the prompt."""

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

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

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
        """Where its payload lies: byte `p` in `slots[p // slot_bytes]` at `p % slot_bytes`."""

    @property
    def checksums(self) -> list[int]:
        """The :func:`checksum` of each rank's part; empty while it is being written."""

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
        """What to load.

        Attention pages of [first, blocks), window pages of their last window, and the checkpoint
        of block `blocks - 1`; by block.
        """

    @property
    def released(self) -> bool: ...
    def release(self) -> None:
        """End it. Nothing the second time."""

    def __enter__(self) -> ReadLease: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class WriteLease:
    """Room for entries that nobody sees until they are committed.

    Left as a context or dropped without a commit, the room is free again.
    """

    @property
    def entries(self) -> list[LeaseEntry]:
        """What to write, by block: neither there nor in writing, and room was found for it."""

    @property
    def skipped(self) -> dict[str, int]:
        """How many of the wanted entries are not among `entries`, by reason.

        resident: there already. in_writing: this call or another lease writes it already.
        no_room: everything that could make room is in use or of the same prefix. orphan: a page
        before it is neither there nor in writing, so that it could never be reached.
        """

    @property
    def ended(self) -> bool: ...
    def commit(self, checksums: Sequence[Sequence[int]]) -> None:
        """Publish all entries at once; their bytes must be whole.

        checksums: for each entry, in order, the :func:`checksum` of each rank's part. Entries
        that were dropped meanwhile (`Cache.clear`, `Cache.invalidate`, the end of the page before
        them) stay unpublished.

        Raises LeaseError if it has ended; InvalidArgumentError if the checksums have another
        shape, and then the lease goes on.
        """

    def abort(self) -> None:
        """Give the room back. Nothing after the end."""

    def __enter__(self) -> WriteLease: ...
    def __exit__(self, *exception: object) -> None: ...

@final
class Cache:
    """Which prefixes are there, and which slots hold their pages and checkpoints.

    A prefix is a namespace and the engine's chained hashes, `stride` of them a block: the key of
    block `i` is `keys[(i + 1) * stride - 1]`, 8 to 32 bytes. Every method raises
    InvalidArgumentError for a number out of range, an unknown namespace or a key of another
    length, and then nothing has changed.
    """

    def __new__(
        cls, geometry: Geometry, *, slot_bytes: int, slots: int, policy: str = "lru"
    ) -> Cache:
        """An empty cache over `slots` slots of `slot_bytes` bytes.

        Raises BudgetError, naming the bytes needed, if they can't hold one entry of each class.
        """

    def namespace(self, identity: bytes) -> int:
        """The number of an identity under which keys are unique, and one hold of it.

        The same for the same bytes as long as it has a hold or an entry. Then the identity is
        freed: its number is unknown for good, and the identity gets another when it comes back.
        """

    def release_namespace(self, number: int) -> None:
        """Give back one hold of :meth:`namespace`. Who never does keeps the identity known.

        Raises InvalidArgumentError for an unknown number, and for one that has entries and no hold.
        """

    def lookup(
        self, namespace: int, keys: Sequence[bytes], *, stride: int = 1, limit: int | None = None
    ) -> Hit:
        """The joint hit, at most `limit` blocks, and why it is no deeper. Refreshes nothing."""

    def promote(
        self,
        namespace: int,
        keys: Sequence[bytes],
        *,
        stride: int = 1,
        first: int = 0,
        limit: int | None = None,
    ) -> bool:
        """Bring what the joint hit needs and only tiers below have into the host.

        Returns whether that is under way: ask again later, or :meth:`acquire` the hit of the host
        alone. False when nothing is missing or the host has no room.
        """

    def acquire(
        self,
        namespace: int,
        keys: Sequence[bytes],
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
        keys: Sequence[bytes],
        *,
        now: int,
        tokens: int,
        stride: int = 1,
        limit: int | None = None,
    ) -> Admission:
        """Which boundaries of a prompt of `tokens` tokens deserve a checkpoint.

        For the caller to follow as far as it can. To be called once a request, before its
        entries are reserved, with the keys of all full blocks of its prompt: the policy learns
        from it what is used, and when. now: milliseconds on any clock that never goes back.
        limit: the deepest boundary, in blocks, from which the request could resume.
        """

    def finish(
        self,
        namespace: int,
        keys: Sequence[bytes],
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
        keys: Sequence[bytes],
        entries: Sequence[tuple[int, int]],
        *,
        stride: int = 1,
    ) -> WriteLease:
        """Find room for entries (class_index, block_index), in any order.

        Shallow entries get room first; a checkpoint, the missing pages up to it and the window
        pages it needs get room together or not at all, and then nothing deeper does. The prefix
        being extended is never evicted for it, and is refreshed when the lease ends.

        Raises InvalidArgumentError also for a class or a block out of range and for keys that
        are in use for another prefix: they can't be chained hashes.
        """

    def invalidate(self, lease: ReadLease) -> int:
        """Drop the entries of a lease and what can't be reached without them: a load failed.

        Nobody finds them again; their slots return when their last lease ends. Returns how many
        resident entries were dropped. Raises LeaseError if the lease was released or belongs to
        another cache.
        """

    def clear(self) -> int:
        """Forget every entry; slots under a lease return when it ends. Returns how many.

        Namespaces that somebody holds stay.
        """

    def stats(self) -> dict[str, int]:
        """Counts and sizes at this moment.

        slots, free_slots, slot_bytes; pages, checkpoints, windows: resident entries by kind;
        page_bytes, checkpoint_bytes, window_bytes: bytes of their slots; leased_slots: slots
        that a lease reads, writes or needs to stay; writing_entries; nodes: boundaries in the
        index; evicted_pages, evicted_checkpoints, evicted_windows, reclaimed (entries dropped
        because a page before them went): since the start; metadata_bytes: memory of the index,
        policy, tables and pool.
        """

# lab

@final
class Trace:
    """Requests in order of arrival, each with the hashes of its full blocks."""

    @staticmethod
    def open(
        path: str | os.PathLike[str], *, block_tokens: int | None = None, skip_bad: bool = False
    ) -> Trace:
        """Read JSON lines, plain, gzip or zstd.

        Two formats: that of Mooncake's traces (https://github.com/kvcache-ai/Mooncake), an object
        a request with `timestamp` in ms, `input_length` and `output_length` in tokens and
        `hash_ids`, one a block; and a recording of hybrid-pages, the same after a first line
        {"format": "hybrid-pages-trace", "version": 1, "block_tokens": N}.

        block_tokens: tokens a block; by default what a recording says, else 512.
        skip_bad: count broken lines instead of refusing the trace for the first.

        Raises TraceError with the file, the line and the reason; InvalidArgumentError for a block
        size out of range.
        """

    @property
    def block_tokens(self) -> int: ...
    @property
    def requests(self) -> int: ...
    @property
    def input_tokens(self) -> int:
        """Tokens of all prompts."""

    @property
    def distinct_blocks(self) -> int:
        """Different full blocks: times (1 + ratio) they are the dense footprint in units."""

    @property
    def skipped(self) -> int:
        """Broken lines that were left out."""

@final
class ReplayRow:
    """What one policy did on one trace with one budget. A page is 1 unit, a checkpoint `ratio`."""

    @property
    def trace(self) -> int:
        """Place of the trace among those given."""

    @property
    def policy(self) -> str: ...
    @property
    def ratio(self) -> int: ...
    @property
    def budget_fraction(self) -> float:
        """Share of the dense footprint."""

    @property
    def budget_units(self) -> int: ...
    @property
    def requests(self) -> int: ...
    @property
    def input_tokens(self) -> int: ...
    @property
    def hit_tokens(self) -> int:
        """Tokens that requests resumed over; for `bound`, what no policy can exceed."""

    @property
    def hit_rate(self) -> float:
        """hit_tokens / input_tokens."""

    @property
    def written_units(self) -> int: ...
    @property
    def state_share(self) -> float:
        """Share of the taken room that checkpoints took, on average over requests."""

    @property
    def policy_us_per_request(self) -> float:
        """Microseconds a request, the lab's own bookkeeping included."""

    @property
    def metadata_bytes(self) -> int:
        """Memory that the policy held at the end."""

def replay_traces(
    traces: Sequence[Trace],
    policies: Sequence[str],
    *,
    ratio: int,
    fractions: Sequence[float] = (),
    units: Sequence[int] = (),
    done: Callable[[ReplayRow], object] | None = None,
) -> list[ReplayRow]:
    """Replay every trace with every policy and budget on all cores, without the GIL.

    policies: names of `POLICIES`, and `bound`, a proven upper bound for any policy. Budgets are
    `fractions` of the dense footprint, then `units`. Rows come by trace, policy and budget, as
    given; each is shown to `done` on the calling thread when it is made. If `done` or a signal's
    handler raises, the rest is given up at once.

    Raises InvalidArgumentError for an unknown policy, a ratio of 0 or a fraction out of range.
    """
