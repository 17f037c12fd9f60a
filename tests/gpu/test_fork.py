"""Asking whether there is a GPU does not keep a process's forks from using it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os
from hybrid_pages import cuda
from hybrid_pages._core import CudaDevice
assert cuda.is_available() and cuda.reason() is None
if (child := os.fork()) == 0:
    os._exit(0 if CudaDevice.count() > 0 else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_can_use_the_driver_after_its_parent_asked():
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
