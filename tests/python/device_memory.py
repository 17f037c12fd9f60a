"""Memory of a CUDA device through the driver alone, for tests with a real one and with the mock."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np


class Device:
    """A device's primary context, current on this thread until closed."""

    def __init__(self, library: str | None = None, ordinal: int = 0) -> None:
        name = library or os.environ.get("HYBRID_PAGES_LIBCUDA") or "libcuda.so.1"
        self.driver = ctypes.CDLL(name)
        self.ordinal, self.allocated = ordinal, []
        self("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self("cuDeviceGet", ctypes.byref(device), ordinal)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)

    def __call__(self, function: str, *arguments: Any) -> None:
        code = getattr(self.driver, function)(*arguments)
        if code:
            raise RuntimeError(f"{function} failed with {code}")

    def allocate(self, nbytes: int) -> int:
        """An address, freed at the end."""
        address = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        self.allocated.append(address.value)
        return address.value

    def zeros(self, nbytes: int) -> ctypes.Array:
        """Memory of the mock, as an object with a buffer: the host may touch it as well."""
        buffer = (ctypes.c_uint8 * nbytes).from_address(self.allocate(nbytes))
        ctypes.memset(buffer, 0, nbytes)
        return buffer

    def write(self, address: int, data: np.ndarray) -> None:
        data = np.ascontiguousarray(data).view(np.uint8)
        self(
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_uint64(address),
            ctypes.c_void_p(data.ctypes.data),
            ctypes.c_size_t(data.nbytes),
            None,
        )
        self("cuStreamSynchronize", None)

    def read(self, address: int, nbytes: int) -> np.ndarray:
        data = np.empty(nbytes, np.uint8)
        self(
            "cuMemcpyDtoHAsync_v2",
            ctypes.c_void_p(data.ctypes.data),
            ctypes.c_uint64(address),
            ctypes.c_size_t(nbytes),
            None,
        )
        self("cuStreamSynchronize", None)
        return data

    def close(self) -> None:
        for address in self.allocated:
            self("cuMemFree_v2", ctypes.c_uint64(address))
        self.allocated.clear()
        self("cuDevicePrimaryCtxRelease_v2", self.ordinal)
