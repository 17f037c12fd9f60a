"""Engines in processes of their own, driven in turn over pipes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overhead.samples import LOCAL, PHASES, Results

BENCHES = Path(__file__).resolve().parent.parent
FIRST_TOKEN = 3  # ids below it are special in the tiny models
DECODE_TOKENS = 16
MODEL_LENGTH = 8192
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}


class EngineEnded(Exception):
    """An engine's process is gone."""


class EngineProcess:
    """One engine; vLLM's output goes to `log`. It imports from `path` first."""

    def __init__(self, variant: str, log: Path, path: Sequence[str] = ()) -> None:
        self.variant, self._log = variant, log
        command_read, command_write = os.pipe()
        answer_read, answer_write = os.pipe()
        program = BENCHES / "overhead" / "engine.py"
        search = [*path, str(BENCHES / "rivals"), os.environ.get("PYTHONPATH", "")]
        with log.open("w") as sink:
            self._process = subprocess.Popen(
                [sys.executable, program, str(command_read), str(answer_write)],
                env=os.environ
                | ENVIRONMENT
                | {"PYTHONPATH": os.pathsep.join(filter(None, search))},
                pass_fds=(command_read, answer_write),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )
        os.close(command_read)
        os.close(answer_write)
        self._commands = os.fdopen(command_write, "w")
        self._answers = os.fdopen(answer_read)

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer.

        Raises:
            EngineEnded: the process is gone; the message holds the end of its log.
        """
        try:
            self._commands.write(json.dumps({"command": command, **arguments}) + "\n")
            self._commands.flush()
            line = self._answers.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])
            raise EngineEnded(f"{tail}\nthe engine '{self.variant}' ended; its log: {self._log}")
        return json.loads(line)

    def device_read(self) -> int:
        """Bytes that devices have read for the process so far."""
        lines = Path(f"/proc/{self._process.pid}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))

    def close(self) -> None:
        """Ends the process, gently first."""
        with contextlib.suppress(BrokenPipeError):  # it may have ended by itself
            self._commands.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()


@dataclass(frozen=True)
class Case:
    """One prompt, or several that are sent together and share their first half."""

    length: int
    prompts: int = 1

    @property
    def label(self) -> str:
        return f"{self.length}" if self.prompts == 1 else f"{self.prompts} x {self.length}"

    def make(self, rng: random.Random, vocab: int) -> list[list[int]]:
        def words(count: int) -> list[int]:
            return [rng.randrange(FIRST_TOKEN, vocab) for _ in range(count)]

        shared = words(self.length // 2)
        return [shared + words(self.length - len(shared)) for _ in range(self.prompts)]


def measure(
    engines: Mapping[str, EngineProcess], cases: Sequence[Case], rounds: int, seed: int, vocab: int
) -> Results:
    """A warm-up round, whose figures are dropped, and then the measured ones.

    Each prompt is new to every engine. It runs cold, again with vLLM's own prefix cache warm
    (local), and again with that cache emptied (restored): engine by engine, and each time another
    engine begins.
    """
    results = Results()
    progress = Progress((1 + rounds) * len(cases) * len(PHASES) * len(engines))
    for turn in range(1 + rounds):
        kept = results if turn else Results()
        for number, case in enumerate(cases):
            prompts = case.make(random.Random(f"{seed} {turn} {case.label}"), vocab)
            runs: dict[tuple[str, str], dict[str, Any]] = {}
            for phase in PHASES:
                for variant in rotated(list(engines), turn + number):
                    progress.step(f"round {turn} of {rounds}: {case.label}, {phase}, {variant}")
                    if phase != LOCAL:
                        engines[variant].ask("reset_local")
                    run = engines[variant].ask("run", prompts=prompts, decode=DECODE_TOKENS)
                    runs[variant, phase] = run
                    kept.add(variant, case.label, phase, run)
            kept.compare(case.label, runs)
    progress.end()
    results.check_depth([case.label for case in cases])
    return results


def rotated(items: list[str], by: int) -> list[str]:
    """The items from another one on."""
    return items[by % len(items) :] + items[: by % len(items)]


class Progress:
    """A bar on a terminal; a line now and then elsewhere."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._live = total, 0, sys.stderr.isatty()

    def step(self, what: str) -> None:
        share = self._done / self._total
        if self._live:
            bar = ("#" * int(24 * share)).ljust(24, ".")
            print(f"\r[{bar}] {share:4.0%} {what:<64.64}", end="", file=sys.stderr, flush=True)
        elif self._done % max(1, self._total // 10) == 0:
            print(f"{share:4.0%} {what}", file=sys.stderr, flush=True)
        self._done += 1

    def end(self) -> None:
        if self._live:
            print(f"\r{'':<96}\r", end="", file=sys.stderr, flush=True)
