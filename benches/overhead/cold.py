"""Cold runs: what a connector costs where it cannot help, and where that time goes."""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from overhead.driver import DECODE_TOKENS, Case, EngineProcess, Progress, rotated
from overhead.samples import NONE, percentile

WHOLE, SCHEDULER = "the whole run", "scheduler steps, connector included"


@dataclass
class Cold:
    """Microseconds of each cold run, in the rounds' order, by variant and case."""

    whole: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    parts: dict[tuple[str, str], list[Mapping[str, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By part: the scheduler's steps, and each call into either half of a connector."""

    def add(self, variant: str, case: str, run: Mapping[str, Any]) -> None:
        self.whole[variant, case].append(1e6 * run["run_s"])
        steps = sum(step["scheduler_s"] for step in run["steps"])
        seconds = {SCHEDULER: steps}
        seconds |= {f"scheduler half: {name}": s for name, s in run["calls"].items()}
        seconds |= {f"worker half: {name}": s for name, s in run["worker_calls"].items()}
        self.parts[variant, case].append({name: 1e6 * s for name, s in seconds.items()})

    def ratios(self, variant: str, case: str) -> list[float]:
        """A connector's time by that of the engine without one, round by round."""
        pairs = zip(self.whole[variant, case], self.whole[NONE, case], strict=True)
        return [ours / none for ours, none in pairs]


def measure_cold(
    engines: Mapping[str, EngineProcess],
    cases: Sequence[Case],
    rounds: int,
    seed: int,
    vocab: int,
) -> Cold:
    """Prompts that are new to every engine, one after another on each, each time from another one
    on, so that whatever else the machine does hits all of them."""
    cold = Cold()
    progress = Progress(rounds * len(cases) * len(engines))
    for turn in range(rounds):
        for number, case in enumerate(cases):
            prompts = case.make(random.Random(f"cold {seed} {turn} {case.label}"), vocab)
            for variant in rotated(list(engines), turn + number):
                progress.step(f"cold round {turn} of {rounds}: {case.label}, {variant}")
                engines[variant].ask("reset_local")
                run = engines[variant].ask("run", prompts=prompts, decode=DECODE_TOKENS)
                cold.add(variant, case.label, run)
    progress.end()
    return cold


def whole_runs(cold: Cold, variants: Sequence[str], cases: Sequence[str]) -> Iterator[list[str]]:
    """A table: medians with their quartiles, and the ratios of the rounds with theirs."""
    others = [variant for variant in variants if variant != NONE]
    yield ["prompt", *variants, *(f"{variant} / none" for variant in others)]
    for case in cases:
        times = [_quartiles([us / 1e3 for us in cold.whole[v, case]], "{:.1f}") for v in variants]
        ratios = [_quartiles(cold.ratios(variant, case), "{:.3f}") for variant in others]
        yield [case, *times, *ratios]


def where_it_goes(cold: Cold, variants: Sequence[str], case: str) -> Iterator[list[str]]:
    """A table of one case: the medians of the whole run and of its parts, the costliest first."""
    yield [f"{case} tokens", *variants]
    yield [WHOLE, *(f"{statistics.median(cold.whole[v, case]):.0f}" for v in variants)]
    names = dict.fromkeys(name for v in variants for part in cold.parts[v, case] for name in part)
    medians = {
        name: [
            statistics.median(part.get(name, 0.0) for part in cold.parts[v, case]) for v in variants
        ]
        for name in names
    }
    for name, found in sorted(medians.items(), key=lambda item: -max(item[1])):
        if max(found) >= 1:
            yield [name, *(f"{value:.0f}" for value in found)]


def as_json(cold: Cold) -> list[dict[str, Any]]:
    """Every run."""
    return [
        {
            "variant": variant,
            "prompt": case,
            "whole_us": [round(us, 1) for us in times],
            "parts_us": [
                {name: round(us, 1) for name, us in part.items()}
                for part in cold.parts[variant, case]
            ],
        }
        for (variant, case), times in cold.whole.items()
    ]


def _quartiles(values: Sequence[float], form: str) -> str:
    found = (statistics.median(values), percentile(values, 0.25), percentile(values, 0.75))
    middle, low, high = map(form.format, found)
    return f"{middle} ({low}-{high})"
