"""Has a server compute the beginning of prompts, alone, and proves that prompts go on from it.

A prompt that is one token longer shows how far it is restored, and computes nothing else if the
beginning is warm. It is not stored.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hybrid_pages.warm.cut import CutBeginning
from hybrid_pages.warm.server import Server

WAITS = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds before each look: an engine stores in the background."""


@dataclass(frozen=True)
class Visit:
    """What became of one beginning."""

    tokens: int
    saves: int | None
    """The tokens that a prompt which goes on from there does not compute; None if the server does
    not tell."""
    computed: int | None
    """The tokens that were computed for it, all prompts together; None if the server does not
    tell."""
    was_warm: bool
    seconds: float

    @property
    def whole(self) -> bool:
        """Whether prompts go on from its very end, as far as is known."""
        return self.saves is None or self.saves >= self.tokens


def visit(server: Server, cut: CutBeginning, retain: float) -> Visit:
    """Makes the end of a beginning a place to resume from, unless it is one.

    Raises:
        ServedModelError: the server does not answer, or refuses the prompt.
    """
    began, n = time.monotonic(), len(cut.tokens)
    kept: dict[str, Any] = {"retain": retain} if retain else {}
    unstored = {**kept, "store": False}
    longer = [*cut.tokens, cut.after]
    found = server.serve(longer, unstored).cached
    if found is None:
        server.serve(cut.tokens, kept)
        return Visit(n, None, None, False, time.monotonic() - began)
    if found >= n:
        return Visit(n, n, n + 1 - found, True, time.monotonic() - began)
    computed = n + 1 - found + _computed(server, cut, kept)
    for wait in WAITS:
        time.sleep(wait)
        found = server.serve(longer, unstored).cached or 0
        computed += n + 1 - found
        if found >= n:
            break
    return Visit(n, min(found, n), computed, False, time.monotonic() - began)


def _computed(server: Server, cut: CutBeginning, hints: Mapping[str, Any]) -> int:
    """Sends a beginning. Returns how many of its tokens were computed."""
    return len(cut.tokens) - (server.serve(cut.tokens, hints).cached or 0)
