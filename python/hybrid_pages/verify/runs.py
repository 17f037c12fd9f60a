"""The runs of every prompt: cold, on vLLM's own hit, and restored from each tier alone.

A prompt runs under a salt of its own, so that it shares nothing with other prompts, with earlier
runs, or with what others have stored. The first visit is cold, whatever the caches hold; the second
one is vLLM's own hit. Both happen twice, under two salts, in the same steps: what differs then is
the engine's own noise. For the host, vLLM's own cache is emptied. For a tier below, an engine is
started that has that tier alone.

Each prompt is also answered by half, and then sent again with this half behind it, to go on from
where its answer ended: as a rule inside a block, with one token to compute, as in the cold run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from hybrid_pages.verify.answers import Answer
from hybrid_pages.verify.process import EngineFailed
from hybrid_pages.verify.prompts import VerifyPrompt
from hybrid_pages.verify.tiers import HOST, EngineStart

COLD, COLD_AGAIN, LOCAL, LOCAL_AGAIN = "cold", "cold again", "local hit", "local hit again"
OWN = (COLD, COLD_AGAIN, LOCAL, LOCAL_AGAIN)
HALF = "half of an answer"
_STORED = (COLD, COLD_AGAIN, HALF)
"""The phases whose prompts are stored. If others were, prompts that come again would leave states
inside their last block, and later ones would resume deeper than vLLM's own hit."""


class EngineCommands(Protocol):
    """An engine as the runs use it: it answers commands by name."""

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]: ...


@dataclass
class Runs:
    """The results of all runs.

    facts: about the first engine. answers: by phase, in the order of the prompts. figures: of each
    engine at its end, by the tiers that it was started for. halves: the first halves of answers,
    by the prompt's place. rests: the other halves, by tier and that place. more: further cold runs,
    by that place. reasons: why a tier has restored nothing, if that is known.
    """

    prompts: list[VerifyPrompt] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    halves: dict[int, Answer] = field(default_factory=dict)
    rests: dict[str, dict[int, Answer]] = field(default_factory=dict)
    more: dict[int, list[Answer]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def phase(self, name: str) -> list[Answer]:
        """The answers of a phase, in the order of the prompts."""
        return self.answers.setdefault(name, [])


Engines = Callable[[EngineStart], AbstractContextManager[tuple[EngineCommands, dict[str, Any]]]]
"""Starts an engine, and gives it with its facts."""
Step = Callable[[str, int, int], None]
"""Shows progress: a phase, how many of its prompts are done, and of how many."""


def collect(
    engines: Engines,
    prompts_of: Callable[[EngineCommands, dict[str, Any]], list[VerifyPrompt]],
    start: EngineStart,
    *,
    at_once: int,
    step: Step,
) -> Runs:
    """Runs all prompts in every way.

    Args:
        engines: starts them, one at a time.
        prompts_of: gives the prompts, once the engine has told what it takes.
        start: of the first engine, which has every tier.
        at_once: prompts that are sent together. With more than one, batches differ in their sizes
            and so in their rounding.
        step: called before and after each batch.

    Raises:
        HybridPagesError: an engine failed.
    """
    runs = Runs()
    with engines(start) as (engine, runs.facts):
        runs.prompts = prompts_of(engine, runs.facts)
        for batch in _batches(runs, at_once, "own and host", step):
            for first, second, salt in (
                (COLD, LOCAL, "first"),
                (COLD_AGAIN, LOCAL_AGAIN, "second"),
            ):
                _ask(engine, runs, batch, first, f"{start.run}-{salt}")
                _ask(engine, runs, batch, second, f"{start.run}-{salt}")
            engine.ask("reset")
            _ask(engine, runs, batch, HOST, f"{start.run}-first")
            _begin(engine, runs, batch, start.run)
            _go_on(engine, runs, batch, HOST, start.run)
        if len(runs.facts["tiers"]) > 1:
            step("what is on its way to the tiers below", 0, 1)
            engine.ask("settle")
        runs.figures[HOST] = engine.ask("figures")
    for tier in runs.facts["tiers"][1:]:
        with engines(replace(start, alone=tier)) as (engine, _):
            for batch in _batches(runs, at_once, tier, step):
                _ask(engine, runs, batch, tier, f"{start.run}-first")
                _go_on(engine, runs, batch, tier, start.run)
            runs.figures[tier] = engine.ask("figures")
    return runs


def _batches(runs: Runs, at_once: int, name: str, step: Step) -> Iterator[range]:
    count = len(runs.prompts)
    for first in range(0, count, at_once):
        step(name, first, count)
        yield range(first, min(count, first + at_once))
    step(name, count, count)


def _ask(engine: EngineCommands, runs: Runs, batch: Sequence[int], phase: str, salt: str) -> None:
    asked = [(index, runs.prompts[index]) for index in batch]
    runs.phase(phase).extend(_answers(engine, asked, phase, salt))


def _begin(engine: EngineCommands, runs: Runs, batch: Sequence[int], run: str) -> None:
    """Answers by half the prompts whose answers have a length, and empties vLLM's own cache."""
    asked = [
        (index, replace(prompt, answer_tokens=prompt.answer_tokens // 2))
        for index, prompt in ((index, runs.prompts[index]) for index in batch)
        if prompt.answer_tokens > 1 and not prompt.stop
    ]
    if asked:
        found = _answers(engine, asked, HALF, f"{run}-half")
        runs.halves.update(zip((index for index, _ in asked), found, strict=True))
        engine.ask("reset")


def _go_on(engine: EngineCommands, runs: Runs, batch: Sequence[int], tier: str, run: str) -> None:
    """Sends prompts again, with the half of their answer behind them."""
    asked = []
    for index in batch:
        if index in runs.halves:
            prompt, half = runs.prompts[index], runs.halves[index].tokens
            left = prompt.answer_tokens - len(half)
            asked.append((index, replace(prompt, tokens=prompt.tokens + half, answer_tokens=left)))
    if asked:
        found = _answers(engine, asked, f"{tier}, from half an answer", f"{run}-half")
        rests = runs.rests.setdefault(tier, {})
        rests.update(zip((index for index, _ in asked), found, strict=True))


def _answers(
    engine: EngineCommands, asked: Sequence[tuple[int, VerifyPrompt]], phase: str, salt: str
) -> list[Answer]:
    prompts = [
        {
            "tokens": prompt.tokens,
            "salt": f"{salt}-{index}",
            "answer_tokens": prompt.answer_tokens,
            "stop": prompt.stop,
            "stored": phase in _STORED,
        }
        for index, prompt in asked
    ]
    try:
        found = engine.ask("ask", prompts=prompts)
    except EngineFailed as error:
        lengths = ((prompt.name, len(prompt.tokens)) for _, prompt in asked)
        names = ", ".join(
            f"{name} ({count} token{'s' if count != 1 else ''})" for name, count in lengths
        )
        raise EngineFailed(f"{phase}, {names}: {error}", by_log=error.by_log) from None
    return [Answer.read(answer, found["hits"]) for answer in found["answers"]]
