"""Copy engines: copies between an engine's memory and an arena."""

from collections.abc import Sequence
from typing import TypeAlias, final

from typing_extensions import disjoint_base

from hybrid_pages._stubs.arena import Arena
from hybrid_pages._stubs.blocks import StoreEntries, _StoreEntry
from hybrid_pages._stubs.geometry import Geometry

_TokenPart: TypeAlias = tuple[int, Sequence[tuple[int, int]], int]

@final
class LayerMap:
    """The places of one layer's blocks in the engine's memory [address, address + nbytes).

    Block b starts at address + b * block_stride. Its bytes are the runs (offset, length), in the
    order of the payload. Layers that are adjacent in a block are copied together if their maps
    have the same region. The memory must stay readable and writable until the copy engine is
    closed, and nothing else may write a block while a transfer uses it.

    tokens: for a layer of pages, which token of a block each byte belongs to; None if that is not
    known, and then its pages can only be stored whole. The payload of a block is one part after
    another, each (first, dims, bytes): an array of cells of so many bytes with the dimensions
    (extent, tokens), outermost first. The token of a cell is `first` plus the index in each
    dimension times its `tokens`, which is 0 for dimensions within a token. All tokens have equally
    many bytes.
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
        tokens: Sequence[_TokenPart] | None = None,
    ) -> LayerMap: ...
    @staticmethod
    def elsewhere(*, group: int, layer: int) -> LayerMap:
        """The map of a layer that is in the memory of another rank, as with pipeline stages: a
        store writes zeros in the place of its bytes, and a load leaves them out. It has no runs.
        """

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
    @property
    def tokens(self) -> tuple[_TokenPart, ...] | None: ...

@final
class Completion:
    """The result of a transfer.

    ticket: the number that `store` or `load` has returned. ok: whether all bytes were copied.
    error: why not. bytes: how many were copied; 0 after a failure. seconds: how long it took.
    checksums: of a store that succeeded, the :func:`checksum` of this rank's shard of each entry,
    in order; empty from an engine that computes none.
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

@disjoint_base
class _Engine:
    """The base class of all copy engines. The module does not export it."""

    def poll(self) -> list[Completion]:
        """The results of the transfers that have ended since the last poll. Does not wait."""

    def wait(self, ticket: int, timeout: float | None = None) -> bool:
        """Wait until a transfer has ended, at most `timeout` seconds. Returns whether it has."""

    @property
    def in_flight(self) -> int: ...
    def close(self) -> None:
        """Wait for the transfers in flight, and reject later ones. The second call does nothing."""

@final
class HostEngine(_Engine):
    """A copy engine between host memory and an arena, with threads of its own.

    rank: whose plane is used. num_blocks: how many blocks the caches have, one number for all
    groups or one for each. layers: one map for each layer of the geometry. threads: how many copy.
    checksums: whether stores compute them; loads compare the ones they are given in any case.
    owners: objects kept alive until the copy engine is closed or dropped; both wait for the
    transfers in flight.

    Raises ForeignError if the arena belongs to another geometry; InvalidArgumentError and
    GeometryError for wrong arguments, and for layers that do not fit.
    """

    def __new__(
        cls,
        geometry: Geometry,
        arena: Arena,
        *,
        rank: int,
        num_blocks: int | Sequence[int],
        layers: Sequence[LayerMap],
        threads: int = 2,
        checksums: bool = True,
        owners: object = None,
    ) -> HostEngine: ...
    def store(self, entries: StoreEntries | Sequence[_StoreEntry]) -> int:
        """Copy entries (class, slots, blocks) or (class, slots, blocks, tokens) to their slots.
        Returns a ticket.

        blocks: ids of engine blocks, `blocks_per_entry` of each group of the class, in order.
        tokens: how many tokens a page has, counted from its start, fewer than a block's; None for
        all. What lies behind them is never read: zeros are stored in its place, and hashed. Blocks
        without tokens may be None.

        All arguments are checked before the first byte moves.
        """

    def load(
        self, entries: Sequence[tuple[int, Sequence[int], Sequence[int | None], int | None]]
    ) -> int:
        """Copy entries (class, slots, blocks, checksum) back. Returns a ticket.

        blocks: as for :meth:`store`; a block that is None is not copied. checksum: of this rank's
        shard, to be compared; None for no comparison.

        Bytes are hashed while they move. A load that fails, because of a checksum or otherwise,
        leaves its blocks undefined.
        """

def checksum(data: bytes) -> int:
    """The checksum of an entry: XXH3-64 over the hashes of tiles, and the length.

    A tile is 16384 bytes, the last one filled up with zeros; its hash is its XXH3-64. Hashes and
    length are 8 bytes each, little-endian (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md).
    """
