"""A start of an engine that is cheaper, and that copes with all that is imported."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from vllm.model_executor.models import registry
from vllm.triton_utils import dispatcher


def install() -> None:
    """Looks at model classes here: vLLM does it in a new process, so as not to start CUDA."""
    registry._run_in_subprocess = lambda look: look()
    dispatcher._rebind_kernels = _past_llvmlite(dispatcher._rebind_kernels)


def _past_llvmlite(rebind: Any) -> Any:
    """vLLM looks for kernels in all modules, and stumbles over the library of this one."""

    def rebind_past_llvmlite(kernels: Any) -> None:
        loaded = {name: each for name, each in sys.modules.items() if "llvmlite" not in name}
        dispatcher.sys = SimpleNamespace(modules=loaded)
        try:
            rebind(kernels)
        finally:
            dispatcher.sys = sys

    return rebind_past_llvmlite
