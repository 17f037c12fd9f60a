"""The ways to move pieces; each does one round of a case when it is called.

The rivals move between the pool and contiguous pinned memory: easier than our slots, which lie
anywhere in an arena. None of them makes the checksums that our stores include.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch

from hybrid_pages import CudaEngine
from paging.cases import Case
from paging.place import Place

LIMIT = "one memcpy"
KERNEL_ALONE = 1 << 40
"""As ``kernel_below``: a kernel takes part in every transfer."""


class Missing(Exception):
    """This method is not to be had here."""


class Fault(Exception):
    """Our own: a transfer that failed, or bytes that differ."""


class Method(ABC):
    """Moves a case's pieces. `finish` ends what `store` and `load` began."""

    def __init__(self, place: Place, case: Case) -> None:
        self.place, self.case, self.machine = place, case, place.machine
        self.entries = place.entries(case.count)

    def __call__(self) -> None:
        if self.case.direction in ("store", "both"):
            self.store()
        if self.case.direction in ("load", "both"):
            self.load()
        self.finish()

    @abstractmethod
    def store(self) -> None: ...

    @abstractmethod
    def load(self) -> None: ...

    def finish(self) -> None:
        self.machine.wait(self.machine.down)
        self.machine.wait(self.machine.up)


class Ours(Method):
    """A `CudaEngine`; `below` is its `kernel_below`. Engines of a size and a way are made once."""

    below: int | None = None
    staging: int | None = None
    share: float | None = None
    engines: dict[tuple[Any, ...], CudaEngine] = {}  # noqa: RUF012 - shared on purpose

    def __init__(self, place: Place, case: Case) -> None:
        super().__init__(place, case)
        self.engine = self.engine_for(place)
        each = {way: zip(e.slots, e.blocks, strict=True) for way, e in self.entries.items()}
        self.to_store = [(0, slots, [block]) for slots, block in each["store"]]
        self.to_load = [(0, slots, [block], None) for slots, block in each["load"]]
        # Where nothing runs: what is moved was there long before.
        self.stream = self.machine.handle(self.machine.down)
        self.engine.fence(self.stream)
        self.tickets: list[int] = []

    @classmethod
    def engine_for(cls, place: Place) -> CudaEngine:
        key = (place.size, cls.below, cls.staging, cls.share)
        if key not in cls.engines:
            cls.engines[key] = CudaEngine(
                place.geometry,
                place.arena,
                rank=0,
                num_blocks=place.blocks,
                layers=place.maps,
                kernel_below=cls.below,
                staging=cls.staging,
                share=cls.share,
                owners=place.pool,
            )
            cls.check(place, cls.engines[key])
        engine = cls.engines[key]
        if cls.below == KERNEL_ALONE and not (engine.kernels and engine.pinned):
            raise Missing("kernels need an image that the driver loads, and pinned slots")
        return engine

    @staticmethod
    def check(place: Place, engine: CudaEngine) -> None:
        """A round trip changes no byte, or the bench ends."""
        entries = place.entries(min(place.blocks // 2, 4) * len(place.maps))["store"]
        before = place.pool[:, entries.blocks].clone()
        place.machine.wait_all()
        each = list(zip(entries.slots, entries.blocks, strict=True))
        stored = run(engine, engine.store([(0, slots, [block]) for slots, block in each]))
        place.pool[:, entries.blocks] = 0
        place.machine.wait_all()
        items = [(0, *entry, total) for entry, total in zip(each, stored.checksums, strict=True)]
        run(engine, engine.load([(c, slots, [block], total) for c, slots, block, total in items]))
        place.machine.wait_all()
        if not torch.equal(place.pool[:, entries.blocks], before):
            raise Fault(f"bytes differ after a round trip of {place.size}-byte pieces")

    @classmethod
    def warnings(cls) -> list[str]:
        """What all engines that were made have to say."""
        return sorted({said for engine in cls.engines.values() for said in engine.warnings})

    def store(self) -> None:
        self.tickets.append(self.engine.store(self.to_store, self.stream))

    def load(self) -> None:
        self.tickets.append(self.engine.load(self.to_load, self.stream))

    def finish(self) -> None:
        for ticket in self.tickets:
            self.engine.wait(ticket)
        self.tickets.clear()
        for done in self.engine.poll():
            if not done.ok:
                raise Fault(f"a transfer failed: {done.error}")


class OursByCopies(Ours):
    below = 0


class OursStaged(Ours):
    below = KERNEL_ALONE


class OursByKernel(OursStaged):
    staging = 0


def run(engine: CudaEngine, ticket: int) -> Any:
    engine.wait(ticket)
    (done,) = engine.poll()
    if not done.ok:
        raise Fault(f"a transfer failed: {done.error}")
    return done


class OneCopy(Method):
    """The limit: one contiguous pinned `cudaMemcpyAsync` of as many bytes."""

    def __init__(self, place: Place, case: Case) -> None:
        super().__init__(place, case)
        buffers, nbytes = place.buffers, case.nbytes
        self.pinned = {way: buffers.pinned[way][:nbytes] for way in ("store", "load")}
        self.device = {"store": buffers.pool[:nbytes], "load": buffers.staging["load"][:nbytes]}

    def store(self) -> None:
        with self.machine.on(self.machine.down):
            self.pinned["store"].copy_(self.device["store"], non_blocking=True)

    def load(self) -> None:
        with self.machine.on(self.machine.up):
            self.device["load"].copy_(self.pinned["load"], non_blocking=True)


class Indexed(Method):
    """torch: `index_select` and one copy; one copy and `index_copy_`."""

    def __init__(self, place: Place, case: Case) -> None:
        super().__init__(place, case)
        buffers, nbytes = place.buffers, case.nbytes
        self.items = place.items()
        shape = (case.count, -1)
        self.rows, self.staging, self.pinned = {}, {}, {}
        for way, entries in self.entries.items():
            self.rows[way] = torch.tensor(entries.rows(place.blocks), device=self.items.device)
            self.staging[way] = buffers.staging[way][:nbytes].view(torch.int64).view(shape)
            self.pinned[way] = buffers.pinned[way][:nbytes].view(torch.int64).view(shape)

    def store(self) -> None:
        staging = self.staging["store"]
        with self.machine.on(self.machine.down):
            torch.index_select(self.items, 0, self.rows["store"], out=staging)
            self.pinned["store"].copy_(staging, non_blocking=True)

    def load(self) -> None:
        staging = self.staging["load"]
        with self.machine.on(self.machine.up):
            staging.copy_(self.pinned["load"], non_blocking=True)
            self.items.index_copy_(0, self.rows["load"], staging)


class _Stream:
    """A stream for CuPy 14, whatever torch's own speak."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


class CuPy(Indexed):
    """CuPy: `take` and one copy; one copy and an assignment through an index."""

    def __init__(self, place: Place, case: Case) -> None:
        super().__init__(place, case)
        if not self.machine.cuda:
            raise Missing("no device")
        try:
            import cupy
        except ImportError as error:
            raise Missing(str(error)) from error
        self.cupy = cupy
        self.items = cupy.from_dlpack(self.items)
        self.rows = {way: cupy.from_dlpack(rows) for way, rows in self.rows.items()}
        self.staging = {way: cupy.from_dlpack(buffer) for way, buffer in self.staging.items()}
        self.host = {way: buffer.numpy() for way, buffer in self.pinned.items()}
        self.streams = {
            way: cupy.cuda.Stream.from_external(_Stream(self.machine.handle(stream)))
            for way, stream in (("store", self.machine.down), ("load", self.machine.up))
        }

    def store(self) -> None:
        with self.streams["store"] as stream:
            self.cupy.take(self.items, self.rows["store"], axis=0, out=self.staging["store"])
            self.staging["store"].get(stream, out=self.host["store"], blocking=False)

    def load(self) -> None:
        with self.streams["load"] as stream:
            self.staging["load"].set(self.host["load"], stream)
            self.items[self.rows["load"]] = self.staging["load"]


class _Pointers(Method):
    """Addresses of every piece, on the device and in pinned memory."""

    def __init__(self, place: Place, case: Case) -> None:
        super().__init__(place, case)
        self.device, self.host = {}, {}
        for way, entries in self.entries.items():
            rows = np.array(entries.rows(place.blocks), np.uint64)
            self.device[way] = np.uint64(place.pool.data_ptr()) + rows * np.uint64(case.size)
            first = np.uint64(place.buffers.pinned[way].data_ptr())
            self.host[way] = first + np.arange(case.count, dtype=np.uint64) * np.uint64(case.size)
        self.sizes = np.full(case.count, case.size, np.uint64)


class _Attributes(ctypes.Structure):
    """`CUmemcpyAttributes` of CUDA 12.8."""

    _fields_ = (("order", ctypes.c_int), ("locations", ctypes.c_int * 4), ("flags", ctypes.c_uint))


class BatchCopy(_Pointers):
    """`cuMemcpyBatchAsync`, all copies in one call."""

    _STREAM, _ANY = 1, 3

    def __init__(self, place: Place, case: Case) -> None:
        super().__init__(place, case)
        if not self.machine.cuda:
            raise Missing("no device")
        library = ctypes.CDLL("libcuda.so.1")
        if not hasattr(library, "cuMemcpyBatchAsync"):
            raise Missing("expected a driver of CUDA 12.8 or newer")
        self.function = library.cuMemcpyBatchAsync

    def _start(self, to: np.ndarray, of: np.ndarray, order: int, stream: Any) -> None:
        attributes, index = _Attributes(order=order), ctypes.c_size_t(0)
        failed = ctypes.c_size_t(0)
        result = self.function(
            ctypes.c_void_p(to.ctypes.data),
            ctypes.c_void_p(of.ctypes.data),
            ctypes.c_void_p(self.sizes.ctypes.data),
            ctypes.c_size_t(len(to)),
            ctypes.byref(attributes),
            ctypes.byref(index),
            ctypes.c_size_t(1),
            ctypes.byref(failed),
            ctypes.c_void_p(self.machine.handle(stream)),
        )
        if result:
            raise Missing(f"cuMemcpyBatchAsync failed with {result} at {failed.value}")

    def store(self) -> None:
        self._start(self.host["store"], self.device["store"], self._STREAM, self.machine.down)

    def load(self) -> None:
        self._start(self.device["load"], self.host["load"], self._ANY, self.machine.up)


class Swap(_Pointers):
    """vLLM's `swap_blocks_batch`."""

    def __init__(self, place: Place, case: Case) -> None:
        super().__init__(place, case)
        if not self.machine.cuda:
            raise Missing("no device")
        try:
            from vllm import _custom_ops
        except ImportError as error:
            raise Missing(str(error)) from error
        self.swap = _custom_ops.swap_blocks_batch
        for table in (self.device, self.host):
            for way, addresses in table.items():
                table[way] = torch.from_numpy(addresses.view(np.int64))
        self.lengths = torch.from_numpy(self.sizes.view(np.int64))

    def store(self) -> None:
        with self.machine.on(self.machine.down):
            self.swap(self.device["store"], self.host["store"], self.lengths)

    def load(self) -> None:
        with self.machine.on(self.machine.up):
            self.swap(self.host["load"], self.device["load"], self.lengths, True)


METHODS: dict[str, type[Method]] = {
    LIMIT: OneCopy,
    "auto": Ours,
    "copy": OursByCopies,
    "staged": OursStaged,
    "kernel": OursByKernel,
    "batch copy": BatchCopy,
    "torch": Indexed,
    "CuPy": CuPy,
    "vLLM swap": Swap,
}
OURS = ("auto", "copy", "staged", "kernel")
