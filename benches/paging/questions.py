"""What gpu_first_hour.py asks of a GPU, and what each answer would mean."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Found = tuple[dict[str, float], dict[str, Any]]
"""Numbers by the question that they answer, and facts beside them."""


@dataclass(frozen=True)
class Question:
    """`key` is what a measurement calls the number; an answer of at most `most` is hoped for."""

    key: str
    what: str
    unit: str
    most: float
    hoped: str
    otherwise: str

    def verdict(self, answer: float | None) -> str:
        """In a word or two."""
        if answer is None:
            return "not measured"
        return "as hoped" if answer <= self.most else "NOT as hoped"

    def meaning(self, answer: float | None) -> str:
        """What follows from the answer."""
        if answer is None:
            return ""
        return self.hoped if answer <= self.most else self.otherwise


_PIECES = "smaller pieces, or longer pauses between them"

QUESTIONS = (
    Question(
        "pin",
        "taking and pinning memory",
        "s/GiB",
        0.5,
        "64 GiB are pinned within half a minute, while the engine starts",
        "the cache grows slowly after a start: huge pages, more threads that touch memory",
    ),
    Question(
        "unpin",
        "unpinning memory",
        "s/GiB",
        0.1,
        "closing or sleeping costs a few seconds",
        "a shut-down may outlast the patience of its supervisor: leave unpinning to the exit",
    ),
    Question(
        "launch",
        "the slowest launch of another thread while memory is pinned",
        "ms",
        5,
        "a start of the engine does not notice pinning",
        f"launches wait for a piece: {_PIECES}",
    ),
    Question(
        "free",
        "the slowest cuMemGetInfo while memory is pinned",
        "ms",
        5,
        "memory profiling does not notice pinning",
        f"the engine's start waits for pieces: {_PIECES}",
    ),
    Question(
        "elsewhere",
        "the slowest launch of another process while memory is pinned",
        "ms",
        5,
        "ranks and other engines do not notice pinning",
        f"the driver's lock is the machine's: {_PIECES}, and ranks one after the other",
    ),
    Question(
        "captures",
        "captures in global mode that pinning broke",
        "",
        0,
        "an engine may capture its graphs while slots are pinned",
        "pin before the engine captures, or wait with pinning until it has",
    ),
    Question(
        "copy beside copies",
        "a 4 KiB copy to the host beside four stores by copies, p99 less the usual time",
        "ms",
        0.5,
        "sampled tokens do not wait for stores",
        "stores go ahead of sampled tokens: fewer bytes in flight, or stores only between steps",
    ),
    Question(
        "copy beside kernels",
        "the same beside four stores by kernels",
        "ms",
        0.5,
        "sampled tokens do not wait for stores",
        "writes of kernels fill the bus: a smaller share of the multiprocessors",
    ),
    Question(
        "persistent beside copies",
        "a kernel that needs every multiprocessor beside four stores by copies, p99 less the usual",
        "ms",
        0.1,
        "copies leave the multiprocessors alone",
        "something of ours runs there beside copies: the digests",
    ),
    Question(
        "persistent beside kernels",
        "the same beside four stores by kernels",
        "ms",
        0.5,
        "a launch of ours is short enough for persistent kernels",
        "persistent kernels wait for our launches: shorter ones, or copies alone",
    ),
    Question(
        "mapped",
        "bytes that differ after a round trip through mapped memory",
        "B",
        0,
        "memory of cuMemMap is like any other",
        "WRONG BYTES: refuse caches in mapped memory",
    ),
    Question(
        "remapped",
        "old bytes that a store reads after memory was mapped anew",
        "B",
        0,
        "an engine may be kept while memory is given back and taken again",
        "WRONG BYTES: make engines anew after a sleep",
    ),
    Question(
        "unmapped, copies",
        "stores by copies that read unmapped memory without an error",
        "",
        0,
        "memory that is gone is refused",
        "WRONG BYTES may be stored: ask the driver about addresses before each transfer",
    ),
    Question(
        "unmapped, kernels",
        "stores by kernels that read unmapped memory without an error",
        "",
        0,
        "memory that is gone is refused, if need be at the price of the context",
        "WRONG BYTES may be stored: ask the driver about addresses before each transfer",
    ),
    Question(
        "expandable",
        "bytes that differ with torch's expandable_segments:True",
        "B",
        0,
        "expandable segments can be used",
        "WRONG BYTES: refuse this setting",
    ),
)


def is_wrong(answers: dict[str, float]) -> bool:
    """Whether bytes were wrong, or could be. What is slow alone is a finding, no fault."""
    wrong = [one for one in QUESTIONS if one.otherwise.startswith("WRONG BYTES")]
    return any(answers.get(one.key, 0.0) > one.most for one in wrong)


def table(answers: dict[str, float]) -> str:
    """Markdown: a line a question."""
    lines = ["| what | found | at most | verdict | what that means |", "|---" * 5 + "|"]
    for one in QUESTIONS:
        answer = answers.get(one.key)
        found = "" if answer is None else f"{answer:.3g} {one.unit}".strip()
        most = f"{one.most:g} {one.unit}".strip()
        cells = (one.what, found, most, one.verdict(answer), one.meaning(answer))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def meanings() -> str:
    """Markdown for a reader without numbers: what each answer would mean."""
    lines = ["| what | at most | if so | if not |", "|---" * 4 + "|"]
    for one in QUESTIONS:
        most = f"{one.most:g} {one.unit}".strip()
        lines.append(f"| {one.what} | {most} | {one.hoped} | {one.otherwise} |")
    return "\n".join(lines)


def summary(answers: dict[str, float], failed: Iterable[str]) -> str:
    """One line: how many of each verdict, and what failed."""
    found = [one.verdict(answers.get(one.key)) for one in QUESTIONS]
    counts = ", ".join(f"{found.count(one)} {one}" for one in sorted(set(found)))
    names = ", ".join(failed)
    return f"answers: {counts}" + (f"; failed: {names}" if names else "")
