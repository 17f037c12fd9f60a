"""Rotary embeddings whose frequencies depend on the length of the whole sequence.

With "dynamic" and "longrope" scaling (``dynamic_rope_update`` in ``modeling_rope_utils.py``) a
forward pass chooses its frequencies by the largest position that it sees. The keys of equal tokens
then differ between a short and a long prompt. A *regime* is a range of lengths with equal keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

_DERIVED = ("inv_freq", "long_inv_freq", "max_seq_len_cached")
"""Attributes that a rotary embedding computes in a forward pass from its config and the length."""


@dataclass(frozen=True)
class Regime:
    """A range of lengths: passes over more than ``floor`` and at most ``reach`` tokens, without a
    limit if that is None, give equal keys."""

    name: str = ""
    floor: int = 0
    reach: int | None = None


def regime(model: Any, tokens: int) -> Regime | str:
    """The regime of a prompt of so many tokens, or why no other length gives equal keys."""
    dynamic, longrope = _limits(model)
    # A length of exactly the limit does not reset the frequencies that a longer text has left.
    if dynamic and tokens >= min(dynamic):
        return "dynamic rope: each length has keys of its own"
    if not longrope:
        return Regime(reach=min(dynamic, default=None))
    limits = sorted({*longrope, *dynamic})
    if tokens <= limits[0]:
        return Regime("short", 0, limits[0])
    if tokens > limits[-1]:
        return Regime("long", limits[-1], None)
    return "longrope: some layers are past their original length, some not"


def short_length(model: Any, most: int) -> int:
    """The longest text, up to ``most`` tokens, that has the keys of short texts."""
    dynamic, longrope = _limits(model)
    return min([most, *longrope, *(limit - 1 for limit in dynamic)])


def derived(module: Any) -> frozenset[str]:
    """The attributes of a module that depend on the length of its last forward pass."""
    types = _types(module)
    if not any(_depends(kind) for _, kind in types):
        return frozenset()
    prefixes = ["" if layer is None else f"{layer}_" for layer, _ in types]
    names = {f"{prefix}{name}" for prefix in prefixes for name in _DERIVED}
    if any(layer is not None for layer, _ in types):
        # Forward passes write this name, but read names that begin with a kind of layers.
        names.add("attention_scaling")
    return frozenset(names | {"max_seq_len_cached"})


def frequencies(module: Any) -> dict[str, torch.Tensor]:
    """The frequencies that the next forward passes will use, by name.

    For a short text, and for a long one if the module keeps these instead of computing them anew.
    """
    found: dict[str, torch.Tensor] = {}
    for layer, kind in _types(module):
        if _depends(kind):
            prefix = "" if layer is None else f"{layer}_"
            name = f"{prefix}inv_freq"
            seen = getattr(module, f"{prefix}max_seq_len_cached", module.max_seq_len_cached)
            resets = kind == "longrope" or _int(seen) > _int(module.original_max_seq_len)
            found[name] = getattr(module, f"{prefix}original_inv_freq" if resets else name)
            if kind == "longrope":
                found |= _kept_for_long(module, prefix)
    return found


def _kept_for_long(module: Any, prefix: str) -> dict[str, torch.Tensor]:
    """The kept frequencies for long texts, if passes read them.

    Older versions of transformers keep them, but compute them anew. There the present frequencies
    are one of the two kept tensors, and not a copy.
    """
    name = f"{prefix}long_inv_freq"
    long = getattr(module, name, None)
    now = getattr(module, f"{prefix}inv_freq", None)
    if long is None or now is long or now is getattr(module, f"{prefix}original_inv_freq", None):
        return {}
    return {name: long}


@contextmanager
def left_alone(model: Any) -> Iterator[None]:
    """Restores the attributes that forward passes write: a later text may depend on them."""
    held = [(m, dict(vars(m)), dict(m._buffers)) for m in model.modules() if derived(m)]
    try:
        yield
    finally:
        for module, attributes, buffers in held:
            vars(module).update(attributes)
            module._buffers.clear()
            module._buffers.update(buffers)


def _types(module: Any) -> list[tuple[str | None, str]]:
    kind = vars(module).get("rope_type")
    if isinstance(kind, dict):
        return [(layer, str(value)) for layer, value in kind.items()]
    return [] if kind is None else [(None, str(kind))]


def _depends(kind: str) -> bool:
    return "dynamic" in kind or kind == "longrope"


def _limits(model: Any) -> tuple[set[int], set[int]]:
    """The lengths up to which texts have the keys of short ones, for "dynamic" and "longrope"."""
    dynamic: set[int] = set()
    longrope: set[int] = set()
    for module in model.modules():
        for layer, kind in _types(module):
            if "dynamic" in kind:
                dynamic.add(_int(module.original_max_seq_len))
            elif kind == "longrope":
                parameters = module.config.rope_parameters
                parameters = parameters if layer is None else parameters[layer]
                longrope.add(_int(parameters["original_max_position_embeddings"]))
    return dynamic, longrope


def _int(value: Any) -> int:
    return int(value.item()) if isinstance(value, torch.Tensor) else int(value)
