"""Places in a framework's cache that keep nothing, told by what they have, not by their names."""

from __future__ import annotations

from typing import Any


def has_only_flags(layer: Any) -> bool:
    """Whether an object has no attribute that could keep anything: each is None, True or False.

    So are layers of experts alone, and those that use another layer's keys.
    """
    slots = [name for kind in type(layer).__mro__ for name in getattr(kind, "__slots__", ())]
    attributes = getattr(layer, "__dict__", None)
    if attributes is None or slots:
        return False
    return all(value is None or isinstance(value, bool) for value in attributes.values())
