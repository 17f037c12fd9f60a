"""Benches whose engines store prompts, end, and start again."""

from __future__ import annotations

import argparse
import datetime
import os
import random
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from overhead.driver import (
    DECODE_TOKENS,
    MODEL_LENGTH,
    Case,
    EngineEnded,
    EngineProcess,
    Progress,
    rotated,
)
from overhead.report import machine, write_json
from overhead.samples import LOCAL, Results


def parse(description: str, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of such a bench."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    add = parser.add_argument
    add("--rounds", type=int, default=7, help="measured rounds, after one to warm up (7)")
    add("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 6144], help="tokens")
    add("--host-mib", type=int, default=512, help="host memory of each connector (512)")
    add("--disk", type=Path, help="an existing folder for both (the system's for temporary files)")
    add("--model", type=Path, help="a model's folder (the demo's tiny Qwen3.5)")
    add("--seed", type=int, default=0, help="of the prompts")
    add("--json", type=Path, metavar="FILE", help="write every sample there")
    add("--quick", action="store_true", help="two rounds of short prompts: does it work at all")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.lengths = 2, [512, 1024]
    if options.rounds < 1 or not all(128 <= n <= MODEL_LENGTH - 32 for n in options.lengths):
        parser.error(
            f"expected at least one round, and lengths from 128 to {MODEL_LENGTH - 32} tokens"
        )
    if options.host_mib < 64:
        parser.error("expected a budget of at least 64 MiB")
    options.burst = 1
    return options


class Engines(Mapping[str, EngineProcess]):
    """Engines that run at a time."""

    def __init__(self) -> None:
        self._running: dict[str, EngineProcess] = {}

    def start(self, variant: str, log: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
        self._running[variant] = EngineProcess(variant, log)
        return self._running[variant].ask("start", settings=settings)

    def close(self, variant: str) -> None:
        """Ends an engine once its stores have arrived."""
        self._running[variant].ask("end")
        self._running.pop(variant).close()

    def __getitem__(self, variant: str) -> EngineProcess:
        return self._running[variant]

    def __iter__(self) -> Iterator[str]:
        return iter(self._running)

    def __len__(self) -> int:
        return len(self._running)

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *_: object) -> None:
        for engine in self._running.values():
            engine.close()


class Bench(ABC):
    """Prompts, engines and what was found."""

    name: str
    """Seeds its prompts."""

    def __init__(self, options: argparse.Namespace, model: Path, place: Path) -> None:
        self._options, self._model, self._place = options, model, place
        self._cases = [Case(length) for length in options.lengths]
        self.results = Results()
        self.read: dict[tuple[str, str, str], list[int]] = {}
        """Bytes that runs have read from devices, by variant, case and phase."""
        self.facts: dict[str, Any] = {}

    @abstractmethod
    def run(self) -> None:
        """Stores, starts again and measures."""

    @abstractmethod
    def tables(self) -> None:
        """Prints what was measured."""

    def _prompts(self, turn: int, case: Case) -> list[list[int]]:
        rng = random.Random(f"{self.name} {self._options.seed} {turn} {case.label}")
        return case.make(rng, self.facts["vocab"])

    def _turns(self) -> Iterator[tuple[int, int, Case]]:
        for turn in range(1 + self._options.rounds):
            for number, case in enumerate(self._cases):
                yield turn, turn + number, case

    def _measure(self, engines: Engines, parts: Sequence[Sequence[tuple[str, str]]]) -> None:
        """Runs each prompt in every part, a part's variants and phases in turn."""
        per_prompt = sum(map(len, parts))
        progress = Progress((1 + self._options.rounds) * len(self._cases) * per_prompt)
        for turn, shift, case in self._turns():
            prompts = self._prompts(turn, case)
            runs: dict[tuple[str, str], dict[str, Any]] = {}
            kept = self.results if turn else Results()
            for part in parts:
                for variant, phase in rotated(list(part), shift):
                    progress.step(f"round {turn}: {case.label}, {variant}, {phase}")
                    engine = engines[variant]
                    if phase != LOCAL:
                        engine.ask("reset_local")
                    before = engine.device_read()
                    run = engine.ask("run", prompts=prompts, decode=DECODE_TOKENS)
                    if turn:
                        read = self.read.setdefault((variant, case.label, phase), [])
                        read.append(engine.device_read() - before)
                    runs[variant, phase] = run
                    kept.add(variant, case.label, phase, run)
            kept.compare(case.label, runs)
        progress.end()

    def _ms(self, variant: str, case: Case, phase: str) -> list[float]:
        return self.results.samples[variant, case.label, phase].ttft_ms

    def print(self) -> None:
        """The tables, and what was compared."""
        print(
            f"vLLM {self.facts['vllm']}, blocks of {self.facts['block_tokens']} tokens, "
            f"medians of {self._options.rounds} rounds"
        )
        self.tables()
        print(
            f"\n{self.results.compared} pairs of runs of one prompt took the same steps; largest "
            f"difference of log-probabilities: {self.results.max_logprob_difference:g}"
        )
        for problem in self.results.problems:
            print(f"PROBLEM {problem}")

    def as_json(self) -> dict[str, Any]:
        """Every sample."""
        shown = ("rounds", "lengths", "host_mib", "seed")
        return {
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "engine": self.facts,
            "options": {name: getattr(self._options, name) for name in shown},
            "runs": [
                {
                    "variant": variant,
                    "prompt": case,
                    "phase": phase,
                    "ttft_ms": [round(ms, 2) for ms in found.ttft_ms],
                    "external": found.external,
                }
                for (variant, case, phase), found in self.results.samples.items()
            ],
            "compared": self.results.compared,
            "max_logprob_difference": self.results.max_logprob_difference,
            "problems": self.results.problems,
        }


def drop_cached(folder: Path) -> None:
    """Has the system forget what it caches of the files, once they are on the device."""
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            try:
                os.fsync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)


def run(options: argparse.Namespace, make: Callable[[Path, Path], Bench]) -> int:
    """Makes a bench of a model and a folder, runs it and prints what it found; the exit status."""
    model = options.model
    if model is None:
        from hybrid_pages.demo.models import ensure

        model = ensure("qwen3.5")
    with tempfile.TemporaryDirectory(prefix="again-", dir=options.disk) as place:
        bench = make(model, Path(place))
        try:
            bench.run()
        except EngineEnded as error:
            print(error, file=sys.stderr)
            return 2
    bench.print()
    if options.json:
        write_json(options.json, bench.as_json())
    return 1 if bench.results.problems else 0
