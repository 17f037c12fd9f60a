"""What is set before vLLM's first import: neither network nor GPU, and which vLLM it is.

`HYBRID_PAGES_VLLM` names the folder of an unpacked vLLM to test instead of the installed one.
"""

from __future__ import annotations

import os
import sys

os.environ.update(
    HF_HUB_OFFLINE="1",
    OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"),
    TORCH_COMPILE_DISABLE="1",
    VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
    VLLM_NO_USAGE_STATS="1",
    VLLM_TARGET_DEVICE="cpu",
)
if folder := os.environ.get("HYBRID_PAGES_VLLM"):
    sys.path.insert(0, folder)
