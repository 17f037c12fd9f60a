"""A chat template of our own making: messages as token ids, and what a next turn leaves of them.

Templates differ in what they keep of the reasoning in earlier turns. That decides where the next
prompt leaves the text that was computed: behind the answer, or a few tokens before its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum


class Special(IntEnum):
    """Tokens that no text holds."""

    START = 3
    END = 4
    LINE = 5
    SYSTEM = 6
    USER = 7
    ASSISTANT = 8
    TOOL = 9
    THINK = 10
    THOUGHT = 11
    CALL = 12
    CALLED = 13


FIRST_WORD = 16
"""The least id of a token of text."""


class Reasoning(Enum):
    """What a template does with an answer's reasoning."""

    NONE = "none"
    """The model does not reason."""
    KEPT = "kept"
    """Later prompts hold it, too."""
    DROPPED = "dropped"
    """It is gone as soon as the user has said something else."""
    EMPTIED = "emptied"
    """The same, and a pair of marks around nothing stays in its place."""


@dataclass(frozen=True)
class Message:
    """What one party has said, without the marks around it."""

    role: Special
    tokens: tuple[int, ...]
    reasoning: int = 0
    """How many of the first tokens are reasoning, with the mark behind it."""


@dataclass(frozen=True)
class Template:
    """Renders a conversation as a server's chat template would."""

    reasoning: Reasoning = Reasoning.NONE

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The messages so far, and the marks behind which the model answers."""
        asked = max((i for i, m in enumerate(messages) if m.role is Special.USER), default=-1)
        tokens: list[int] = []
        for place, message in enumerate(messages):
            tokens += self._opening(message.role)
            tokens += self._said(message, earlier=place < asked)
            if tokens[-1] != Special.END:  # an answer that was cut off
                tokens.append(Special.END)
            tokens.append(Special.LINE)
        return tokens + self._opening(Special.ASSISTANT) + self._thinking()

    def shared(self, system: Message) -> list[int]:
        """What every conversation under a system prompt begins with: up to what the user says."""
        opening = [*self._opening(system.role), *system.tokens, Special.END, Special.LINE]
        return opening + self._opening(Special.USER)

    def answer(self, reasoning: Sequence[int], text: Sequence[int]) -> Message:
        """An answer as a model gives it, up to the mark of its end."""
        thought: list[int] = []
        if self.reasoning is not Reasoning.NONE:
            thought = [*reasoning, Special.LINE, Special.THOUGHT, Special.LINE]
        return Message(Special.ASSISTANT, (*thought, *text, Special.END), len(thought))

    def _said(self, message: Message, *, earlier: bool) -> list[int]:
        if message.role is not Special.ASSISTANT:
            return list(message.tokens)
        if earlier and self.reasoning in (Reasoning.DROPPED, Reasoning.EMPTIED):
            marks: list[int] = []
            if self.reasoning is Reasoning.EMPTIED:
                marks = [Special.THINK, Special.THOUGHT, Special.LINE]
            return marks + list(message.tokens[message.reasoning :])
        return self._thinking() + list(message.tokens)

    def _thinking(self) -> list[int]:
        return [] if self.reasoning is Reasoning.NONE else [Special.THINK, Special.LINE]

    @staticmethod
    def _opening(role: Special) -> list[int]:
        return [Special.START, role, Special.LINE]
