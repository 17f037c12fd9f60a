"""Chooses the copy engine for the device that holds the KV caches."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch

from hybrid_pages import (
    Arena,
    Completion,
    CudaEngine,
    CudaError,
    Geometry,
    HostEngine,
    LayerMap,
    Pinning,
)
from hybrid_pages._core import CudaDevice, StoreEntries, device_numa_node
from hybrid_pages.vllm.config.support import UnsupportedError
from hybrid_pages.vllm.messages import LoadEntryOfRank
from hybrid_pages.vllm.versions import logger


class StreamEngine:
    """A ``CudaEngine`` whose fences are set behind torch's work on its current stream.

    Args:
        engine: the copy engine of a device.
        device: the device.
        rank: the worker's, for the log.
    """

    def __init__(self, engine: CudaEngine, device: torch.device, rank: int) -> None:
        self._engine, self._device, self._rank = engine, device, rank
        self._logged = False

    def fence(self) -> None:
        """Makes later copies, until the next fence, wait for work that the stream has now."""
        self._engine.fence(self._stream())

    def store(self, entries: StoreEntries) -> int:
        """Starts a store that waits for the last fence; see ``CudaEngine.store``."""
        return self._engine.store(entries, fenced=True)

    def load(self, entries: Sequence[LoadEntryOfRank]) -> int:
        """Starts a load that waits for the last fence; see ``CudaEngine.load``."""
        return self._engine.load(entries, self._stream())

    def poll(self) -> list[Completion]:
        """The transfers that have ended; see ``CudaEngine.poll``. Logs once that the driver refused
        many copies in one call."""
        if not self._logged and self._engine.refused_batch_copies:
            self._logged = True
            logger.warning("rank %d: %s", self._rank, self._engine.warnings[-1])
        return self._engine.poll()

    def wait(self, ticket: int, timeout: float | None = None) -> bool:
        """Waits for a transfer; see ``CudaEngine.wait``."""
        return self._engine.wait(ticket, timeout)

    def close(self) -> None:
        """Waits for all transfers and ends; see ``CudaEngine.close``."""
        self._engine.close()

    def _stream(self) -> int:
        return current_stream(self._device)


CopyEngine: TypeAlias = HostEngine | StreamEngine


def cache_device(kv_caches: Mapping[str, torch.Tensor]) -> torch.device:
    """The device of a worker's caches. Values that are not tensors are ignored.

    Raises:
        UnsupportedError: several devices, or one without a copy engine; names a layer.
    """
    first: tuple[str, torch.device] | None = None
    for name, tensor in kv_caches.items():
        if not isinstance(tensor, torch.Tensor):
            continue
        if tensor.device.type not in ("cpu", "cuda"):
            raise UnsupportedError(
                f"layer {name!r}: expected its cache in CPU or CUDA memory, found it on "
                f"{tensor.device}: this version has no copy engine for that device"
            )
        if first is None:
            first = name, tensor.device
        elif tensor.device != first[1]:
            raise UnsupportedError(
                f"layer {name!r}: expected its cache on {first[1]}, where layer {first[0]!r} has "
                f"its own, found it on {tensor.device}"
            )
    return first[1] if first is not None else torch.device("cpu")


def require_driver(device: torch.device) -> None:
    """Rejects a device that torch can use but this package cannot.

    Raises:
        UnsupportedError: names the reason.
    """
    if device.type != "cuda":
        return
    try:
        CudaDevice.count()
    except CudaError as error:
        raise UnsupportedError(f"KV caches on {device}: {error}") from error


def pin(device: torch.device, arena: Arena, rank: int) -> Pinning | None:
    """What will pin a rank's plane for its device, in the background; None for a CPU. It is not
    started: the engine's own calls of the driver come before.

    Raises:
        CudaError: there is no driver, or it reports an error.
    """
    if device.type == "cpu":
        return None
    return Pinning(arena, rank=rank, device=device.index or 0, start=False)


def numa_node(device: torch.device) -> int | None:
    """The NUMA node that is nearest to a device; None if unknown.

    None for a CPU, too, where threads take memory from the node on which they run.
    """
    if device.type == "cpu":
        return None
    try:
        return device_numa_node(device.index or 0)
    except CudaError as error:
        logger.warning("the node of %s is unknown: %s", device, error)
        return None


def make_engine(
    device: torch.device,
    geometry: Geometry,
    arena: Arena,
    *,
    rank: int,
    num_blocks: int,
    layers: Sequence[LayerMap],
    threads: int,
    kernel_below: int,
    staging: int,
    batch_copies: bool,
    checksums: bool,
    owners: object,
    pinning: Pinning | None = None,
) -> CopyEngine:
    """Makes a copy engine between memory of a device and an arena.

    kernel_below, staging: for a GPU, in bytes. checksums: whether stores from CPU memory compute
    them. On a GPU kernels always compute them, since it costs nothing.

    Raises:
        CudaError: there is no driver, or it reports an error.
        GeometryError, InvalidArgumentError: maps that do not fit.
    """
    if device.type == "cpu":
        return HostEngine(
            geometry,
            arena,
            rank=rank,
            num_blocks=num_blocks,
            layers=layers,
            threads=threads,
            checksums=checksums,
            owners=owners,
        )
    engine = CudaEngine(
        geometry,
        arena,
        rank=rank,
        num_blocks=num_blocks,
        layers=layers,
        device=device.index or 0,
        kernel_below=kernel_below,
        staging=staging,
        batch_copies=batch_copies,
        owners=owners,
        pinning=pinning,
    )
    for warning in engine.warnings:
        if pinning is None or warning != pinning.error:  # the log follows the pinning itself
            logger.warning("rank %d: %s", rank, warning)
    return StreamEngine(engine, device, rank)


def current_stream(device: torch.device) -> int:
    """The handle of the stream that torch computes on."""
    return int(torch.cuda.current_stream(device).cuda_stream)
