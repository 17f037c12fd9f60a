"""The CUDA driver by its C interface, without a framework: a real one and the mock alike."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

NON_BLOCKING = 1
_MULTIPROCESSORS, _MOST_SHARED = 16, 97
_DYNAMIC_SHARED = 8

# A kernel that spins for so many nanoseconds. It needs neither nvcc nor NVRTC: the driver
# translates it.
_SPIN = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 nanoseconds)
{
    .reg .pred %p<2>;
    .reg .u64 %t<4>;
    ld.param.u64 %t1, [nanoseconds];
    mov.u64 %t2, %globaltimer;
    add.u64 %t1, %t1, %t2;
AGAIN:
    mov.u64 %t3, %globaltimer;
    setp.lt.u64 %p1, %t3, %t1;
    @%p1 bra AGAIN;
    ret;
}
"""


class Location(ctypes.Structure):
    """`CUmemLocation`."""

    _fields_ = (("type", c_int), ("id", c_int))


class AllocationProp(ctypes.Structure):
    """`CUmemAllocationProp`."""

    _fields_ = (
        ("type", c_int),
        ("requested_handle_types", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class AccessDesc(ctypes.Structure):
    """`CUmemAccessDesc`."""

    _fields_ = (("location", Location), ("flags", c_int))


_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuStreamCreateWithPriority": (POINTER(c_void_p), c_uint, c_int),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, POINTER(c_void_p)),
    "cuGraphDestroy": (c_void_p,),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuModuleLoadDataEx": (POINTER(c_void_p), c_char_p, c_uint, c_void_p, c_void_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, POINTER(c_void_p), c_void_p),
    "cuMemGetAllocationGranularity": (POINTER(c_size_t), POINTER(AllocationProp), c_int),
    "cuMemAddressReserve": (POINTER(c_uint64), c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemAddressFree": (c_uint64, c_size_t),
    "cuMemCreate": (POINTER(c_uint64), c_size_t, POINTER(AllocationProp), c_uint64),
    "cuMemRelease": (c_uint64,),
    "cuMemMap": (c_uint64, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemSetAccess": (c_uint64, c_size_t, POINTER(AccessDesc), c_size_t),
    "cuMemUnmap": (c_uint64, c_size_t),
}


class Missing(Exception):
    """This machine lacks what a measurement needs."""


class DriverError(Exception):
    """A function of the driver failed."""


class Driver:
    """The first device's primary context, current on the thread that made this."""

    def __init__(self) -> None:
        name = os.environ.get("HYBRID_PAGES_LIBCUDA") or "libcuda.so.1"
        library = ctypes.CDLL(name)
        self._functions = {}
        for symbol, arguments in _FUNCTIONS.items():
            function = getattr(library, symbol)
            function.argtypes = arguments
            self._functions[symbol] = function
        self("cuInit", 0)
        self.device, self.context = c_int(), c_void_p()
        self("cuDeviceGet", byref(self.device), 0)
        self("cuDevicePrimaryCtxRetain", byref(self.context), self.device)
        self.enter()
        self.multiprocessors = self._attribute(_MULTIPROCESSORS)
        self._spin, self.shared_bytes = self._load()

    def __call__(self, function: str, *arguments: Any) -> None:
        code = self._functions[function](*arguments)
        if code:
            name = c_char_p()
            known = self._functions["cuGetErrorName"](code, byref(name)) == 0
            text = (name.value or b"").decode() if known else "unknown"
            raise DriverError(f"{function} failed with {code} ({text})")

    def enter(self) -> None:
        """Makes the context current on this thread."""
        self("cuCtxSetCurrent", self.context)

    def describe(self) -> dict[str, Any]:
        """Name and version."""
        name, version = ctypes.create_string_buffer(96), c_int()
        self("cuDeviceGetName", name, len(name), self.device)
        self("cuDriverGetVersion", byref(version))
        return {
            "device": name.value.decode(),
            "cuda": f"{version.value // 1000}.{version.value % 1000 // 10}",
            "multiprocessors": self.multiprocessors,
        }

    def _attribute(self, number: int) -> int:
        value = c_int()
        self("cuDeviceGetAttribute", byref(value), number, self.device)
        return value.value

    def _load(self) -> tuple[c_void_p, int]:
        module, function = c_void_p(), c_void_p()
        self("cuModuleLoadDataEx", byref(module), _SPIN, 0, None, None)
        self("cuModuleGetFunction", byref(function), module, b"spin")
        shared = self._attribute(_MOST_SHARED)
        self("cuFuncSetAttribute", function, _DYNAMIC_SHARED, shared)
        return function, shared

    def stream(self) -> int:
        """A stream that waits for no other."""
        handle = c_void_p()
        self("cuStreamCreateWithPriority", byref(handle), NON_BLOCKING, 0)
        return handle.value or 0

    def wait(self, stream: int) -> None:
        """Until the stream has nothing left to do."""
        self("cuStreamSynchronize", stream)

    def allocate(self, nbytes: int) -> int:
        """An address of the device's memory."""
        address = c_uint64()
        self("cuMemAlloc_v2", byref(address), nbytes)
        return address.value

    def pinned(self, nbytes: int) -> int:
        """An address of pinned memory of the host."""
        address = c_void_p()
        self("cuMemHostAlloc", byref(address), nbytes, 0)
        return address.value or 0

    def free_bytes(self) -> int:
        """Bytes of the device's memory that nobody uses."""
        unused, whole = c_size_t(), c_size_t()
        self("cuMemGetInfo_v2", byref(unused), byref(whole))
        return unused.value

    def write(self, address: int, data: bytes, stream: int) -> None:
        """Copies to the device, and waits for it."""
        self("cuMemcpyHtoDAsync_v2", address, data, len(data), stream)
        self.wait(stream)

    def read(self, address: int, nbytes: int, stream: int) -> bytes:
        """Copies from the device, and waits for it."""
        data = ctypes.create_string_buffer(nbytes)
        self("cuMemcpyDtoHAsync_v2", data, address, nbytes, stream)
        self.wait(stream)
        return data.raw

    def spin(self, stream: int, nanoseconds: int, blocks: int = 1, shared: int = 0) -> None:
        """Launches blocks of one thread that spin for so long, with so much shared memory each."""
        value = c_uint64(nanoseconds)
        arguments = (c_void_p * 1)(ctypes.addressof(value))
        self("cuLaunchKernel", self._spin, blocks, 1, 1, 1, 1, 1, shared, stream, arguments, None)


def latencies(act: Callable[[], object], seconds: float, least: int = 20) -> list[float]:
    """Milliseconds of each of many calls in a row: for so long, and so many at least."""
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < least or time.perf_counter() < end:
        begin = time.perf_counter()
        act()
        found.append((time.perf_counter() - begin) * 1e3)
    return found


def share(values: list[float], part: float) -> float:
    """The value that so large a part of all does not exceed."""
    return sorted(values)[int(part * (len(values) - 1))]
