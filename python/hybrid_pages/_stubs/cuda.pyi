"""CUDA devices and their engine."""

from collections.abc import Sequence
from typing import final

from hybrid_pages._stubs.arena import Arena
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
class CudaEngine(_Engine):
    """Copies between a device's memory and an arena, by the copy engine or by kernels.

    num_blocks: how many blocks the engine has, in all groups or in each.
    layers: one map for each layer of the geometry, in memory of the device.
    device: its number. share: of the multiprocessors that kernels may take, above 0 and at most 1;
    by default an eighth. staging_bytes: of each direction's ring on the device; by default 16 MiB.
    method: "copy" (the copy engine), "kernel" (reaches the slots over the bus itself), "staged" (a
    kernel to a ring, the copy engine from there) or "auto", the cheapest of them for each transfer
    by a calibration that is made once per device and kept in the user's cache directory.
    owners: kept alive until the engine is closed or dropped, both of which wait for the transfers
    in flight.

    A stream is a handle (`hybrid_pages.cuda.stream_handle`), 0 for the default one; it must be a
    live stream of the device. A load that fails, also by its checksums, leaves its blocks
    undefined: what they held has to be computed again. When the device itself is broken, all
    transfers in flight fail and later ones raise.

    Raises CudaError without driver or device, or if the driver fails; ForeignError if the arena
    belongs to another geometry; InvalidArgumentError and GeometryError for arguments, layers that
    do not fit and memory that is not the device's.
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
        staging_bytes: int | None = None,
        method: str = "auto",
        owners: object = None,
    ) -> CudaEngine: ...
    def store(
        self, entries: Sequence[tuple[int, Sequence[int], Sequence[int]]], stream: int = 0
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
