"""Decides which calls of ``stream_generate`` can use the cache.

In doubt, a call runs without it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tokenizer_utils import TokenizerWrapper

from hybrid_pages.mlx.differences import QUANTIZED_FROM

# Arguments that change neither the states of tokens nor which tokens are computed.
_HARMLESS = {
    "logits_processors",
    "max_tokens",
    "prefill_step_size",
    "prompt_progress_callback",
    "sampler",
    # These have no effect without drafts or quantised caches.
    "kv_group_size",
    "num_draft_tokens",
    "quantized_kv_start",
}


def read_prompt(tokenizer: Any, prompt: Any) -> list[int] | str:
    """The token ids of a prompt as ``stream_generate`` gets them, or why they are not known."""
    if isinstance(prompt, str):
        if not isinstance(tokenizer, TokenizerWrapper):
            tokenizer = TokenizerWrapper(tokenizer)
        bos = tokenizer.bos_token
        prompt = tokenizer.encode(
            prompt, add_special_tokens=bos is None or not prompt.startswith(bos)
        )
    if isinstance(prompt, mx.array):
        if prompt.ndim != 1 or not mx.issubdtype(prompt.dtype, mx.integer):
            return "prompt is no row of ids"
        prompt = prompt.tolist()
    try:
        ids = [operator.index(token) for token in prompt]
    except TypeError:
        return "prompt is no row of ids"
    return ids or "empty prompt"


def uncached_reason(model: Any, arguments: Mapping[str, Any], tokens: int | None) -> str | None:
    """Why a call with these arguments has to run without the cache; None if it can use it.

    tokens: the most that the model sees, of prompt and text; None for no limit.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    for name, says_nothing in (("max_kv_size", _keeps_all), ("kv_bits", _quantises_nothing)):
        if name in given and says_nothing(model, given, tokens):
            del given[name]
    unknown = sorted(given.keys() - _HARMLESS)
    return unknown[0] if unknown else None


def _keeps_all(model: Any, given: Mapping[str, Any], tokens: int | None) -> bool:
    """Whether ``max_kv_size`` has no effect: it is long enough, or the model ignores it."""
    return hasattr(model, "make_cache") or (tokens is not None and tokens <= given["max_kv_size"])


def _quantises_nothing(model: Any, given: Mapping[str, Any], tokens: int | None) -> bool:
    """Whether ``kv_bits`` has no effect: the text is short, or no cache has keys."""
    if tokens is not None and tokens < given.get("quantized_kv_start", QUANTIZED_FROM):
        return True
    return not quantises(model)


def quantises(model: Any) -> bool:
    """Whether ``kv_bits`` has an effect on a model's caches."""
    return any(hasattr(part, "to_quantized") for part in make_prompt_cache(model))
