"""vLLM's own Triton kernels of Mamba-2, in place of what runs on a CPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from vllm.platforms import current_platform

_OPS = "vllm.model_executor.layers.mamba.ops"
_CPU_KERNELS = (
    "causal_conv1d_update_cpu_vec",
    "mamba_chunk_scan_fwd_cpu",
    "selective_state_update_cpu",
)


@contextmanager
def triton_kernels() -> Iterator[None]:
    """Inside the block every layer's convolution, scan, update and export are Triton's.

    The kernels of the CPU are out of reach meanwhile, and remain so for modules that are imported
    inside the block: such tests need a process of their own.
    """
    from vllm import _custom_ops
    from vllm.model_executor.layers.mamba import mamba_mixer2

    conv, scan, update, export = map(
        _as_on_a_gpu, ("causal_conv1d", "ssd_combined", "mamba_ssm", "ssd_checkpoint")
    )

    def selective_state_update(
        state: Any, x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, dt_bias: Any, **others: Any
    ) -> None:
        update.selective_state_update(state, x, dt, A, B, C, D=D, dt_bias=dt_bias, **others)

    with pytest.MonkeyPatch.context() as patch:
        for name, replacement in {
            "causal_conv1d_fn": conv.causal_conv1d_fn,
            "causal_conv1d_update": conv.causal_conv1d_update,
            "mamba_chunk_scan_combined_varlen": scan.mamba_chunk_scan_combined_varlen,
            "selective_state_update": selective_state_update,
            "store_prefill_checkpoint": export.store_prefill_checkpoint,
        }.items():
            patch.setattr(mamba_mixer2, name, replacement)
        for name in _CPU_KERNELS:
            patch.setattr(_custom_ops, name, _unexpected)
        yield


def _unexpected(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("expected one of Triton's kernels, found one of the CPU's")


def _as_on_a_gpu(name: str) -> ModuleType:
    """A second copy of a module, without what it puts in place of its kernels on a CPU."""
    spec = importlib.util.find_spec(f"{_OPS}.{name}")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(current_platform), "is_cpu", lambda self: False)
        spec.loader.exec_module(module)
    return module
