"""What differs between versions and devices of torch and transformers: arguments and errors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import torch

_CACHE_ARGUMENTS = ("past_key_values", "cache")  # newer versions may use the second
_OUT_OF_MEMORY: type[BaseException] = getattr(
    torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError
)
_WORDS = ("out of memory", "can't allocate memory", "not enough memory", "cannot allocate memory")


def forward_arguments(model: Any, cache: Any, optional: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a forward pass with a cache, without the token ids.

    optional: arguments that are left out where the model's ``forward`` does not take them.
    """
    accepted = inspect.signature(model.forward).parameters
    name = next((name for name in _CACHE_ARGUMENTS if name in accepted), cache_argument())
    found = {key: value for key, value in optional.items() if key in accepted}
    return {name: cache, "use_cache": True} | found


@functools.cache
def cache_argument() -> str:
    """The name of the argument of ``generate`` that takes a cache."""
    from transformers.generation import GenerationMixin

    accepted = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    return next((name for name in _CACHE_ARGUMENTS if name in accepted), _CACHE_ARGUMENTS[-1])


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that an allocation failed, on any device.

    On a CPU torch raises a plain RuntimeError, which only its text tells from others.
    """
    if isinstance(error, (MemoryError, _OUT_OF_MEMORY)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _WORDS)
