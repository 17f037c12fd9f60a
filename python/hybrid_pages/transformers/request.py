"""Decides which calls of ``generate`` can use the cache. In doubt, a call runs without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import generation

# Arguments of `generate` that change neither the states of tokens nor which tokens are computed.
_HARMLESS = {
    "generation_config",
    "logits_processor",
    "stopping_criteria",
    "prefix_allowed_tokens_fn",
    "streamer",
    "tokenizer",
}
_MODES = ("GREEDY_SEARCH", "SAMPLE")
# Values of `cache_implementation` for a static cache; two of them are deprecated.
_STATIC = ("static", "sliding_window", "hybrid_chunked")
_CACHES = (None, "dynamic", *_STATIC)


@dataclass(frozen=True)
class Request:
    """A call that can use the cache.

    ids: the prompt, ``[1, tokens]``. static_tokens: how many tokens a static cache needs room for;
    None for a dynamic cache. names_cache: whether the call names a kind of cache, which
    ``generate`` does not accept together with a cache. chunk: how many tokens of the prompt may be
    computed in one pass; None for any number.
    """

    ids: torch.Tensor
    static_tokens: int | None
    names_cache: bool = False
    chunk: int | None = None

    @property
    def tokens(self) -> int:
        return int(self.ids.shape[1])


def read_request(model: Any, inputs: Any, arguments: Mapping[str, Any]) -> Request | str:
    """The request of a call of ``generate``, or the reason why it must run without the cache."""
    # Arguments that are None count: they override the model's generation config.
    given = dict(arguments)
    ids = given.pop("input_ids", None) if inputs is None else inputs
    if given.pop("input_ids", None) is not None:
        return "two inputs"
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or ids.is_floating_point():
        return "no input_ids"
    if ids.shape[0] != 1:
        return "more than one row"
    if ids.device != model.device:
        return "input_ids on another device"
    if model.training:
        return "training mode"
    for name in _HARMLESS:
        given.pop(name, None)
    mask = given.pop("attention_mask", None)
    base = arguments.get("generation_config")
    config, rest = model._prepare_generation_config(base, **given)
    unknown = sorted(name for name, value in rest.items() if value is not None)
    if unknown:
        return f"argument {unknown[0]}"
    return (
        _uncached_mode(config)
        or _uncached_padding(config, ids, mask)
        or _request(model, config, ids, (base, given))
    )


def _uncached_mode(config: Any) -> str | None:
    mode, chunk = config.get_generation_mode(), config.prefill_chunk_size
    if mode not in [getattr(generation.GenerationMode, name) for name in _MODES]:
        return f"{mode.value} decoding"
    checks = (
        ("num_return_sequences", (config.num_return_sequences or 1) > 1),
        ("use_cache=False", config.use_cache is False),
        (
            f"cache_implementation={config.cache_implementation}",
            config.cache_implementation not in _CACHES,
        ),
        ("guidance_scale", config.guidance_scale not in (None, 1, 1.0)),
        (f"prefill_chunk_size={chunk}", chunk is not None and not _is_size(chunk)),
        ("token_healing", bool(config.token_healing)),
        ("is_assistant", bool(config.is_assistant)),
    )
    return next((name for name, found in checks if found), None)


def _is_size(chunk: Any) -> bool:
    return isinstance(chunk, int) and not isinstance(chunk, bool) and chunk >= 1


def _uncached_padding(config: Any, ids: torch.Tensor, mask: Any) -> str | None:
    """Whether a prompt has padding, by its mask or because transformers would see it in the ids."""
    if mask is not None:
        whole = (
            isinstance(mask, torch.Tensor) and mask.shape == ids.shape and bool((mask == 1).all())
        )
        return None if whole else "padding"
    pad, eos = config.pad_token_id, config.eos_token_id
    ends = eos if isinstance(eos, list) else [eos]
    if pad is not None and pad not in ends and bool((ids == pad).any()):
        return "padding"
    return None


def _request(model: Any, config: Any, ids: torch.Tensor, given: tuple[Any, Any]) -> Request | str:
    """The request, with the room that a static cache needs, counted as ``generate`` does."""
    if ids.shape[1] == 0:
        return "empty prompt"
    named, chunk = config.cache_implementation is not None, config.prefill_chunk_size
    if config.cache_implementation not in _STATIC:
        return Request(ids, None, named, chunk)
    base, arguments = given
    limits = (arguments.get("max_length"), getattr(base, "max_length", None))
    set_by_caller = any(
        limit is not None for limit in (*limits, model.generation_config.max_length)
    )
    length = int(ids.shape[1])
    if config.max_new_tokens is not None:
        total = length + config.max_new_tokens
    else:
        total = config.max_length if set_by_caller else length + config.max_length
    if total <= length:
        return "no room for new tokens"
    return Request(ids, max(total - 1, config.max_cache_len or 0), named, chunk)
