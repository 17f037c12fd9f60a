"""Copies between an engine's memory and an arena, and the host engine."""

from collections.abc import Sequence
from typing import final

from typing_extensions import disjoint_base

from hybrid_pages._stubs.arena import Arena
from hybrid_pages._stubs.blocks import StoreEntries
from hybrid_pages._stubs.geometry import Geometry

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
    checksums: of a store that succeeded, :func:`checksum` of this rank's shard of each entry, in
    order; empty from an engine that computes none.
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
    """The base class of all engines, no name of the module."""

    def poll(self) -> list[Completion]:
        """The transfers that ended since the last poll, each once. Never waits for a copy."""

    def wait(self, ticket: int, timeout: float | None = None) -> bool:
        """Wait until a transfer has ended and say whether it has."""

    @property
    def in_flight(self) -> int: ...
    def close(self) -> None:
        """Wait for the transfers in flight and reject any more. The second call does nothing."""

@final
class HostEngine(_Engine):
    """Copies between host memory and an arena by threads of its own.

    num_blocks: how many blocks the engine has, in all groups or in each.
    checksums: whether stores compute them; loads compare what they are given in any case.
    layers: one map for each layer of the geometry. owners: kept alive until the engine is
    closed or dropped, both of which wait for the transfers in flight.

    Raises ForeignError if the arena belongs to another geometry; InvalidArgumentError and
    GeometryError for arguments, and for layers that do not fit.
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
    def store(
        self, entries: StoreEntries | Sequence[tuple[int, Sequence[int], Sequence[int]]]
    ) -> int:
        """Copy entries (class, slots, blocks) to their slots; a ticket.

        blocks: ids of the engine's blocks, `blocks_per_entry` of each group of the class, in order.

        Checked whole before the first byte moves.
        """

    def load(
        self, entries: Sequence[tuple[int, Sequence[int], Sequence[int | None], int | None]]
    ) -> int:
        """Copy entries (class, slots, blocks, checksum) back; a ticket.

        blocks: as for :meth:`store`; the bytes of one that is None are left out.

        The checksums are of this rank's shard, None is not compared. Bytes are hashed while they
        move: a load that fails, also by its checksums, leaves nothing of use in its blocks.
        """

def checksum(data: bytes) -> int:
    """The checksum of an entry: XXH3-64 over the hashes of tiles, and the length.

    A tile is 16384 bytes, the last one filled up with zeros; its hash is its XXH3-64. Hashes and
    length are 8 bytes each, little-endian (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md).
    """
