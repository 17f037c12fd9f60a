"""Checks that a restore brings back everything that a cache holds.

A newer transformers may keep more than keys, values and states. That would be missing after a
restore, without an error. So a cache is copied as by a restore, and each attribute compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from hybrid_pages.transformers import layers
from hybrid_pages.transformers.cache_io import fill
from hybrid_pages.transformers.layout import KEYS, Layout
from hybrid_pages.transformers.versions import UnknownError

# Attributes that are not compared: device and dtype are compared with each tensor. In a layer with
# attention and states they are those of whichever was written first.
_PLACES = {"device", "dtype"}


def require_restorable(layout: Layout, cache: Any, fresh: Any) -> None:
    """Fills a fresh cache as a restore would, and compares it with the first one.

    Raises:
        UnknownError: names the first attribute that a restore would not bring back.
    """
    tensors, seen = {}, 0
    for spec in layout.arrays():
        layer = cache.layers[spec.layer]
        if spec.is_state:
            tensors[spec] = layers.states(layer)[spec.kind, spec.index].clone()
        else:
            held = layers.tokens(layer)
            seen = held.seen
            tensors[spec] = (held.keys if spec.kind == KEYS else held.values).clone()
    fill(fresh, tensors, seen)
    for index, (first, copy) in enumerate(zip(cache.layers, fresh.layers, strict=True)):
        lost = next(_differences(vars(first), vars(copy)), None)
        if lost is not None:
            raise UnknownError(
                f"cache layer {index}: expected {type(first).__name__} to be restored whole, found "
                f"that {lost} would be another"
            )


def _differences(first: dict[str, Any], copy: dict[str, Any]) -> Iterator[str]:
    for name in sorted(first.keys() | copy.keys()):
        if name in _PLACES:
            continue
        if name not in first or name not in copy or not _equal(first[name], copy[name]):
            yield name


def _equal(first: Any, copy: Any) -> bool:
    if first is copy:
        return True
    if type(first) is not type(copy):
        return False
    if isinstance(first, torch.Tensor):
        if (first.shape, first.dtype, first.device) != (copy.shape, copy.dtype, copy.device):
            return False
        raw = (each.contiguous().reshape(-1).view(torch.uint8) for each in (first, copy))
        return torch.equal(*raw)
    if isinstance(first, dict):
        return first.keys() == copy.keys() and all(_equal(first[k], copy[k]) for k in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(copy) and all(map(_equal, first, copy))
    return bool(first == copy)
