"""Prompts: from a file, or made here."""

from __future__ import annotations

import json
import random
import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybrid_pages.adapter.errors import SettingsError

_LINES = (".jsonl", ".json", ".ndjson")
_SPECIAL = 16
"""Ids below are often special, and left out of prompts made of ids."""


@dataclass(frozen=True)
class GivenPrompts:
    """A prompt before it is tokens: ``text``, or else ``tokens``."""

    name: str
    text: str | None = None
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class VerifyPrompt:
    """A prompt as the engine gets it."""

    name: str
    tokens: tuple[int, ...]
    answer_tokens: int
    stop: tuple[str, ...] = ()
    """Texts that end the answer; with none it goes on to the last of ``answer_tokens``."""
    wanted: str | None = None
    """The right number, if the prompt is a question to score; else None."""


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file that are not blank, with their numbers.

    Raises:
        SettingsError: it can't be read, or is no UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: expected a text file in UTF-8, found: {error}") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.rstrip("\r")


def object_of(path: Path, number: int, line: str) -> dict[str, Any]:
    """A line of JSON.

    Raises:
        SettingsError: it is no object; names the line.
    """
    try:
        found = json.loads(line)
        # JSON can name halves of a character, which no tokenizer takes.
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path}:{number}: expected a JSON object, found {error}") from None
    if not isinstance(found, dict):
        raise SettingsError(f"{path}:{number}: expected a JSON object, found {reprlib.repr(found)}")
    return found


def read(path: Path) -> list[GivenPrompts]:
    """Reads prompts: one a line, or with a name in .jsonl objects with ``prompt`` or
    ``prompt_token_ids``.

    Raises:
        SettingsError: names the line.
    """
    as_json = path.suffix.lower() in _LINES
    prompts = [
        _object(path, number, line) if as_json else GivenPrompts(f"line {number}", line)
        for number, line in lines_of(path)
    ]
    if not prompts:
        raise SettingsError(f"{path}: expected at least one prompt, found none")
    return prompts


def _object(path: Path, number: int, line: str) -> GivenPrompts:
    found, name = object_of(path, number, line), f"line {number}"
    text, tokens = found.get("prompt"), found.get("prompt_token_ids")
    if isinstance(text, str) and text and tokens is None:
        return GivenPrompts(name, text)
    whole = isinstance(tokens, list) and all(type(each) is int and each >= 0 for each in tokens)
    if tokens and whole and text is None:
        return GivenPrompts(name, tokens=tuple(tokens))
    raise SettingsError(
        f'{path}:{number}: expected one of "prompt", a text, and "prompt_token_ids", a list of '
        f"whole numbers, found {reprlib.repr(found)}"
    )


def lengths(block_tokens: int, longest: int, *, few: bool = False) -> list[int]:
    """Lengths of built-in prompts: before, at and after boundaries, none above ``longest``.

    A prompt of n blocks and no token more resumes one block earlier, as its last token is computed.
    few: those for an engine that serves.
    """
    n = block_tokens
    wanted = [2 * n + 1, 4 * n + n // 2]
    if not few:
        wanted = [n + n // 3 + 1, 2 * n + 1, 4 * n, 6 * n + n // 2]
    found = [length for length in wanted if length <= longest]
    return found or [longest]


def ids(
    block_tokens: int, vocab: int, longest: int, seed: int, *, few: bool = False
) -> list[GivenPrompts]:
    """Built-in prompts of random token ids, the same for the same seed."""
    rng = random.Random(f"hybrid-pages verify {seed}")
    first = min(_SPECIAL, vocab - 1)
    return [
        GivenPrompts(
            f"{length} random tokens",
            tokens=tuple(rng.randrange(first, vocab) for _ in range(length)),
        )
        for length in lengths(block_tokens, longest, few=few)
    ]


_PLACES = ("Lisbon", "Oslo", "Cairo", "Lima", "Kyoto", "Riga", "Quito", "Perth", "Turin", "Accra")
_THINGS = ("lamps", "clocks", "maps", "bells", "kites", "drums", "coins", "boats", "masks", "bowls")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def ledger(count: int, seed: int) -> str:
    """A text of so many lines: a model that reads it can go on, and looks back to do so."""
    rng = random.Random(f"hybrid-pages verify {seed}")
    return "\n".join(
        f"Entry {entry}: on {rng.choice(_DAYS)} the museum of {rng.choice(_PLACES)} received "
        f"{rng.randrange(2, 9000)} {rng.choice(_THINGS)} and lent {rng.randrange(2, 900)} "
        f"{rng.choice(_THINGS)} to the museum of {rng.choice(_PLACES)}."
        for entry in range(1, count + 1)
    )


def cut(
    tokens: Sequence[int], block_tokens: int, longest: int, *, few: bool = False
) -> list[GivenPrompts]:
    """Built-in prompts cut out of the tokens of a long text, each from another place."""
    found, start = [], 0
    for length in lengths(block_tokens, longest, few=few):
        part = tuple(tokens[start : start + length])
        found.append(GivenPrompts(f"{len(part)} tokens of text", tokens=part))
        start += max(1, length // 7)
    return found
