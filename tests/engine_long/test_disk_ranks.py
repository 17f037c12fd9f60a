"""A disk below two tensor-parallel ranks, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from test_disk_kills import SECOND_RUNNER

SCRIPT = Path(__file__).parents[1] / "engine" / "serve_ranks.py"
N = 128  # vLLM's default block on a CPU
LENGTHS = (500, 900, 1536, 2700)
# No two of these prompts begin alike.
MORE = 1300
# An idle engine writes what it has published within a second.
IDLE_SECONDS = 1.5


def whole(lengths: Sequence[int]) -> list[int]:
    return [(length - 1) // N * N for length in lengths]


def restored(lengths: Sequence[int]) -> list[int]:
    """A prompt that comes again leaves a state before its last token, if that saves 16 tokens."""
    ends = zip(lengths, whole(lengths), strict=True)
    return [length - 1 if length - 1 - end >= 16 else end for length, end in ends]


def said(answers: Sequence[Any]) -> list[Any]:
    """The answers, without how much of their prompts was cached."""
    return [rest for _, *rest in answers]


class Runs:
    """Engines on one disk, one after another."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.disk, self.log = model, folder / "disk", folder / "log"

    def __call__(self, ranks: int, lengths: Sequence[int], *, kill: bool = False) -> dict[str, Any]:
        environment = {
            **{key: value for key, value in os.environ.items() if key not in SECOND_RUNNER},
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        }
        words = [str(ranks), "wait" if kill else "end", *map(str, lengths)]
        with self.log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, SCRIPT, self.model, self.disk, *words],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        try:
            for line in process.stdout:
                if line.startswith("FOUND "):
                    break
            else:
                raise AssertionError("the engine ended:\n" + self.log.read_text()[-5000:])
            if kill:
                time.sleep(IDLE_SECONDS)
                os.killpg(process.pid, signal.SIGKILL)
            process.stdout.read()
            assert process.wait(120) == (-signal.SIGKILL if kill else 0), self.log.read_text()
            return json.loads(line.removeprefix("FOUND "))
        finally:
            process.kill()
            process.wait()


def test_two_ranks_find_their_entries_again_and_one_rank_finds_none(model, tmp_path):
    run = Runs(model("qwen3.5-tp2"), tmp_path)
    before = run(2, LENGTHS, kill=True)
    assert [cached for cached, *_ in before["first"]] == [0] * len(LENGTHS)
    assert [cached for cached, *_ in before["local"]] == whole(LENGTHS)

    after = run(2, [*LENGTHS, MORE])
    assert [cached for cached, *_ in after["first"][:-1]] == restored(LENGTHS)
    assert said(after["first"][:-1]) == said(before["local"])
    assert after["first"][-1][0] == 0
    assert after["metrics"]["hit_tokens:disk"] == sum(restored(LENGTHS))
    assert after["metrics"]["disk_entries:read"] > 0

    # The engine before was ended in order.
    again = run(2, [MORE, *LENGTHS])
    assert [cached for cached, *_ in again["first"]] == restored([MORE, *LENGTHS])
    assert said(again["first"]) == said([after["local"][-1], *before["local"]])
    assert again["metrics"]["hit_tokens:disk"] == sum(restored([MORE, *LENGTHS]))

    alone = run(1, [*LENGTHS, MORE])
    assert [cached for cached, *_ in alone["first"]] == [0] * (len(LENGTHS) + 1)
    assert "hit_tokens:disk" not in alone["metrics"]
    assert alone["metrics"]["disk_used_bytes:other"] > 0
    for each in (before, after, again, alone):
        assert not any("failures" in key for key in each["metrics"]), each["metrics"]
