"""Time to first token of second turns on real engines, with prompts long enough to be felt.

A first turn has a prompt and an answer; the second one sends both again, and some tokens more. How
far the first turn reaches into a block is drawn at random, so that caches of whole blocks lose half
a block on average.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_overhead import engine_settings
from exact.arms import Arm, chosen
from exact.report import Table
from overhead.driver import EngineProcess, Progress, rotated
from overhead.samples import NONE, OURS, RIVAL

BLOCK = 768
"""As many blocks of 32 tokens, which vLLM's kernels for CPUs take, as are nearest to 784."""
LENGTHS = (1000, 2000, 4000)
"""Tokens of a first prompt, at least; at most a block more."""
ANSWER, MORE = 32, 64
"""Tokens of an answer, and of the message that follows."""
HOST_MIB = 1024
ARMS = (
    Arm("hybrid-pages", OURS),
    Arm("vLLM alone", NONE),
    Arm("vLLM alone, unit 32", NONE, 32),
    Arm("vLLM offloading", RIVAL),
    Arm("vLLM offloading, unit 32", RIVAL, 32),
)


@dataclass
class _Turns:
    """One engine, and its second turns."""

    engine: EngineProcess
    keeps_local: bool
    """Whether vLLM's own cache is what is measured; else others have filled it meanwhile."""
    first_ms: dict[int, list[float]] = field(default_factory=dict)
    computed: dict[int, list[int]] = field(default_factory=dict)
    """Both by the length of first prompts."""

    def talk(self, length: int, prompt: list[int], more: list[int], *, counts: bool) -> None:
        """Two turns; counts: whether they are measured."""
        said = self._run(prompt, ANSWER)
        following = [*prompt, *said["tokens"], *more]
        answer = self._run(following, 1)
        if counts:
            self.first_ms.setdefault(length, []).append(1e3 * answer["ttft_s"])
            computed = len(following) - answer["cached_tokens"]
            self.computed.setdefault(length, []).append(computed)

    def _run(self, prompt: list[int], decode: int) -> dict[str, Any]:
        if not self.keeps_local:
            self.engine.ask("reset_local")
        return self.engine.ask("run", prompts=[prompt], decode=decode)["answers"][0]


def measure_turns(options: argparse.Namespace, folder: Path) -> list[Table]:
    """Starts an engine for each cache, and sends all the same first prompts."""
    from hybrid_pages.demo.models import ensure

    options.burst, options.host_mib = 8, HOST_MIB
    model = ensure("qwen3.5")
    turns: dict[str, _Turns] = {}
    facts: dict[str, Any] = {}
    try:
        for arm in chosen(ARMS, options.arms):
            print(f"starting the engine: {arm.name}", file=sys.stderr, flush=True)
            engine = EngineProcess(arm.name, folder / f"turns-{len(turns)}.log")
            turns[arm.name] = _Turns(engine, arm.connector == NONE)
            settings = engine_settings(arm.connector, model, options) | {"block_size": BLOCK}
            if arm.unit is not None:
                settings["prefix_match_unit"] = arm.unit
            facts = engine.ask("start", settings=settings)
        _talk(turns, options, facts["vocab"])
    finally:
        for one in turns.values():
            one.engine.close()
    return _tables(turns, options, facts)


def _talk(turns: dict[str, _Turns], options: argparse.Namespace, vocabulary: int) -> None:
    rng = random.Random(f"{options.seed} turns")
    progress = Progress((1 + options.rounds) * len(LENGTHS))
    for number in range(1 + options.rounds):
        for length in LENGTHS:
            progress.step(f"round {number} of {options.rounds}, {length} tokens")
            tokens = length + rng.randrange(BLOCK)
            prompt = [rng.randrange(10, vocabulary) for _ in range(tokens)]
            more = [rng.randrange(10, vocabulary) for _ in range(MORE)]
            for name in rotated(list(turns), number):
                turns[name].talk(length, prompt, more, counts=number > 0)
    progress.end()


def _tables(
    turns: dict[str, _Turns], options: argparse.Namespace, facts: dict[str, Any]
) -> list[Table]:
    first = [
        [
            f"{length:,}",
            *(f"{statistics.median(one.first_ms[length]):.0f}" for one in turns.values()),
        ]
        for length in LENGTHS
    ]
    computed = [
        [
            f"{length:,}",
            *(f"{statistics.fmean(one.computed[length]):.0f}" for one in turns.values()),
        ]
        for length in LENGTHS
    ]
    version = f"vLLM {facts['vllm']} on a CPU, blocks of {facts['block_tokens']} tokens"
    return [
        Table(
            f"{version}: time to first token of second turns, ms, medians of {options.rounds}.",
            ["first prompt, tokens", *turns],
            first,
        ),
        Table(
            f"{version}: prompt tokens computed of second turns, means.",
            ["first prompt, tokens", *turns],
            computed,
        ),
    ]
