"""The example of vLLM offline runs as a user runs it; that of the server is in `test_server.py`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures import CACHE

EXAMPLE = Path(__file__).parents[2] / "examples" / "vllm_offline.py"


@pytest.mark.long
def test_a_conversation_that_comes_back_is_restored_from_host_memory(model):
    model("qwen3.5")
    ended = subprocess.run(
        [sys.executable, EXAMPLE],
        env={**os.environ, "XDG_CACHE_HOME": str(CACHE)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    first, second = re.search(r"request: (\d+) .* second: (\d+),", ended.stdout).groups()
    assert first == "0"
    assert int(second) >= 1408
