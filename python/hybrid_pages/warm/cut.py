"""Finds the place where every prompt goes on that begins with a given text or chat.

The last tokens of a beginning depend on what comes after it: a tokenizer may join them with the
next characters, and a chat template may write the end of a message, or of a conversation, in
another way when more follows. So the beginning is rendered with several made-up continuations, and
what their tokens have in common is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybrid_pages.warm.beginnings import GOES_ON, Beginning, BeginningError
from hybrid_pages.warm.server import Server

CONTINUATIONS = ("A", "7", " b", "\n\nC", "\nd", ".", ", e", "'s", '"', "-", "\u4e2d")
"""What may follow: a letter, a digit, white space, punctuation, another script."""


@dataclass(frozen=True)
class CutBeginning:
    """The tokens that all continuations of a beginning have in common."""

    tokens: tuple[int, ...]
    after: int
    """A token that may follow."""


def cut(server: Server, beginning: Beginning) -> CutBeginning:
    """The place in a beginning where every continuation goes on.

    Raises:
        BeginningError: the continuations have nothing in common.
        ServedModelError: the server can't tell; :class:`RefusedError` for this beginning alone.
    """
    if beginning.tokens:
        return CutBeginning(beginning.tokens, beginning.tokens[-1])
    renderings = list(_renderings(server, beginning))
    length = _common(renderings)
    if not length:
        raise BeginningError(
            f"{beginning.name}: expected tokens that every continuation begins with, found none: "
            "make it longer"
        )
    longest = max(renderings, key=len)
    return CutBeginning(
        tuple(longest[:length]), longest[length] if len(longest) > length else longest[-1]
    )


def _renderings(server: Server, beginning: Beginning) -> Iterator[list[int]]:
    if beginning.text:
        for more in CONTINUATIONS:
            yield server.of_text(beginning.text + more)
        return
    *before, last = beginning.messages
    if last["role"] in GOES_ON:
        yield server.of_chat(beginning.messages, beginning.chat, answers=True)
    for more in CONTINUATIONS:
        if last["role"] in GOES_ON:
            messages: Sequence[Mapping[str, Any]] = [*before, _longer(last, more)]
        else:
            messages = [*beginning.messages, {"role": "user", "content": more}]
        yield server.of_chat(messages, beginning.chat, answers=True)


def _longer(message: Mapping[str, Any], more: str) -> dict[str, Any]:
    """A message whose words go on."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + more}
    *parts, last = content
    return {**message, "content": [*parts, {**last, "text": last["text"] + more}]}


def _common(renderings: Sequence[Sequence[int]]) -> int:
    """How many leading tokens all have in common."""
    length = 0
    for tokens in zip(*renderings, strict=False):
        if len(set(tokens)) > 1:
            break
        length += 1
    return length
