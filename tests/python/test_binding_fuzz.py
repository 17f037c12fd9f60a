"""Whatever the binding is called with, it answers or refuses: it neither panics nor hangs.

A longer run: ``HYBRID_PAGES_FUZZ=500`` processes. One that failed runs alone as ``-k 17``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROCESSES = int(os.environ.get("HYBRID_PAGES_FUZZ", "4"))
CALLS = 1000
LIMIT = 300


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
@pytest.mark.parametrize("seed", range(PROCESSES))
def test_no_call_panics_hangs_or_takes_all_memory(seed: int) -> None:
    program = Path(__file__).with_name("binding_fuzz.py")
    command = [sys.executable, str(program), str(seed), str(CALLS)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    last = "".join(result.stdout.splitlines(keepends=True)[-3:])
    assert result.returncode == 0, f"{last}{result.stderr[-4000:]}"
    assert "panicked" not in result.stderr, f"{last}{result.stderr[-4000:]}"
