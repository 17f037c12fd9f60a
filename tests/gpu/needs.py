"""What gpu-check will skip on this machine, and for want of what: a line a stage or part of one."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DRY = bool(os.environ.get("GPU_CHECK_DRY"))
CUDA_TOOLS = "/usr/local/cuda/bin"


def library(name: str) -> str | None:
    """Why a library can't be imported; None if it can."""
    try:
        importlib.import_module(name)
    except Exception as error:
        # A library that is there may fail in any way.
        return (str(error).strip() or repr(error)).splitlines()[-1]
    return None


def torch_on_gpu() -> str | None:
    """Why torch can't be used; a dry run needs no device."""
    why = library("torch")
    if why is None and not DRY and not sys.modules["torch"].cuda.is_available():
        return "torch sees no CUDA device"
    return why


def transformers() -> str | None:
    """Why Hugging Face models can't be tested."""
    return "a dry run" if DRY else library("hybrid_pages.transformers")


def vllm() -> str | None:
    """Why the connector can't be tested."""
    if DRY:
        return "a dry run"
    sys.path.append(str(ROOT / "tests" / "scheduler"))
    why = library("vllm_environment") or library("vllm")
    return why and f"{why} (make gpu-wheels collects vLLM's files)"


def sanitizer() -> str | None:
    """Why compute-sanitizer can't run. In a dry run it does only if it is named."""
    named = os.environ.get("COMPUTE_SANITIZER")
    if DRY and not named:
        return "a dry run"
    path = os.pathsep.join((os.environ.get("PATH", ""), CUDA_TOOLS))
    if shutil.which(named or "compute-sanitizer", path=path):
        return None
    return f"no {named or 'compute-sanitizer'} on the PATH, nor in {CUDA_TOOLS}"


def main() -> None:
    numpy, pytest, torch = library("numpy"), library("pytest"), torch_on_gpu()
    found = {
        "tests": pytest or numpy,
        "tests of torch's arrays": torch,
        "tests of CuPy's arrays": torch or library("cupy"),
        "connector": pytest or torch or vllm(),
        "transformers": pytest or torch or transformers(),
        "memcheck": numpy or sanitizer(),
        "racecheck": numpy or sanitizer(),
        "odd-shapes": numpy if DRY else None,
        "first-hour: expandable segments": torch,
        "benchmark": torch or numpy,
        "benchmark: CuPy": torch or library("cupy"),
        "benchmark: picture": torch or library("matplotlib"),
    }
    for name, why in found.items():
        if why:
            print(f"{name}\t{why}")


if __name__ == "__main__":
    main()
