"""Questions with a right answer each, in the format of gsm8k, and their exact-match score."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.verify.prompts import lines_of, object_of

STOP = ("Question:",)
LEAST_SHOTS = 4
_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?")
_MARKED = re.compile(r"####\s*(-?\$?\d[\d,]*(?:\.\d+)?)")


@dataclass(frozen=True)
class ScoredQuestion:
    """A question, its worked answer, and the number at the end of the answer."""

    line: int
    question: str
    answer: str
    wanted: str


def read(path: Path) -> list[ScoredQuestion]:
    """Reads objects with ``question`` and ``answer``, one a line; an answer ends with ``#### 42``.

    Raises:
        SettingsError: names the line; or there are fewer than two.
    """
    found = [_read(path, number, line) for number, line in lines_of(path)]
    if len(found) < 2:
        raise SettingsError(
            f"{path}: expected at least two questions, the first ones to show how to answer, found "
            f"{len(found)}"
        )
    return found


def _read(path: Path, number: int, line: str) -> ScoredQuestion:
    found = object_of(path, number, line)
    question, answer = found.get("question"), found.get("answer")
    if not isinstance(question, str) or not isinstance(answer, str):
        raise SettingsError(
            f'{path}:{number}: expected "question" and "answer", both texts, found '
            f"{reprlib.repr(found)}"
        )
    marked = _MARKED.search(answer)
    if marked is None:
        raise SettingsError(
            f"{path}:{number}: expected an answer with `#### NUMBER`, found {reprlib.repr(answer)}"
        )
    return ScoredQuestion(number, question.strip(), answer.strip(), _plain(marked[1]))


def shown(questions: Sequence[ScoredQuestion]) -> str:
    """The text of worked questions, to put before the one that is asked."""
    return "".join(f"Question: {each.question}\nAnswer: {each.answer}\n\n" for each in questions)


def asked(question: ScoredQuestion) -> str:
    """The text of the question that is asked, to put after :func:`shown`."""
    return f"Question: {question.question}\nAnswer:"


def is_right(text: str, wanted: str) -> bool:
    """Whether an answer's number is right: the one after ``####``, or else its last one."""
    marked = _MARKED.search(text)
    numbers = [marked[1]] if marked else _NUMBER.findall(text)
    return bool(numbers) and _plain(numbers[-1]) == wanted


def _plain(number: str) -> str:
    """``1,200.0`` and ``$1200`` as ``1200``."""
    text = number.replace(",", "").replace("$", "")
    return text.rstrip("0").rstrip(".") if "." in text else text
