"""Errors that mean that memory ran out, on any device."""

from __future__ import annotations

import torch

_CUDA: type[BaseException] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
_WORDS = ("out of memory", "can't allocate memory", "not enough memory", "cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: torch raises a plain RuntimeError on a CPU."""
    if isinstance(error, (MemoryError, _CUDA)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _WORDS)
