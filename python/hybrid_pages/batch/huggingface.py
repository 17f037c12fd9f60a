"""Converts between a `Batch` and the caches of Hugging Face transformers 5.x.

`from_transformers` takes the rows of a DynamicCache into a `Batch`, where they are merged,
extended, filtered and extracted; `to_transformers` makes a DynamicCache that a model goes on with.
Later steps of one side do not show in the other. States are copied; keys and values may be shared
until a step makes longer ones, so do not write into them. Layouts are those of
`transformers.cache_utils`: keys and values [rows, heads, columns, head_dim], convolution states
[rows, channels, K], recurrent states as the model has them.

A model then computes for each row what it would for the row alone, up to rounding, if it is given

- the same number of tokens for every row, whatever the rows' lengths, with `model_inputs`;
- or a whole batch of new rows, padded at the left, with `prefill_inputs`.

Some models of transformers 5.19 differ:

- Padding among rows that have a convolution or recurrent state is wrong: zeros in the place of
  padded inputs enter the convolution, and the recurrent state decays. Prefill such rows one by one,
  or in groups of equal numbers of tokens, and merge them.
- Jamba, Zamba, Mamba and FalconMamba forget their state when they are given several tokens after
  one. One token at a time is right.
- Mamba and FalconMamba take the mask for one of the new tokens. After the prefill, give them none.
- With longrope and dynamic rope, the longest row of a step sets the frequencies of all rows.
  `to_transformers` rejects rows for which these would be others than alone, but looks only at the
  next token. A prefill is not checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedConfig, cache_utils

from hybrid_pages._core import InvalidArgumentError
from hybrid_pages.adapter.layout import has_only_flags
from hybrid_pages.batch.attention import AttentionCache
from hybrid_pages.batch.batch import Batch
from hybrid_pages.batch.checks import at_least_one, per_row, whole_numbers
from hybrid_pages.batch.composite import CompositeCache
from hybrid_pages.batch.layer import LayerCache
from hybrid_pages.batch.rope import check_frequencies


def _kinds(*names: str) -> set[type[Any]]:
    """The kinds of layers with these names that the installed transformers has."""
    found = (getattr(cache_utils, name, None) for name in names)
    return {kind for kind in found if isinstance(kind, type)}


# Which kinds of layers hold keys and values, a window of them, or states.
_WINDOW = _kinds("DynamicSlidingWindowLayer", "LinearAttentionAndSlidingWindowAttentionLayer")
_ATTENTION = _WINDOW | _kinds("DynamicLayer", "LinearAttentionAndFullAttentionLayer")
_STATES = _kinds(
    "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer",
)
# Layers of these kinds keep something. Until they do, their attributes look like those of a layer
# that never keeps anything.
_KEEPING = tuple(_kinds("CacheLayerMixin", "LinearAttentionCacheLayerMixin"))


def from_transformers(cache: DynamicCache, lengths: Iterable[int] | None = None) -> Batch:
    """Takes the rows of a cache into a batch.

    lengths: the tokens of each row, without the padding at its left; all columns by default.
    A cache that was never used is one empty row, or as many as `lengths` has zeros.

    A cache does not show its padding, so these mistakes give wrong rows: rows padded at the right,
    and no lengths for rows padded at the left.

    Raises InvalidArgumentError for a cache that is offloaded, records its past or has layers of
    another kind, such as static or quantized ones, and for lengths that do not fit.
    """
    if not isinstance(cache, DynamicCache) or getattr(cache, "offloading", False):
        raise InvalidArgumentError(
            f"expected a DynamicCache in one place, found {type(cache).__name__}"
            f"{', offloaded' if getattr(cache, 'offloading', False) else ''}"
        )
    tensors = [tensor for layer in cache.layers for tensor in _tensors(layer)]
    columns = _columns(cache)
    if lengths is not None:
        lengths = whole_numbers("lengths", lengths)
        size = at_least_one("rows", tensors[0].shape[0] if tensors else len(lengths))
        lengths = per_row("lengths", lengths, size)
    elif columns is None:
        raise InvalidArgumentError(
            "expected lengths for a cache without attention layers, found none: its states do "
            "not tell how many tokens they have seen"
        )
    else:
        size = tensors[0].shape[0] if tensors else 1
        lengths = [columns] * size
    if columns is not None and columns != max(lengths):
        raise InvalidArgumentError(
            f"expected lengths of at most the cache's {columns} columns, and one that fills them, "
            f"found {lengths}"
        )
    return Batch([_take(layer, size) for layer in cache.layers], lengths)


def to_transformers(batch: Batch, config: PreTrainedConfig) -> DynamicCache:
    """Makes a cache with the rows of a batch, for the model of `config` to go on with.

    The model also needs the `model_inputs` for the rows' lengths. Raises InvalidArgumentError if
    padding is not finalized, if the layers are of another structure (kinds, windows or number;
    weights and sizes of heads are not compared), or if the rows' next tokens need different rotary
    frequencies. To decode many steps on one cache, come back before the longest row reaches the
    length at which longrope or dynamic rope change them.
    """
    if batch.prepared:
        raise InvalidArgumentError("expected no announced padding, found some; finalize first")
    cache = DynamicCache(config=config)
    kinds = getattr(config.get_text_config(decoder=True), "layer_types", None) or []
    if "chunked_attention" in kinds:
        raise InvalidArgumentError("expected layers without chunked attention, found some")
    if len(cache.layers) != len(batch.layers):
        raise InvalidArgumentError(
            f"expected a batch of {len(cache.layers)} layers, found {len(batch.layers)}"
        )
    check_frequencies(config, batch.lengths)
    columns = max(batch.lengths)
    for index, (layer, rows) in enumerate(zip(cache.layers, batch.layers, strict=True)):
        expected = _take(layer, batch.size)
        try:
            expected.check_join([rows])
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"layer {index} is of another structure: {error}") from error
        _give(layer, rows, columns)
    return cache


def model_inputs(
    lengths: Iterable[int], columns: int = 1, device: torch.device | str = "cpu"
) -> dict[str, torch.Tensor]:
    """The arguments that a model needs besides `columns` new tokens for every row.

    lengths: the tokens of each row so far, as `Batch.lengths`. Returns attention_mask [rows,
    cached columns + columns], 0 at left padding, and position_ids [rows, columns].
    """
    length, longest = _lengths(lengths, device)
    at_least_one("columns", columns)
    column = torch.arange(longest + columns, device=device)
    return {
        "attention_mask": (column >= longest - length).long(),
        "position_ids": length + torch.arange(columns, device=device),
    }


def prefill_inputs(
    lengths: Iterable[int], device: torch.device | str = "cpu"
) -> dict[str, torch.Tensor]:
    """The arguments that a model needs besides the tokens of new rows, padded at the left.

    lengths: the tokens of each row. Returns attention_mask and position_ids, both [rows, columns]
    with as many columns as the longest row has tokens; the mask is 0 at left padding.
    """
    length, longest = _lengths(lengths, device)
    at_least_one("the longest row", longest)
    position = torch.arange(longest, device=device) - (longest - length)
    return {
        "attention_mask": (position >= 0).long(),
        "position_ids": position.clamp(min=0),
    }


def _lengths(lengths: Iterable[int], device: torch.device | str) -> tuple[torch.Tensor, int]:
    """The lengths as [rows, 1], and the largest."""
    numbers = whole_numbers("lengths", lengths)
    per_row("lengths", numbers, at_least_one("rows", len(numbers)))
    return torch.tensor(numbers, device=device)[:, None], max(numbers)


def _tensors(layer: Any) -> list[torch.Tensor]:
    """The tensors that a layer holds. Rejects layers of other kinds."""
    if type(layer) not in _ATTENTION | _STATES and not _keeps_nothing(layer):
        raise InvalidArgumentError(
            "expected layers of a DynamicCache for full, sliding or linear attention, found "
            f"{type(layer).__name__}"
        )
    if getattr(layer, "record_past", False):
        raise InvalidArgumentError("expected layers that hold one state, found a recorded past")
    found = [layer.keys, layer.values] if type(layer) in _ATTENTION else []
    if type(layer) in _STATES:
        found += [*layer.conv_states.values(), *layer.recurrent_states.values()]
    return [tensor for tensor in found if tensor is not None and tensor.numel()]


def _keeps_nothing(layer: Any) -> bool:
    """Whether a layer is a place without a cache.

    Such are layers of experts, and layers that use another layer's keys.
    """
    return not isinstance(layer, _KEEPING) and has_only_flags(layer)


def _columns(cache: DynamicCache) -> int | None:
    """How many tokens the attention layers have seen; None if there are none."""
    seen = [layer.get_seq_length() for layer in cache.layers if type(layer) in _ATTENTION]
    if len(set(seen)) > 1:
        raise InvalidArgumentError(f"expected attention layers of one length, found {seen}")
    return seen[0] if seen else None


def _take(layer: Any, size: int) -> CompositeCache:
    parts: dict[str, LayerCache] = {}
    if type(layer) in _ATTENTION:
        window = layer.sliding_window if type(layer) in _WINDOW else None
        known = layer.keys is not None and layer.keys.numel() > 0
        # Not copied: such a layer never writes into its keys and values, it makes longer ones.
        parts["attention"] = AttentionCache(
            size, layer.keys if known else None, layer.values if known else None, window=window
        )
    if type(layer) in _STATES:
        states: dict[str, torch.Tensor | None] = {}
        for index in range(layer.number_of_states):
            for name, state in _states(layer, index).items():
                states[name] = None if state is None else state.clone()
        parts["states"] = LayerCache(size, **states)
    return CompositeCache(parts, size)


def _give(layer: Any, rows: CompositeCache, columns: int) -> None:
    # States first: models with both in one layer write in this order.
    if type(layer) in _STATES:
        states = rows["states"].tensors
        for index in range(layer.number_of_states):
            conv, recurrent = states[f"conv{index}"], states[f"recurrent{index}"]
            if conv is not None:
                layer.lazy_initialization(
                    conv_states=conv, state_idx=index, conv_kernel_size=conv.shape[-1]
                )
            if recurrent is not None:
                layer.lazy_initialization(recurrent_states=recurrent, state_idx=index)
            for own, state in zip(_states(layer, index).values(), (conv, recurrent), strict=True):
                if state is not None and own is not None:
                    own.copy_(state)
            # In transformers the update of the convolution sets it.
            layer.has_previous_state[index] = conv is not None
    if type(layer) in _ATTENTION and rows["attention"].keys is not None:
        attention = rows["attention"]
        layer.lazy_initialization(attention.keys, attention.values)
        layer.keys, layer.values = attention.keys, attention.values
        if type(layer) in _WINDOW:
            layer.cumulative_length = columns


def _states(layer: Any, index: int) -> dict[str, torch.Tensor | None]:
    return {
        f"conv{index}": layer.conv_states[index],
        f"recurrent{index}": layer.recurrent_states[index],
    }
