"""The mock of the CUDA driver (tests/mock-cuda) for Python's tests."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ONCE, STICKY, LATE = 0, 1, 2


def build() -> Path:
    """The mock, built if its sources are newer."""
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler to build the mock driver with")
    library = ROOT / ".cache" / "mock-cuda" / "libcuda.so.1"
    library.parent.mkdir(parents=True, exist_ok=True)
    command = ["sh", str(ROOT / "tests" / "mock-cuda" / "build.sh"), str(library)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return library


class Mock:
    """Controls of the mock driver."""

    def __init__(self, library: Path) -> None:
        self.path, self._library = str(library), ctypes.CDLL(str(library))
        self._library.mock_cuda_calls.restype = ctypes.c_long
        self._library.mock_cuda_count.restype = ctypes.c_long

    def fail(self, function: str, nth: int, code: int, mode: int = ONCE) -> None:
        """The nth call from now on fails."""
        self._library.mock_cuda_fail(function.encode(), ctypes.c_long(nth), code, mode)

    def delay(self, microseconds: int, seed: int = 1) -> None:
        """Longest pause of each operation of a stream."""
        self._library.mock_cuda_delay(microseconds, ctypes.c_uint64(seed))

    def set(self, name: str, value: int) -> None:
        """A setting of ``mock.h``."""
        self._library.mock_cuda_set(name.encode(), ctypes.c_long(value))

    def pause(self, microseconds: int) -> None:
        """Pause before each copy and each kernel."""
        for name in ("COPY_US", "KERNEL_US"):
            self.set(name, microseconds)

    def calls(self, function: str) -> int:
        return self._library.mock_cuda_calls(function.encode())

    def count(self, what: str) -> int:
        return self._library.mock_cuda_count(what.encode())

    def reset(self) -> None:
        self._library.mock_cuda_reset()
