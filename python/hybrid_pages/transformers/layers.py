"""One layer of a Hugging Face cache, read and written: its tensors and the flags that go with them.

The layers are those of ``transformers/cache_utils.py``. Tensors have a batch row in front, which is
always the only one here. Tensors that exist are written with ``copy_``: a captured graph keeps its
addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import cache_utils

from hybrid_pages.adapter.layout import has_only_flags
from hybrid_pages.transformers.versions import UnknownError, UnsupportedError


def _kinds(*names: str) -> tuple[type[Any], ...]:
    """Those kinds of layers that this version of transformers has."""
    found = (getattr(cache_utils, name, None) for name in names)
    return tuple(kind for kind in found if isinstance(kind, type))


_DYNAMIC_WINDOW = _kinds("DynamicSlidingWindowLayer")
_STATIC = _kinds("StaticLayer")
_STATIC_WINDOW = _kinds("StaticSlidingWindowLayer")
_ATTENTION = _kinds("DynamicLayer") + _STATIC
_WINDOW = _DYNAMIC_WINDOW + _STATIC_WINDOW
_STATES = _kinds("LinearAttentionLayer")
# Exactly these: a subclass may keep more than this module would move.
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
    """The keys and values that an attention layer holds: of the tokens [first, seen).

    keys, values: ``[rows, heads, seen - first, dim]``, views of the cache.
    """

    seen: int
    first: int
    keys: torch.Tensor
    values: torch.Tensor


def require_known(index: int, layer: Any) -> None:
    """Rejects a kind of layer, or a mode of it, that this module cannot move whole.

    Raises:
        UnknownError: a kind that it does not know, and that keeps something.
        UnsupportedError: names the layer and what was found.
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
    """Whether a layer is a place without a cache. It may be one that has not begun to keep any."""
    return type(layer) not in _KNOWN and has_only_flags(layer)


def has_tokens(layer: Any) -> bool:
    """Whether the layer keeps keys and values."""
    return isinstance(layer, _ATTENTION)


def is_window(layer: Any) -> bool:
    """Whether it keeps them for a sliding window only."""
    return isinstance(layer, _WINDOW)


def has_states(layer: Any) -> bool:
    """Whether the layer keeps recurrent states. It may stay without any: a layer of experts."""
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
    """The tokens that an attention layer holds; it has seen some."""
    count = seen(layer)
    if isinstance(layer, _STATIC):
        held = min(count, layer.max_cache_len)
        return Tokens(count, count - held, layer.keys[:, :, :held], layer.values[:, :, :held])
    return Tokens(count, count - layer.keys.shape[-2], layer.keys, layer.values)


def states(layer: Any) -> dict[tuple[str, int], torch.Tensor]:
    """The states that a layer holds, by kind and index, each with the batch row in front."""
    pairs = ((CONV, layer.conv_states), (RECURRENT, layer.recurrent_states))
    return {
        (kind, index): state
        for kind, held in pairs
        for index, state in held.items()
        if state is not None
    }


def is_fresh(layer: Any) -> bool:
    """Whether the layer has seen nothing, as after its construction or ``reset``."""
    return not (
        (has_tokens(layer) and seen(layer))
        or (has_states(layer) and any(layer.has_previous_state.values()))
    )


def write_tokens(layer: Any, keys: torch.Tensor, values: torch.Tensor, count: int) -> None:
    """Makes a fresh layer one that has seen ``count`` tokens.

    keys, values: the last of them, ``[1, heads, at most count, dim]``, at least a window's.
    """
    if not layer.is_initialized:
        layer.lazy_initialization(keys[:, :, :0], values[:, :, :0])
    window = kept(layer)
    wanted = count if window is None else min(count, window)
    held = min(wanted, keys.shape[-2])
    keys, values = keys[:, :, keys.shape[-2] - held :], values[:, :, values.shape[-2] - held :]
    if isinstance(layer, _STATIC):
        # The oldest token of a full window is dropped before it is read: it may stay empty.
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
    """Sets one state of a fresh layer, and the flags that say so."""
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
