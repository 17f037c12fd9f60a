"""Where the messages of a prompt end, by its chat template."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

_log = logging.getLogger(__name__)

Messages = list[dict[str, Any]]

# What stands in the place of a message that another request may have.
_OTHER = "\u2e3b"
_MOST_PROMPTS = 64


class MessageEnds:
    """Knows of which messages the last prompts were made. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: OrderedDict[str, tuple[Messages, Callable[[Messages], str]]] = OrderedDict()

    def note(self, prompt: str, messages: Messages, render: Callable[[Messages], str]) -> None:
        """Notes that a prompt was made of messages.

        render: makes prompts of other messages in the same way.
        """
        with self._lock:
            self._made[prompt] = messages, render
            if len(self._made) > _MOST_PROMPTS:
                self._made.popitem(last=False)

    def of(
        self, prompt: Any, tokens: Sequence[int], encode: Callable[[str], list[int]]
    ) -> list[int]:
        """After how many tokens prompts with another last message, or with an answer, go on
        differently.

        The answer comes without its reasoning, which templates leave out of later prompts.
        """
        with self._lock:
            made = self._made.pop(prompt, None) if isinstance(prompt, str) else None
        if made is None:
            return []
        messages, render = made
        last = {**messages[-1], "content": _OTHER}
        others = [[*messages[:-1], last], [*messages, {"role": "assistant", "content": _OTHER}]]
        return [_shared(tokens, other) for other in map(_encoded(render, encode), others) if other]


def _encoded(
    render: Callable[[Messages], str], encode: Callable[[str], list[int]]
) -> Callable[[Messages], list[int]]:
    def make(messages: Messages) -> list[int]:
        try:
            return encode(render(messages))
        except Exception as error:  # templates raise anything for messages that they do not expect
            _log.debug("a chat template rejects other messages: %s", error)
            return []

    return make


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the longest common prefix."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
