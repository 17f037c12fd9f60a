"""The demo's prompts, and those that have to be in the cache before them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from hybrid_pages.demo.engine import DemoAnswer, DemoEngine
from hybrid_pages.demo.models import FIRST_TOKEN, VOCAB

Prompt = list[int]


@dataclass(frozen=True)
class Case:
    """A prompt, the prompts asked before it, and how many tokens must be restored."""

    name: str
    before: list[Prompt]
    prompt: Prompt
    restorable: int


@dataclass(frozen=True)
class CaseRow:
    """The result of a case."""

    name: str
    prompt_tokens: int
    cold_ttft_ms: float
    restored_ttft_ms: float
    restored_tokens: int
    expected_tokens: int
    reference_tokens: int
    bytes_moved: int
    max_delta_logprob: float

    @property
    def equal(self) -> bool:
        """Whether the restored run equals the engine's own bit for bit, at the expected depth."""
        depths = {self.restored_tokens, self.reference_tokens, self.expected_tokens}
        return self.max_delta_logprob == 0 and len(depths) == 1


def cases(block_tokens: int) -> list[Case]:
    """The demo's cases for blocks of ``block_tokens`` tokens. Prompts go on from boundaries, where
    vLLM's own hit can be compared."""
    rng = random.Random("hybrid-pages demo")
    n = block_tokens

    def some(count: int) -> Prompt:
        return [rng.randrange(FIRST_TOKEN, VOCAB) for _ in range(count)]

    long, shared = some(32 * n + n // 3), some(12 * n)
    return [
        Case("shorter than a block", [short := some(n - 5)], short, 0),
        Case("one block and a bit", [one := some(n + n // 2)], one, n),
        Case("exactly ten blocks", [ten := some(10 * n)], ten, 9 * n),
        Case("long, asked again", [long], long, 32 * n),
        Case("long, continued", [whole := long[: 32 * n]], whole + some(2 * n), 32 * n),
        Case(
            "third fork of a prefix",
            [shared + some(3 * n), shared + some(2 * n)],
            shared + some(4 * n),
            12 * n,
        ),
    ]


def show(engine: DemoEngine, case: Case, runs: int) -> CaseRow:
    """Runs a case cold, on vLLM's own local hit, and restored; times are medians of ``runs``."""
    cold, restored = [], []
    _warm(engine, case)
    local = engine.ask(case.prompt)
    for _ in range(runs):
        engine.forget(everything=True)
        cold.append(engine.ask(case.prompt))
        if case.before != [case.prompt]:  # else the cold run has just stored it
            _warm(engine, case)
        engine.forget()
        restored.append(engine.ask(case.prompt))
    return CaseRow(
        name=case.name,
        prompt_tokens=len(case.prompt),
        cold_ttft_ms=_milliseconds(cold),
        restored_ttft_ms=_milliseconds(restored),
        restored_tokens=restored[0].loaded_tokens,
        expected_tokens=case.restorable,
        reference_tokens=local.cached_tokens,
        bytes_moved=restored[0].loaded_bytes,
        max_delta_logprob=max(answer.distance(local) for answer in restored),
    )


def continued(engine: DemoEngine, runs: int) -> CaseRow:
    """Goes on from half an answer to a prompt shorter than a block, and compares what follows with
    the rest of the whole answer. Times are medians of ``runs``."""
    rng, half = random.Random("hybrid-pages answer"), 4
    prompt = [rng.randrange(FIRST_TOKEN, VOCAB) for _ in range(engine.block_tokens - 2 * half)]
    cold, restored = [], []
    engine.forget(everything=True)
    whole = engine.ask(prompt, 2 * half)
    for _ in range(runs):
        engine.forget(everything=True)
        longer = [*prompt, *engine.ask(prompt, half).tokens]
        engine.forget()
        restored.append(engine.ask(longer, half))
        engine.forget(everything=True)
        cold.append(engine.ask(longer, half))
    rest = replace(whole, tokens=whole.tokens[half:], logprobs=whole.logprobs[half:])
    return CaseRow(
        name="half an answer, continued",
        prompt_tokens=len(longer),
        cold_ttft_ms=_milliseconds(cold),
        restored_ttft_ms=_milliseconds(restored),
        restored_tokens=restored[0].loaded_tokens,
        expected_tokens=len(longer) - 1,
        reference_tokens=len(longer) - 1,
        bytes_moved=restored[0].loaded_bytes,
        max_delta_logprob=max(answer.distance(rest) for answer in restored),
    )


def restarted(model: Path, host_gb: float, disk: Path, failures: dict[str, float]) -> CaseRow:
    """Asks one engine a prompt, ends it, and asks the next one on the same disk the same prompt.

    Args:
        model: folder of the model.
        host_gb: budget of the connector.
        disk: a directory that no other engine uses.
        failures: gets the counts of both engines added.
    """
    with _started(model, host_gb, disk, failures) as engine:
        again = (case for case in cases(engine.block_tokens) if case.before == [case.prompt])
        case = max(again, key=lambda case: case.restorable)
        cold, local = engine.ask(case.prompt), engine.ask(case.prompt, stored=False)
    with _started(model, host_gb, disk, failures) as engine:
        restored = engine.ask(case.prompt)
    return CaseRow(
        name="restarted, restored from disk",
        prompt_tokens=len(case.prompt),
        cold_ttft_ms=_milliseconds([cold]),
        restored_ttft_ms=_milliseconds([restored]),
        restored_tokens=restored.loaded_tokens,
        expected_tokens=case.restorable,
        reference_tokens=local.cached_tokens,
        bytes_moved=restored.loaded_bytes,
        max_delta_logprob=restored.distance(local),
    )


@contextmanager
def _started(
    model: Path, host_gb: float, disk: Path, failures: dict[str, float]
) -> Iterator[DemoEngine]:
    """An engine that has been asked something else before, as the first prompt takes longer."""
    engine = DemoEngine(model, host_gb, disk)
    try:
        engine.ask([FIRST_TOKEN] * (engine.block_tokens - 1))
        yield engine
        for name, count in engine.failures().items():
            failures[name] = failures.get(name, 0) + count
    finally:
        engine.shutdown()


def _warm(engine: DemoEngine, case: Case) -> None:
    engine.forget(everything=True)
    for prompt in case.before:
        engine.ask(prompt)


def _milliseconds(answers: list[DemoAnswer]) -> float:
    return 1000 * median(answer.ttft_seconds for answer in answers)
