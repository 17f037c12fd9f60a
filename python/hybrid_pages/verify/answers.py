"""An engine's answers, and the first difference between two answers to one prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Answer:
    """The answer to one prompt."""

    tokens: tuple[int, ...]
    likely: tuple[Mapping[int, float], ...]
    """At each position the log-probabilities of the most likely tokens and of the chosen one."""
    words: tuple[str, ...] = ()
    """The text of each token; empty without a tokenizer."""
    text: str = ""
    cached: int = 0
    """Tokens of the prompt that were not computed."""
    source: str = ""
    """The source of these tokens; if there are several, each with its tokens."""

    @classmethod
    def read(cls, found: Mapping[str, Any], hits: Mapping[str, float]) -> Answer:
        """Reads the engine's answer. hits: tokens by source, of all prompts that were sent at once.

        vLLM counts the cached tokens of a prompt, and the connector those of each source.
        """
        sources = {name: int(count) for name, count in hits.items() if count}
        several = ", ".join(f"{name} {count}" for name, count in sorted(sources.items()))
        return cls(
            tuple(found["tokens"]),
            tuple({int(token): value for token, value in at.items()} for at in found["likely"]),
            tuple(found["words"]),
            found["text"],
            found["cached"],
            next(iter(sources)) if len(sources) == 1 else several,
        )

    def behind(self, tokens: int) -> Answer:
        """What comes behind its first tokens."""
        return replace(
            self,
            tokens=self.tokens[tokens:],
            likely=self.likely[tokens:],
            words=self.words[tokens:],
            text="",
        )

    @property
    def is_whole(self) -> bool:
        """Whether every log-probability is a number."""
        return not any(math.isnan(value) for at in self.likely for value in at.values())

    def same(self, other: Answer) -> bool:
        """Whether both are equal, bit for bit, and numbers."""
        return self.is_whole and self.tokens == other.tokens and self.likely == other.likely

    def distance(self, other: Answer) -> float:
        """The largest difference of log-probabilities up to the first token that differs, included.

        After that token the two answer different prompts. Infinite if something is not a number, or
        if one ends where the other goes on with equal tokens.
        """
        common = min(len(self.tokens), len(other.tokens))
        worst = 0.0
        for index in range(common):
            mine, theirs = self.likely[index], other.likely[index]
            worst = max(worst, _gap(mine, theirs), _gap(theirs, mine))
            if self.tokens[index] != other.tokens[index]:
                return worst
        return worst if len(self.tokens) == len(other.tokens) else math.inf


def _gap(left: Mapping[int, float], right: Mapping[int, float]) -> float:
    """The largest difference. A token that ``right`` lacks counts like its least likely one."""
    least, worst = min(right.values(), default=-math.inf), 0.0
    for token, value in left.items():
        other = right.get(token)
        if other is None:
            gap = max(0.0, value - least)
        else:
            gap = 0.0 if value == other else abs(value - other)
        worst = max(worst, math.inf if math.isnan(gap) else gap)
    return worst


@dataclass(frozen=True)
class Difference:
    """The first position at which two answers differ."""

    position: int
    """Index of the first token that differs, from 0."""
    expected: tuple[int, str, float | None, float | None]
    """The token there, its text, and its log-probabilities in the expected and the found answer."""
    found: tuple[int, str, float | None, float | None]


def first_difference(expected: Answer, found: Answer) -> Difference | None:
    """The first difference of two answers, be it in a log-probability; None if they are equal."""
    for position in range(min(len(expected.tokens), len(found.tokens))):
        ours, theirs = expected.tokens[position], found.tokens[position]
        likely = expected.likely[position], found.likely[position]
        if ours != theirs or likely[0] != likely[1]:
            return Difference(
                position,
                (ours, _word(expected, position), likely[0].get(ours), likely[1].get(ours)),
                (theirs, _word(found, position), likely[0].get(theirs), likely[1].get(theirs)),
            )
    return None


def _word(answer: Answer, position: int) -> str:
    return answer.words[position] if position < len(answer.words) else ""
