"""The settings of torch, of this thread and of the process, that change what a model computes.

Left out, since they only change how sums are rounded: the number of threads and cuDNN's benchmark
mode.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch


def current() -> Hashable:
    """The settings of this thread and process that change what torch computes, to be compared."""
    cuda = torch.backends.cuda
    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        _precisions(),
        cuda.matmul.allow_fp16_reduced_precision_reduction,
        cuda.matmul.allow_bf16_reduced_precision_reduction,
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
        cuda.fp16_bf16_reduction_math_sdp_allowed(),
        torch.backends.mkldnn.enabled,
        torch.backends.cudnn.enabled,
        _default_device(),
    )


def uncached_reason(model: Any) -> str | None:
    """Why this thread must run a model without the cache; None if nothing speaks against it.

    Autocast, global hooks and torch's modes change what every module computes.
    """
    if any(torch.is_autocast_enabled(kind) for kind in {"cpu", model.device.type}):
        return "autocast"
    module = torch.nn.modules.module
    if module._global_forward_hooks or module._global_forward_pre_hooks:
        return "global forward hooks"
    if torch._C._len_torch_dispatch_stack():
        return "torch dispatch mode"
    if any(type(mode) is not torch.utils._device.DeviceContext for mode in _function_modes()):
        return "torch function mode"
    return None


def _function_modes() -> list[Any]:
    if not torch._C._len_torch_function_stack():
        return []
    return list(torch.overrides._get_current_function_mode_stack())


def _default_device() -> str:
    return ",".join(str(mode.device) for mode in _function_modes() if hasattr(mode, "device"))


def rounding(model: Any) -> float:
    """The relative rounding error of a model's arithmetic: the epsilon of its coarsest dtype.

    Dtypes of one byte do not count: weights are stored in them, and computed in others.
    """
    dtypes = {tensor.dtype for tensor in model.parameters() if tensor.is_floating_point()}
    found = [torch.finfo(dtype).eps for dtype in dtypes if dtype.itemsize > 1]
    lowered = set(_precisions(model.device.type))
    # Products of float32 in the precision of bfloat16, or in TF32, which has that of float16.
    if lowered & {"bf16", "medium"}:
        found.append(torch.finfo(torch.bfloat16).eps)
    elif lowered & {"tf32", "high", True}:
        found.append(torch.finfo(torch.float16).eps)
    return max(found, default=torch.finfo(torch.float32).eps)


def _precisions(kind: str = "") -> tuple[Hashable, ...]:
    """The precision of float32 products by backend; older versions of torch have flags instead.

    kind: of a device, for the backends that it uses; empty for all.
    """
    getter = getattr(torch._C, "_get_fp32_precision_getter", None)
    if getter is None:
        flags = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
        return (*flags, torch.get_float32_matmul_precision())
    backends = {"cpu": ("mkldnn",), "cuda": ("cuda",)}.get(kind, ("cuda", "mkldnn"))
    pairs = [("generic", "all")]
    pairs += [(b, op) for b in backends for op in ("all", "matmul", "conv", "rnn")]
    return tuple(getter(backend, op) for backend, op in pairs)
