"""CPU kernels made to take the strides that GPU kernels take."""

from __future__ import annotations

from typing import Any

import torch


def install() -> None:
    """Puts them in place."""
    from vllm import _custom_ops

    _custom_ops.onednn_mm = _of_any_strides(_custom_ops.onednn_mm)
    _custom_ops.weight_packed_linear_cpu = _packed_of_any_strides(
        _custom_ops.weight_packed_linear_cpu
    )
    _custom_ops.causal_conv1d_fwd_cpu = _of_one_token(_custom_ops.causal_conv1d_fwd_cpu)


def _of_any_strides(multiply: Any) -> Any:
    """Linear layers: Mamba-1 hands them transposed tensors."""

    def multiply_of_any_strides(
        handler: Any, x: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        return multiply(handler, x if x.stride(-1) == 1 else x.contiguous(), bias)

    return multiply_of_any_strides


def _packed_of_any_strides(multiply: Any) -> Any:
    """The same on processors with AMX."""

    def multiply_of_any_strides(x: torch.Tensor, *args: Any) -> torch.Tensor:
        return multiply(x if x.stride(-1) == 1 else x.contiguous(), *args)

    return multiply_of_any_strides


def _of_one_token(convolve: Any) -> Any:
    """Gated DeltaNet's convolution on CPUs with bfloat16: a prompt of one token is a row of a
    wider tensor, whose distance to the next row means nothing and is looked at all the same."""

    def convolve_of_one_token(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if x.size(1) == 1:
            x = x.as_strided(x.size(), (1, x.size(0)))
        return convolve(x, *args, **kwargs)

    return convolve_of_one_token
