"""Views of mlx arrays as numpy arrays, without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

# numpy has no bfloat16: arrays are copied as unsigned integers of the same size.
_UINTS = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}
_NUMPY = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def numpy_dtype(dtype: Any) -> Any:
    """The numpy dtype in which arrays of an mlx dtype are copied."""
    return _NUMPY[dtype.size]


def views(arrays: Sequence[mx.array]) -> list[Any]:
    """The arrays, which are computed now, as numpy arrays over the same memory.

    Writes to a view change the array. As long as a view exists, mlx copies the array's memory
    before it writes there.
    """
    raw = [array.view(_UINTS[array.dtype.size]) for array in arrays]
    mx.eval(raw)
    return [np.array(array, copy=False) for array in raw]


def blank(shape: Sequence[int], dtype: Any) -> mx.array:
    """An array of zeros with memory of its own."""
    array = mx.zeros(list(shape), dtype)
    mx.eval(array)
    return array


def are_equal(left: mx.array, right: mx.array) -> bool:
    """Whether two arrays have the same dtype, shape and bytes."""
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return False
    kind = _UINTS[left.dtype.size]
    return bool(mx.array_equal(left.view(kind), right.view(kind)).item())
