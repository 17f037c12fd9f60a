"""The number of a prompt's tokens, and how many of them were restored."""

from __future__ import annotations

from typing import Any


class PromptTokens(int):
    """The number of a prompt's tokens; ``cached`` of them were restored.

    Stands where vllm-mlx passes that number from its scheduler to its answers. A sum of several
    has the sum of what was cached.
    """

    cached: int

    def __new__(cls, tokens: int, cached: int) -> PromptTokens:
        made = super().__new__(cls, tokens)
        made.cached = cached
        return made

    def __add__(self, other: int) -> PromptTokens:
        return PromptTokens(int(self) + int(other), self.cached + cached_of(other))

    __radd__ = __add__


def cached_of(tokens: Any) -> int:
    """How many of the tokens were cached: 0 for a plain number."""
    return tokens.cached if isinstance(tokens, PromptTokens) else 0
