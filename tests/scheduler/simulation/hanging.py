"""A disk that hangs: reads and writes of its files wait until they are let go.

The calls are caught below the core, by a library that the process was started with.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".cpp")


def build(folder: Path) -> Path:
    """The library to preload, with the compiler `c++`."""
    library = folder / "hanging.so"
    command = ["c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return library


class Hanging:
    """Controls of the library in this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.hanging_waiting.restype = ctypes.c_long

    def begin(self) -> None:
        """From now on every call waits."""
        self._library.hanging_set(1)

    def end(self) -> None:
        """All calls go on."""
        self._library.hanging_set(0)

    def waiting(self) -> int:
        """Calls that wait now."""
        return int(self._library.hanging_waiting())
