"""Which calls of ``stream_generate`` can use the prefix cache. In doubt, a call runs without it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper

# Arguments that change neither what a token's state is nor which tokens are computed.
_HARMLESS = {
    "logits_processors",
    "max_tokens",
    "prefill_step_size",
    "prompt_progress_callback",
    "sampler",
    # Of drafts and of quantised caches: without those they say nothing.
    "kv_group_size",
    "num_draft_tokens",
    "quantized_kv_start",
}


def read_prompt(tokenizer: Any, prompt: Any) -> list[int] | str:
    """The ids of a prompt as ``stream_generate`` finds them, or why they can't be told."""
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
    ids = list(prompt)
    if not all(isinstance(token, int) for token in ids):
        return "prompt is no row of ids"
    return ids or "empty prompt"


def uncached_reason(model: Any, arguments: Mapping[str, Any]) -> str | None:
    """Why a call with these arguments has to run without the cache; None if it has not."""
    given = {name: value for name, value in arguments.items() if value is not None}
    if "max_kv_size" in given and hasattr(model, "make_cache"):
        # Models that make their own caches ignore it.
        del given["max_kv_size"]
    unknown = sorted(given.keys() - _HARMLESS)
    return unknown[0] if unknown else None
