"""Time to first token of prompts restored from disk: hybrid-pages against vLLM's own file tier.

Two engines of one tiny hybrid model store prompts, one with `disk_path`, one with vLLM's
`TieringOffloadingSpec` and its `fs` tier (by the memcpy spec of rivals/). Both end and start again,
so that no memory holds anything, beside a third one without a connector. Then each prompt runs on
all three, in turn, each time from another one on. While prompts are stored, a third engine without
a disk shows what the disk costs. README.md says how to read the tables.
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine_overhead import MODEL_LENGTH, engine_settings
from overhead.driver import DECODE_TOKENS, Case, EngineEnded, EngineProcess, Progress, rotated
from overhead.report import machine, print_table, write_json
from overhead.samples import COLD, LOCAL, NONE, OURS, Results, paired, spread

RIVAL = "vLLM fs tier"
DISKLESS = "hybrid-pages, no disk"
HOST, DISK = "host", "disk"
RESTORED = (OURS, RIVAL)
STORING = (DISKLESS, *RESTORED)
# Each prompt's phases: where its first blocks are when it runs.
RUNS = (
    ((NONE, COLD), (OURS, DISK), (RIVAL, DISK)),
    ((NONE, LOCAL), (OURS, HOST), (RIVAL, HOST)),
)


def transfer_config(variant: str, folder: Path, host_mib: int) -> dict[str, Any]:
    """A connector's --kv-transfer-config: equal host memory, folders of one file system."""
    if variant in (OURS, DISKLESS):
        extra: dict[str, Any] = {"host_gb": host_mib / 1024}
        if variant == OURS:
            extra |= {"disk_path": str(folder), "disk_gb": 4}
        name = "HybridPagesConnector"
    else:
        name = "OffloadingConnector"
        extra = {
            "spec_name": "MemcpyTieringSpec",
            "spec_module_path": "memcpy_tiering_spec",
            "cpu_bytes_to_use": host_mib << 20,
            "secondary_tiers": [{"type": "fs", "root_dir": str(folder)}],
        }
    return {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra}


