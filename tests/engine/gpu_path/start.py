"""A cheaper start of an engine."""

from __future__ import annotations

from vllm.model_executor.models import registry


def install() -> None:
    """Looks at model classes here: vLLM does it in a new process, so as not to start CUDA."""
    registry._run_in_subprocess = lambda look: look()
