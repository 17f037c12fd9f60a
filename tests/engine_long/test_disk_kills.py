"""Real engines that are killed at random instants, each on the disk of the one before.

What was reported durable is served, everything else is served right or not at all.
`HYBRID_PAGES_KILLS` is the number of kills, `HYBRID_PAGES_SEED` chooses their instants.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[1] / "engine" / "serve_killed.py"
KILLS = int(os.environ.get("HYBRID_PAGES_KILLS", "8"))
SEED = int(os.environ.get("HYBRID_PAGES_SEED", "0"))
# Seconds from each event on within which an engine is killed, in turn: mostly under load, sometimes
# while it restores, once in a while as it starts.
INSTANTS = [("checked", 4.0), ("checked", 1.5), ("ready", 3.0), ("checked", 8.0), ("started", 12.0)]
# Prompts of earlier lives that an engine is asked again, beside all of the last one.
OLDER = 6
# What the tests beside this one set; these engines run as they do by default.
SECOND_RUNNER = ("TRITON_INTERPRET", "VLLM_USE_V2_MODEL_RUNNER")
START_SECONDS = 300
# As in the harness: more than the splitting of prefills alone does to log-probabilities.
NOISE = 0.5

Parts = list[list[Any]]


@dataclass
class Prompt:
    """What is known of a prompt that some engine was sent."""

    parts: Parts
    life: int
    # Whether a cold run gives the bytes that the disk has: not if a batch made them.
    exact: bool
    durable: bool = False
    # From vLLM's own hit, or from the disk once before.
    answer: list[Any] | None = None

    @property
    def cold(self) -> str:
        """What a cold run says about it."""
        return "no" if self.answer is not None else "exact" if self.exact else "near"


@dataclass
class Ledger:
    """What all engines have said."""

    prompts: dict[str, Prompt] = field(default_factory=dict)
    # Entries that were reported to outlive a kill.
    kept: int = 0
    restored: int = 0
    partly: int = 0
    lost: int = 0

    def take(self, life: int, together: bool, events: Sequence[dict[str, Any]]) -> None:
        for event in events:
            getattr(self, f"_{event.pop('event')}", self._other)(life, together, **event)

    def _other(self, life: int, together: bool, **facts: Any) -> None:
        pass

    def _ready(self, life: int, together: bool, entries: int, failures: dict) -> None:
        assert not failures, f"life {life}: {failures}"
        assert entries >= self.kept, f"life {life}: {self.kept} entries were durable, not {entries}"
        self.kept = entries

    def _kept(self, life: int, together: bool, entries: int) -> None:
        self.kept = max(self.kept, entries)

    def _sent(self, life: int, together: bool, prompts: list[Parts]) -> None:
        for parts in prompts:
            exact = not together and len(parts) == 1
            self.prompts[json.dumps(parts)] = Prompt(parts, life, exact)

    def _durable(self, life: int, together: bool, prompts: list[Parts]) -> None:
        for parts in prompts:
            self.prompts[json.dumps(parts)].durable = True

    def _answer(self, life: int, together: bool, prompt: Parts, answer: list[Any]) -> None:
        self.prompts[json.dumps(prompt)].answer = answer

    def _found(
        self,
        life: int,
        together: bool,
        prompt: Parts,
        resumed: int,
        whole: int,
        disk: int,
        answer: list[Any],
        equal: bool,
        distance: float,
    ) -> None:
        known = self.prompts[json.dumps(prompt)]
        what = f"life {life}, {known}: resumed {resumed} of {whole}, {disk} from disk"
        assert resumed in (0, whole) or len(prompt) > 1, what
        assert resumed == whole or not known.durable, what
        # The beginning of a continuation may be in the host by now.
        assert disk == resumed or len(prompt) > 1, what
        assert equal, what
        if resumed == whole:
            assert known.answer in (None, answer), f"{what}: {answer}"
            known.answer = answer
        assert distance < NOISE, f"{what}: {distance}"
        self.restored += resumed == whole
        self.partly += 0 < resumed < whole
        self.lost += not resumed

    def _checked(self, life: int, together: bool, failures: dict, dropped: int) -> None:
        assert not failures and not dropped, f"life {life}: {failures}, {dropped} dropped"


class Victim:
    """An engine's process, and what it says."""

    def __init__(self, model: Path, disk: Path, log: Path, plan: dict[str, Any]) -> None:
        self.log, self.events = log, [{"event": "started"}]
        self._news = threading.Condition()
        environment = {key: item for key, item in os.environ.items() if key not in SECOND_RUNNER}
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, SCRIPT, model, disk, json.dumps(plan)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._ended = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            # A kill may cut the last line.
            if line.startswith("HP ") and line.endswith("\n"):
                with self._news:
                    self.events.append(json.loads(line.removeprefix("HP ")))
                    self._news.notify()
        with self._news:
            self._ended = True
            self._news.notify()

    def wait_for(self, event: str) -> None:
        def said() -> bool:
            return self._ended or any(each["event"] == event for each in self.events)

        with self._news:
            assert self._news.wait_for(said, START_SECONDS), f"{event} did not come{self.tail()}"

    def tail(self) -> str:
        return "\n" + self.log.read_text(errors="replace")[-5000:]

    def kill(self, event: str, seconds: float) -> list[dict[str, Any]]:
        """Kills the process so long after an event; what it had said by then."""
        self.wait_for(event)
        with self._news:
            self._news.wait_for(lambda: self._ended, seconds)
        assert self.process.poll() is None, "the engine ended" + self.tail()
        return self.end()

    def end(self) -> list[dict[str, Any]]:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        return self.events


def checks(ledger: Ledger, life: int, rng: random.Random) -> list[dict[str, Any]]:
    """The prompts of the last life, and some older ones, each before its continuations: these bring
    what it resumes from to the host."""
    older = [prompt for prompt in ledger.prompts.values() if prompt.life < life - 1]
    last = [prompt for prompt in ledger.prompts.values() if prompt.life == life - 1]
    chosen = rng.sample(older, min(OLDER, len(older))) + last[-12:]
    chosen.sort(key=lambda prompt: prompt.life)
    return [{"prompt": prompt.parts, "cold": prompt.cold} for prompt in chosen]


def test_what_was_durable_outlives_kills_of_a_busy_engine(model, tmp_path):
    rng, ledger = random.Random(SEED), Ledger()
    for life in range(KILLS + 1):
        last = life == KILLS
        together = life % 2 == 1
        check = checks(ledger, life, rng)
        plan = {"life": life, "together": together, "check": check, "serve": not last}
        victim = Victim(model("qwen3.5"), tmp_path / "disk", tmp_path / f"{life}.log", plan)
        try:
            if last:
                victim.wait_for("done")
                assert victim.process.wait(60) == 0, victim.tail()
                events = victim.events
            else:
                event, most = INSTANTS[life % len(INSTANTS)]
                events = victim.kill(event, rng.uniform(0.05, most))
        finally:
            victim.end()
        ledger.take(life, together, events)
        durable = sum(prompt.durable for prompt in ledger.prompts.values())
        print(
            f"life {life}: {len(ledger.prompts)} prompts sent, {durable} durable, {ledger.kept} "
            f"entries kept, {ledger.restored} restored, {ledger.partly} in part, {ledger.lost} not"
        )
    assert durable > KILLS, "too few were reported durable"
    assert ledger.restored > KILLS, "too few came back"
    assert durable < len(ledger.prompts), "no kill came while something was being written"
