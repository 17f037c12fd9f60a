"""Engines as on a GPU: vLLM's second model runner, its kernels run by Triton's interpreter.

`make test-long` brings Triton and runs these; `make test` does not.
"""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRITON = ROOT / ".cache" / "triton"
if not (TRITON / "triton").is_dir():
    raise pytest.UsageError(f"expected Triton in {TRITON}; run `make test-long`")

# Before torch or vLLM are imported.
os.environ.update(TRITON_INTERPRET="1", VLLM_USE_V2_MODEL_RUNNER="1")
sys.path[:0] = [str(TRITON), str(ROOT / "tests" / "engine")]

from fixtures import model, start  # noqa: E402, F401
from gpu_path import interpreter  # noqa: E402

interpreter.install()