def parse(description: str, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a bench whose engines store prompts, end, and start again."""
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


class Bench:
    """Prompts, engines and what was found."""

    def __init__(self, options: argparse.Namespace, model: Path, place: Path) -> None:
        self._options, self._model, self._place = options, model, place
        self._cases = [Case(length) for length in options.lengths]
        self.results = Results()
        self.read: dict[tuple[str, str], list[int]] = {}
        """Bytes read from devices by runs from disk, by variant and case."""
        self.whole: dict[tuple[str, str], list[float]] = {}
        """Milliseconds of whole runs that store, by variant and case."""
        self.facts: dict[str, Any] = {}

    def run(self) -> None:
        """Stores, starts again and measures."""
        with Engines() as engines:
            for variant in STORING:
                self.facts = self._start(engines, variant, "store")
            self._store(engines)
            for variant in STORING:
                engines.close(variant)
        for variant in RESTORED:
            drop_cached(self._place / _folder(variant))
        with Engines() as engines:
            for variant in (NONE, *RESTORED):
                self._start(engines, variant, "restore")
            self._measure(engines)
        self._check()

    def _start(self, engines: Engines, variant: str, part: str) -> dict[str, Any]:
        print(f"starting the engine: {variant}", file=sys.stderr, flush=True)
        settings = engine_settings(NONE, self._model, self._options)
        if variant != NONE:
            folder = self._place / _folder(variant)
            folder.mkdir(exist_ok=True)
            settings["kv_transfer_config"] = transfer_config(
                variant, folder, self._options.host_mib
            )
        log = self._place / f"{_folder(variant)}-{part}.log"
        return engines.start(variant, log, settings)

    def _prompts(self, turn: int, case: Case) -> list[list[int]]:
        rng = random.Random(f"disk {self._options.seed} {turn} {case.label}")
        return case.make(rng, self.facts["vocab"])

    def _turns(self) -> Iterator[tuple[int, int, Case]]:
        for turn in range(1 + self._options.rounds):
            for number, case in enumerate(self._cases):
                yield turn, turn + number, case

    def _store(self, engines: Engines) -> None:
        progress = Progress((1 + self._options.rounds) * len(self._cases))
        for turn, shift, case in self._turns():
            progress.step(f"storing, round {turn}: {case.label}")
            prompts = self._prompts(turn, case)
            for variant in rotated(list(STORING), shift):
                run = engines[variant].ask("run", prompts=prompts, decode=DECODE_TOKENS)
                if any(answer["cached_tokens"] for answer in run["answers"]):
                    raise RuntimeError(f"expected nothing of a new prompt, {variant} found some")
                if turn:
                    self.results.add(variant, case.label, COLD, run)
                    self.whole.setdefault((variant, case.label), []).append(1e3 * run["run_s"])
        progress.end()

    def _measure(self, engines: Engines) -> None:
        progress = Progress((1 + self._options.rounds) * len(self._cases) * 6)
        for turn, shift, case in self._turns():
            prompts = self._prompts(turn, case)
            runs: dict[tuple[str, str], dict[str, Any]] = {}
            kept = self.results if turn else Results()
            for parts in RUNS:
                for variant, phase in rotated(list(parts), shift):
                    progress.step(f"round {turn}: {case.label}, {variant}, {phase}")
                    engine = engines[variant]
                    if phase != LOCAL:
                        engine.ask("reset_local")
                    before = engine.device_read()
                    run = engine.ask("run", prompts=prompts, decode=DECODE_TOKENS)
                    if turn and phase == DISK:
                        found = self.read.setdefault((variant, case.label), [])
                        found.append(engine.device_read() - before)
                    runs[variant, phase] = run
                    kept.add(variant, case.label, phase, run)
            kept.compare(case.label, runs)
        progress.end()

    def _check(self) -> None:
        """Both must have restored what vLLM's local hit gives, and must have read it."""
        for case in self._cases:
            local = self.results.samples[NONE, case.label, LOCAL].cached
            for variant in RESTORED:
                found = self.results.samples[variant, case.label, DISK].external
                if found != local:
                    self.results.problems.append(
                        f"{case.label}: {variant} restored {spread(found)} tokens from disk; "
                        f"vLLM's local hit has {spread(local)}"
                    )
                if min(self.read[variant, case.label]) == 0:
                    self.results.problems.append(
                        f"{case.label}: {variant} read nothing from the device"
                    )

    def print(self) -> None:
        """The tables."""
        print_table("time to first token, ms", self._first_token())
        print_table("restored from disk", self._restored())
        print_table("cold runs that store, ms", self._storing())
        print(
            f"\n{self.results.compared} pairs of runs of one prompt took the same steps; largest "
            f"difference of log-probabilities: {self.results.max_logprob_difference:g}"
        )
        for problem in self.results.problems:
            print(f"PROBLEM {problem}")

    def _ms(self, variant: str, case: Case, phase: str) -> list[float]:
        return self.results.samples[variant, case.label, phase].ttft_ms

    def _first_token(self) -> Iterator[list[str]]:
        columns = [pair for parts in RUNS for pair in parts]
        yield [
            "prompt",
            *(f"{variant}: {phase}" for variant, phase in columns),
            "disk: ours / vLLM's",
            "host: ours / vLLM's",
            "cold / ours",
        ]
        for case in self._cases:
            times = [f"{statistics.median(self._ms(v, case, p)):.1f}" for v, p in columns]
            ours = self._ms(OURS, case, DISK)
            yield [
                case.label,
                *times,
                paired(ours, self._ms(RIVAL, case, DISK)),
                paired(self._ms(OURS, case, HOST), self._ms(RIVAL, case, HOST)),
                paired(self._ms(NONE, case, COLD), ours),
            ]

    def _restored(self) -> Iterator[list[str]]:
        yield ["prompt", "tokens", *(f"{variant}: MiB read" for variant in RESTORED)]
        for case in self._cases:
            tokens = self.results.samples[OURS, case.label, DISK].external
            read = [statistics.median(self.read[v, case.label]) / (1 << 20) for v in RESTORED]
            yield [case.label, spread(tokens), *(f"{mib:.1f}" for mib in read)]

    def _storing(self) -> Iterator[list[str]]:
        yield [
            "prompt",
            *(f"{variant}: {what}" for what in ("first token", "whole run") for variant in STORING),
            "first token: with disk / without",
            "whole run: with disk / without",
        ]
        for case in self._cases:
            first = {variant: self._ms(variant, case, COLD) for variant in STORING}
            whole = {variant: self.whole[variant, case.label] for variant in STORING}
            yield [
                case.label,
                *(
                    f"{statistics.median(times[v]):.1f}"
                    for times in (first, whole)
                    for v in STORING
                ),
                paired(first[OURS], first[DISKLESS]),
                paired(whole[OURS], whole[DISKLESS]),
            ]

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
                    "device_bytes": self.read.get((variant, case), []) if phase == DISK else [],
                }
                for (variant, case, phase), found in self.results.samples.items()
            ],
            "storing": [
                {"variant": variant, "prompt": case, "whole_ms": [round(ms, 2) for ms in times]}
                for (variant, case), times in self.whole.items()
            ],
            "compared": self.results.compared,
            "max_logprob_difference": self.results.max_logprob_difference,
            "problems": self.results.problems,
        }


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


def _folder(variant: str) -> str:
    return variant.replace(",", "").replace(" ", "-")


def main() -> int:
    options = parse(__doc__)
    model = options.model
    if model is None:
        from hybrid_pages.demo.models import ensure

        model = ensure("qwen3.5")
    with tempfile.TemporaryDirectory(prefix="disk-ttft-", dir=options.disk) as place:
        bench = Bench(options, model, Path(place))
        try:
            bench.run()
        except EngineEnded as error:
            print(error, file=sys.stderr)
            return 2
    print(
        f"vLLM {bench.facts['vllm']}, blocks of {bench.facts['block_tokens']} tokens, "
        f"medians of {options.rounds} rounds"
    )
    bench.print()
    if options.json:
        write_json(options.json, bench.as_json())
    return 1 if bench.results.problems else 0


if __name__ == "__main__":
    sys.exit(main())
