"""Reads and writes one layer of a Hugging Face cache: its tensors and the flags beside them.

The kinds of layers are those of ``transformers/cache_utils.py``. Dimension 0 of a tensor is the
batch, here of one row. Existing tensors are written with ``copy_``, so that captured CUDA graphs
stay valid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import cache_utils

from hybrid_pages.adapter.layout import has_only_flags
from hybrid_pages.transformers.versions import UnknownError, UnsupportedError


def _kinds(*names: str) -> tuple[type[Any], ...]:
    """The kinds of layers with these names that the installed transformers has."""
    found = (getattr(cache_utils, name, None) for name in names)
    return tuple(kind for kind in found if isinstance(kind, type))


_DYNAMIC_WINDOW = _kinds("DynamicSlidingWindowLayer")
_STATIC = _kinds("StaticLayer")
_STATIC_WINDOW = _kinds("StaticSlidingWindowLayer")
_ATTENTION = _kinds("DynamicLayer") + _STATIC
_WINDOW = _DYNAMIC_WINDOW + _STATIC_WINDOW
_STATES = _kinds("LinearAttentionLayer")
# Subclasses do not count: they may keep more than this module copies.
_KNOWN = (
    *_ATTENTION,
    *_WINDOW,
    *_STATES,
    *_kinds(
        "LinearAttentionAndFullAttentionLayer",
        "LinearAttentionAndSlidingWindowAttentionLayer",
        "LinearAttentionAndStaticFullAttentionLayer",
        "LinearAttentionAndStaticSlidingWindowAttentionLayer",
    ),
)

CONV, RECURRENT = "conv", "recurrent"


@dataclass(frozen=True)
class Tokens:
    """The keys and values that an attention layer holds, of the tokens [first, seen).

    seen: how many tokens the layer has seen. keys, values: ``[rows, heads, seen - first, dim]``,
    views of the cache.
    """

    seen: int
    first: int
    keys: torch.Tensor
    values: torch.Tensor


def require_known(index: int, layer: Any) -> None:
    """Rejects a layer that this module cannot copy whole.

    index: of the layer, for errors.

    Raises:
        UnknownError: an unknown kind of layer that keeps something.
        UnsupportedError: a layer that records its past.
    """
    if type(layer) not in _KNOWN and not keeps_nothing(layer):
        raise UnknownError(
            f"cache layer {index}: expected an attention, sliding or linear-attention layer, "
            f"found {type(layer).__name__}"
        )
    if getattr(layer, "record_past", False):
        raise UnsupportedError(
            f"cache layer {index}: expected one that keeps its working size, found one that "
            "records its past to be cropped (assisted decoding)"
        )


def keeps_nothing(layer: Any) -> bool:
    """Whether a layer of an unknown kind keeps nothing, or nothing yet."""
    return type(layer) not in _KNOWN and has_only_flags(layer)


def has_tokens(layer: Any) -> bool:
    """Whether a layer keeps keys and values."""
    return isinstance(layer, _ATTENTION)


def is_window(layer: Any) -> bool:
    """Whether a layer keeps the keys and values of a sliding window only."""
    return isinstance(layer, _WINDOW)


def has_states(layer: Any) -> bool:
    """Whether a layer can keep recurrent states. A layer of experts never has any."""
    return isinstance(layer, _STATES)


def capacity(layer: Any) -> int | None:
    """How many tokens a static full-attention layer can ever see; None without a limit."""
    return layer.max_cache_len if isinstance(layer, _STATIC) and not is_window(layer) else None


def seen(layer: Any) -> int:
    """How many tokens an attention layer has seen."""
    return int(layer.get_seq_length())


def kept(layer: Any) -> int | None:
    """How many of the last tokens a window layer keeps; None for full attention."""
    if isinstance(layer, _DYNAMIC_WINDOW):
        return int(layer.sliding_window) - 1
    return int(layer.max_cache_len) if is_window(layer) else None


def tokens(layer: Any) -> Tokens:
    """The keys and values that an attention layer holds. It must have seen a token."""
    count = seen(layer)
    if isinstance(layer, _STATIC):
        held = min(count, layer.max_cache_len)
        return Tokens(count, count - held, layer.keys[:, :, :held], layer.values[:, :, :held])
    return Tokens(count, count - layer.keys.shape[-2], layer.keys, layer.values)


def states(layer: Any) -> dict[tuple[str, int], torch.Tensor]:
    """The recurrent states that a layer holds, by kind and index, each with the batch in front."""
    pairs = ((CONV, layer.conv_states), (RECURRENT, layer.recurrent_states))
    return {
        (kind, index): state
        for kind, held in pairs
        for index, state in held.items()
        if state is not None
    }


def is_fresh(layer: Any) -> bool:
    """Whether a layer has seen nothing, as after its construction or ``reset``."""
    return not (
        (has_tokens(layer) and seen(layer))
        or (has_states(layer) and any(layer.has_previous_state.values()))
    )


def write_tokens(layer: Any, keys: torch.Tensor, values: torch.Tensor, count: int) -> None:
    """Fills a fresh layer, which then has seen ``count`` tokens.

    keys, values: of the last tokens, ``[1, heads, tokens, dim]``: at least those that the layer's
    window sees.
    """
    if not layer.is_initialized:
        layer.lazy_initialization(keys[:, :, :0], values[:, :, :0])
    window = kept(layer)
    wanted = count if window is None else min(count, window)
    held = min(wanted, keys.shape[-2])
    keys, values = keys[:, :, keys.shape[-2] - held :], values[:, :, values.shape[-2] - held :]
    if isinstance(layer, _STATIC):
        # The oldest place of a full window is dropped before it is read, and may stay empty.
        layer.keys[:, :, wanted - held : wanted].copy_(keys)
        layer.values[:, :, wanted - held : wanted].copy_(values)
        layer.cumulative_length.fill_(wanted)
    else:
        layer.keys, layer.values = keys, values
    if isinstance(layer, _STATIC_WINDOW):
        layer.cumulative_length_int = count
    elif is_window(layer):
        layer.cumulative_length = count


def write_state(layer: Any, kind: str, index: int, state: torch.Tensor) -> None:
    """Sets one recurrent state of a fresh layer, and the flags for it."""
    if kind == CONV:
        if not layer.is_conv_states_initialized[index]:
            layer.lazy_initialization(
                conv_states=state, state_idx=index, conv_kernel_size=state.shape[-1]
            )
        layer.conv_states[index].copy_(state)
        layer.has_previous_state[index] = True
    else:
        if not layer.is_recurrent_states_initialized[index]:
            layer.lazy_initialization(recurrent_states=state, state_idx=index)
        layer.recurrent_states[index].copy_(state)
