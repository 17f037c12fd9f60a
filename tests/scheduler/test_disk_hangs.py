"""A disk that hangs, such as a stalled NFS, with the real scheduler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from simulation.hanging import build

FILE = Path(__file__).with_name("hangs.py")


@pytest.mark.any_version
def test_over_a_disk_that_hangs(tmp_path: Path) -> None:
    """Every test of `hangs.py`, in one process that starts with the library."""
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler to build the library with that holds calls")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", FILE],
        env={**os.environ, "LD_PRELOAD": str(build(tmp_path))},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    count = len(re.findall(r"^def test_", FILE.read_text(), re.MULTILINE))
    text = done.stdout[-8000:] + done.stderr[-2000:]
    assert done.returncode == 0 and f"{count} passed" in done.stdout, text
