"""The runs of every prompt: cold, on vLLM's own hit, and restored from each tier alone.

A prompt runs under a salt of its own, so that it shares nothing with other prompts, with earlier
runs, or with what others have stored. The first visit is cold, whatever the caches hold; the second
one is vLLM's own hit. Both happen twice, under two salts, in the same steps: what differs then is
the engine's own noise. For the host, vLLM's own cache is emptied. For a tier below, an engine is
started that has that tier alone.
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


class EngineCommands(Protocol):
    """An engine as the runs use it: it answers commands by name."""

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]: ...


@dataclass
class Runs:
    """The results of all runs.

    facts: about the first engine. answers: by phase, in the order of the prompts. figures: of each
    engine at its end, by the tiers that it was started for.
    """

    prompts: list[VerifyPrompt] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    figures: dict[str, dict[str, float]] = field(default_factory=dict)

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
        if len(runs.facts["tiers"]) > 1:
            step("what is on its way to the tiers below", 0, 1)
            engine.ask("settle")
        runs.figures[HOST] = engine.ask("figures")
    for tier in runs.facts["tiers"][1:]:
        with engines(replace(start, alone=tier)) as (engine, _):
            for batch in _batches(runs, at_once, tier, step):
                _ask(engine, runs, batch, tier, f"{start.run}-first")
            runs.figures[tier] = engine.ask("figures")
    return runs


def _batches(runs: Runs, at_once: int, name: str, step: Step) -> Iterator[range]:
    count = len(runs.prompts)
    for first in range(0, count, at_once):
        step(name, first, count)
        yield range(first, min(count, first + at_once))
    step(name, count, count)


def _ask(engine: EngineCommands, runs: Runs, batch: Sequence[int], phase: str, salt: str) -> None:
    asked = [
        {
            "tokens": runs.prompts[index].tokens,
            "salt": f"{salt}-{index}",
            "answer_tokens": runs.prompts[index].answer_tokens,
            "stop": runs.prompts[index].stop,
        }
        for index in batch
    ]
    try:
        found = engine.ask("ask", prompts=asked)
    except EngineFailed as error:
        lengths = ((runs.prompts[index].name, len(runs.prompts[index].tokens)) for index in batch)
        names = ", ".join(
            f"{name} ({count} token{'s' if count != 1 else ''})" for name, count in lengths
        )
        raise EngineFailed(f"{phase}, {names}: {error}", by_log=error.by_log) from None
    runs.phase(phase).extend(Answer.read(answer, found["hits"]) for answer in found["answers"])
