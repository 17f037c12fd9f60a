"""CUDA devices and their copy engine."""

from collections.abc import Sequence
from typing import final

from hybrid_pages._stubs.arena import Arena
from hybrid_pages._stubs.blocks import StoreEntries, _StoreEntry
from hybrid_pages._stubs.geometry import Geometry
from hybrid_pages._stubs.transfer import LayerMap, _Engine

@final
class CudaDevice:
    """A CUDA device that this process can use."""

    @staticmethod
    def count() -> int:
        """How many devices this process can use. Creates no CUDA context, but starts the driver:
        processes that fork off later cannot use it.

        Raises CudaError without a driver, or if one of its functions fails.
        """

    @property
    def ordinal(self) -> int:
        """The number of the device, in the order of `CUDA_VISIBLE_DEVICES`."""

    @property
    def name(self) -> str: ...
    @property
    def uuid(self) -> str:
        """The device's UUID as 32 hexadecimal digits."""

    @property
    def capability(self) -> tuple[int, int]: ...
    @property
    def multiprocessors(self) -> int: ...

@final
class Pinning:
    """Pins the slots of an arena, from slot 0 on, so that devices copy them directly.

    A thread takes the memory from the system and registers it with the driver, piece by piece, with
    pauses in which other callers of the driver get their turn. One pinning serves any number of
    copy engines until it is closed.

    arena: has the slots. rank: whose plane is pinned. device: number of the device.
    piece_bytes: the most memory to register in one call. Pieces begin on slots that begin on pages
    of memory, if there are such slots. start: whether pinning starts at once. Copy engines are best
    made before it starts, since their calls of the driver wait while a piece is registered.

    A piece that cannot be registered is tried again after a pause, then in halves down to 16 MiB.
    Slots for which that fails, too, are used as pageable memory. If the system has no memory for a
    piece, only the slots before it are used.

    Raises CudaError without driver or device, or if the driver fails; InvalidArgumentError for
    pieces of less than a page of memory.
    """

    def __new__(
        cls,
        arena: Arena,
        *,
        rank: int,
        device: int,
        piece_bytes: int = 64 << 20,
        start: bool = True,
    ) -> Pinning: ...
    def start(self) -> None:
        """Start to pin the slots, unless that was done before.

        Raises TransferError if the system starts no thread.
        """

    @property
    def pinned_slots(self) -> int:
        """How many slots are pinned. It never falls before :meth:`close`."""

    @property
    def unpinned_slots(self) -> int:
        """How many of the usable slots could not be pinned: copies of them are slower."""

    @property
    def usable_slots(self) -> int:
        """How many slots, from 0 on, copy engines may use: pinned ones, and those that could not
        be."""

    @property
    def slots(self) -> int:
        """The number of all slots."""

    @property
    def error(self) -> str | None:
        """Why some slots could not be pinned, and what that costs; None without such slots."""

    @property
    def seconds(self) -> float:
        """How long pinning has taken so far."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until pinning has ended, at most `timeout` seconds. Returns whether it has.

        It ends when no further slot becomes usable.
        """

    def close(self) -> None:
        """Stop pinning, and unpin the slots.

        Raises InvalidArgumentError while a copy engine uses them.
        """

@final
class CudaEngine(_Engine):
    """A copy engine between a device's memory and an arena. It uses DMA copies and kernels.

    rank: whose plane is used. num_blocks: how many blocks the caches have, one number for all
    groups or one for each. layers: one map for each layer of the geometry, in memory of the device.
    device: number of the device. kernel_below: transfers whose adjacent pieces have fewer bytes
    than this, on average, are copied by a kernel, others by DMA alone. The kernel collects the
    pieces in staging buffers on the device, which DMA moves over the bus; what these can't hold,
    the kernel moves over the bus itself. By default 28,672, from which on DMA was about as fast on
    an H200 and an H100. Pages that have not all of their tokens are stored by a kernel. staging:
    bytes of the device's memory for staging, 128 MiB by default, 0 for none. share: the part of the
    multiprocessors that kernels may take while they wait for the bus, above 0 and at most 1; by
    default an eighth. batch_copies: whether many copies may go to the driver in one call, where it
    has one. pinning: pins the slots, and is started by the caller; without one, the constructor
    pins them, and waits for it. owners: objects kept alive until the copy engine is closed or
    dropped; both wait for the transfers in flight.

    A stream is a handle (`hybrid_pages.cuda.stream_handle`), 0 for the default one; it must be a
    live stream of the device. A load that fails, because of a checksum or otherwise, leaves its
    blocks undefined: their contents have to be computed again. When the device itself is broken,
    all transfers in flight fail and later ones raise.

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
        staging: int | None = None,
        batch_copies: bool = True,
        pinning: Pinning | None = None,
        owners: object = None,
    ) -> CudaEngine: ...
    def store(
        self,
        entries: StoreEntries | Sequence[_StoreEntry],
        stream: int = 0,
        *,
        fenced: bool = False,
    ) -> int:
        """Copy entries (class, slots, blocks) or (class, slots, blocks, tokens) to their slots.
        Returns a ticket.

        blocks: ids of engine blocks, `blocks_per_entry` of each group of the class, in order.
        tokens: how many tokens a page has, as for :meth:`HostEngine.store`. stream: work that the
        stream has now comes before the copy. fenced: what comes before the copy is the last
        :meth:`fence` instead; until the copy has ended, nothing may write to its blocks.

        All arguments are checked before the first byte moves.
        """

    def load(
        self,
        entries: Sequence[tuple[int, Sequence[int], Sequence[int | None], int | None]],
        stream: int = 0,
    ) -> int:
        """Copy entries (class, slots, blocks, checksum) back. Returns a ticket.

        blocks: as for :meth:`store`. checksum: of this rank's shard, to be compared; None for no
        comparison. stream: if there is no :meth:`fence`, work that the stream has now comes before
        the copy.
        """

    def fence(self, stream: int = 0) -> None:
        """Make later loads and fenced stores, until the next fence, wait for the work that the
        stream has now.

        They do not wait for later work.
        """

    @property
    def device(self) -> CudaDevice: ...
    @property
    def pinned(self) -> bool:
        """Whether the device copies slots directly: when the engine was made, there was no slot
        that could not be pinned."""

    @property
    def warnings(self) -> list[str]:
        """Messages about things that are not as they should be, and what that costs; those that
        were found since the start, too."""

    @property
    def refused_batch_copies(self) -> int:
        """How often the driver refused many copies in one call. They were made one by one instead.
        After two refusals such calls are not tried again."""

    @property
    def kernels(self) -> bool:
        """Whether kernels are used: the device could load them, and they proved at the start that
        they work. Without them, the host computes checksums."""

def cuda_devices() -> list[CudaDevice]:
    """The devices that this process can use, in order. Creates no CUDA context, but starts the
    driver: processes that fork off later cannot use it.

    The driver is `libcuda.so.1`, or the library that the environment names in HYBRID_PAGES_LIBCUDA.

    Raises CudaError without a driver, or if one of its functions fails.
    """

def started_cuda_devices() -> int | None:
    """How many devices this process can use, if anybody in it has started the driver; None if
    nobody has. Starts nothing.

    Raises CudaError without a driver, or if one of its functions fails.
    """

def device_numa_node(device: int) -> int | None:
    """The host's NUMA node that is nearest to a device; None if unknown.

    Creates no CUDA context. Raises CudaError without driver or device.
    """
