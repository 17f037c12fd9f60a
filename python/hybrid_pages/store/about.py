"""What an identity was made from, as its engine wrote it down."""

from __future__ import annotations

import json
from typing import Any

_SHOWN = ("vllm", "transformers", "dtype", "weights")
_DIGITS = 12


def read_about(text: str | None) -> dict[str, Any] | None:
    """The facts by name; None if nobody said them or they can't be read."""
    try:
        said = json.loads(text or "")
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def summary(about: dict[str, Any]) -> str:
    """The model and what it ran on, in a line."""
    words = [_architecture(about)]
    words += [f"{key} {_short(about[key])}" for key in _SHOWN if about.get(key)]
    return ", ".join(word for word in words if word)


def _architecture(about: dict[str, Any]) -> str:
    try:
        config = json.loads(about.get("config") or "{}")
        return str((config.get("architectures") or [config.get("model_type") or ""])[0])
    except (ValueError, AttributeError, IndexError, TypeError):
        return ""


def differences(about: dict[str, Any], other: dict[str, Any]) -> str:
    """What differs from another identity, with both values where they are short."""
    names = [name for name in {**about, **other} if about.get(name) != other.get(name)]
    return ", ".join(
        name
        if max(len(str(one.get(name))) for one in (about, other)) > _DIGITS
        else f"{name} ({about.get(name)}, not {other.get(name)})"
        for name in names
    )


def _short(value: object) -> str:
    return str(value).removeprefix("torch.")[:_DIGITS]
