"""CUDA devices and their engine."""

from collections.abc import Sequence
from typing import final

from hybrid_pages._stubs.arena import Arena
from hybrid_pages._stubs.blocks import StoreEntries
from hybrid_pages._stubs.geometry import Geometry
from hybrid_pages._stubs.transfer import LayerMap, _Engine

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
        """A number in the order of `CUDA_VISIBLE_DEVICES`."""

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
class Pinning:
    """Slots of an arena that devices reach without a detour: more and more of them, from slot 0 on.

    A thread takes their memory from the system and registers it with the driver, piece by piece.
    Engines come and go over one pinning, which serves as long as it is not closed.

    arena: whose slots. rank: the shard that the caller copies. device: its number. piece_bytes: of
    memory that is registered in one call, at most; some systems refuse more than 2 GiB. Pieces
    begin on slots that begin on pages, if there are such.

    Where a piece cannot be registered, the slots before it stay usable and the others are never
    used; where that is the first one, all slots are used as pageable memory.

    Raises CudaError without driver or device, or if the driver fails; InvalidArgumentError for
    pieces below 4 KiB.
    """

    def __new__(
        cls, arena: Arena, *, rank: int, device: int, piece_bytes: int = 2 << 30
    ) -> Pinning: ...
    @property
    def pinned_slots(self) -> int:
        """The slots from 0 on that are pinned. It never falls before :meth:`close`."""

    @property
    def usable_slots(self) -> int:
        """The slots from 0 on that engines take: the pinned ones, or all where none can be."""

    @property
    def slots(self) -> int:
        """All slots."""

    @property
    def error(self) -> str | None:
        """Why some slots will not be pinned, and what that costs."""

    @property
    def seconds(self) -> float:
        """For how long it has pinned."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing more will be pinned; whether that came within so many seconds."""

    def close(self) -> None:
        """Stop, and give back what was pinned.

        Raises InvalidArgumentError while an engine uses it.
        """

@final
class CudaEngine(_Engine):
    """Copies between a device's memory and an arena, by the copy engine or by kernels.

    num_blocks: how many blocks the engine has, in all groups or in each.
    layers: one map for each layer of the geometry, in memory of the device.
    device: its number. share: of the multiprocessors that kernels may take, above 0 and at most 1;
    by default an eighth. kernel_below: transfers whose adjacent pieces are shorter than this, in
    bytes and on average, move by a kernel, others by the copy engine; by default 28,672, from where
    on the copy engine was measured to be faster on an H100. pinning: who pins the slots; without
    one, the engine does, all or none of them, and is made when that has ended.
    owners: kept alive until the engine is closed or dropped, both of which wait for the transfers
    in flight.

    A stream is a handle (`hybrid_pages.cuda.stream_handle`), 0 for the default one; it must be a
    live stream of the device. A load that fails, also by its checksums, leaves its blocks
    undefined: what they held has to be computed again. When the device itself is broken, all
    transfers in flight fail and later ones raise.

    Raises CudaError without driver or device, or if the driver fails; ForeignError if the arena
    belongs to another geometry; ArenaError if the system has no memory for its slots;
    InvalidArgumentError and GeometryError for arguments, layers that do not fit and memory that is
    not the device's.
    """

    def __new__(
        cls,
        geometry: Geometry,
        arena: Arena,
        *,
        rank: int,
        num_blocks: int | Sequence[int],
        layers: Sequence[LayerMap],
        device: int = 0,
        share: float | None = None,
        kernel_below: int | None = None,
        pinning: Pinning | None = None,
        owners: object = None,
    ) -> CudaEngine: ...
    def store(
        self,
        entries: StoreEntries | Sequence[tuple[int, Sequence[int], Sequence[int]]],
        stream: int = 0,
    ) -> int:
        """Copy entries (class, slots, blocks) to their slots; a ticket.

        blocks: ids of the engine's blocks, `blocks_per_entry` of each group of the class, in order.

        It reads what the stream was given until now. Checked whole before the first byte moves.
        """

    def load(
        self,
        entries: Sequence[tuple[int, Sequence[int], Sequence[int | None], int | None]],
        stream: int = 0,
    ) -> int:
        """Copy entries (class, slots, blocks, checksum) back; a ticket.

        blocks: as for :meth:`store`.

        It writes after the last :meth:`fence`; without one, after what the stream was given until
        now. The checksums are of this rank's shard, None is not compared.
        """

    def fence(self, stream: int = 0) -> None:
        """Loads that follow, until the next fence, wait for what the stream was given until now.

        They wait for nothing that it is given later.
        """

    @property
    def device(self) -> CudaDevice: ...
    @property
    def pinned(self) -> bool:
        """Whether the device reaches the arena without a detour."""

    @property
    def warnings(self) -> list[str]:
        """Things that are not as they should be, and their cost."""

    @property
    def kernels(self) -> bool:
        """Whether the device took the kernels. Without them, the host makes the checksums."""

def cuda_devices() -> list[CudaDevice]:
    """The devices that the driver shows to this process, in order. Makes a context for a moment.

    The driver is `libcuda.so.1`, or the library that the environment names in HYBRID_PAGES_LIBCUDA.

    Raises CudaError without a driver, or if one of its functions fails.
    """

def device_numa_node(device: int) -> int | None:
    """The NUMA node of the host that is nearest to a device; None where that is unknown.

    Makes no context. Raises CudaError without driver or device.
    """
