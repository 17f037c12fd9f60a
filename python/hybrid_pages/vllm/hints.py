"""Hints that an application may give with a request: where later prompts will fork.

``kv_transfer_params={"hybrid_pages": {"checkpoint_at": [1024, 5000]}}`` asks for a checkpoint at
the last boundary at or before each of these token positions.
"""

from collections.abc import Mapping
from typing import Any

from hybrid_pages import HybridPagesError

KEY = "hybrid_pages"
MOST_POSITIONS = 64


class HintError(HybridPagesError, ValueError):
    """Invalid hints; the request runs as if it had none."""


def checkpoint_positions(params: Mapping[str, Any] | None, tokens: int) -> list[int]:
    """Token positions at which an application asks for a checkpoint.

    Args:
        params: the request's ``kv_transfer_params``; keys of other connectors are left alone.
        tokens: length of the prompt.

    Raises:
        HintError: with what was expected and what was found.
    """
    hints = params.get(KEY) if params else None
    if hints is None:
        return []
    if not isinstance(hints, Mapping):
        raise HintError(f"{KEY}: expected a mapping, found {type(hints).__name__}")
    for key in hints:
        if key != "checkpoint_at":
            raise HintError(f"{KEY}: expected the key 'checkpoint_at' alone, found {key!r}")
    positions = hints.get("checkpoint_at", [])
    if not isinstance(positions, list | tuple):
        raise HintError(
            f"checkpoint_at: expected a list of token positions, found {type(positions).__name__}"
        )
    if len(positions) > MOST_POSITIONS:
        raise HintError(
            f"checkpoint_at: expected at most {MOST_POSITIONS} positions, found {len(positions)}"
        )
    for position in positions:
        if isinstance(position, bool) or not isinstance(position, int):
            raise HintError(
                f"checkpoint_at: expected whole numbers, found {position!r} of type "
                f"{type(position).__name__}"
            )
        if not 0 < position <= tokens:
            raise HintError(
                f"checkpoint_at: expected positions from 1 to {tokens}, the length of the prompt, "
                f"found {position}"
            )
    return list(positions)
