"""The facts that a disk's identity was made from, as its engine wrote them down, unchecked."""

from __future__ import annotations

import json
from typing import Any

_SHOWN = ("vllm", "transformers", "dtype", "weights")
_MOST_SHOWN = 24
_DIGITS = 12
"""Digits that are shown of a digest."""


def read_about(text: str | None) -> dict[str, Any] | None:
    """The facts by name; None if they are missing or can't be read."""
    try:
        said = json.loads(text or "", parse_constant=str)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def summary(about: dict[str, Any]) -> str:
    """The model and what it ran on, in a line."""
    words = [_architecture(about)]
    words += [f"{key} {_short(about[key])}" for key in _SHOWN if about.get(key)]
    return ", ".join(word for word in words if word)


def _architecture(about: dict[str, Any]) -> str:
    try:
        config = json.loads(str(about.get("config")))
    except (ValueError, RecursionError):
        return ""
    if not isinstance(config, dict):
        return ""
    found = config.get("architectures")
    return _short(found[0], 80) if isinstance(found, list) and found else ""


def differences(about: dict[str, Any], other: dict[str, Any]) -> str:
    """The facts in which two identities differ, with both values where they are short."""
    names = [name for name in {**about, **other} if about.get(name) != other.get(name)]
    return ", ".join(_difference(name, about.get(name), other.get(name)) for name in names)


def _difference(name: str, one: object, other: object) -> str:
    if max(len(str(one)), len(str(other))) > _MOST_SHOWN:
        return _short(name, 80)
    return f"{_short(name, 80)} ({one}, not {other})"


def _short(value: object, most: int = _MOST_SHOWN) -> str:
    text = str(value).removeprefix("torch.")
    return text if len(text) <= most else text[:_DIGITS]
