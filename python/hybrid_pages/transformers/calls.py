"""The arguments that take a cache: newer transformers call ``past_key_values`` ``cache``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

_NAMES = ("past_key_values", "cache")


def forward_arguments(model: Any, cache: Any, optional: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a forward pass beside its ids: those optional ones that the model takes."""
    accepted = inspect.signature(model.forward).parameters
    name = next((name for name in _NAMES if name in accepted), cache_argument())
    found = {key: value for key, value in optional.items() if key in accepted}
    return {name: cache, "use_cache": True} | found


@functools.cache
def cache_argument() -> str:
    """The argument of ``generate`` that takes a cache."""
    from transformers.generation import GenerationMixin

    accepted = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
    return next((name for name in _NAMES if name in accepted), _NAMES[-1])
