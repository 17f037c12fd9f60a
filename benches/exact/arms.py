"""The caches that are compared, and a workload through one of them by vLLM's real scheduler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hybrid_pages.lab.chat_template import Special
from hybrid_pages.lab.computed import Computed, computed_by, ideal
from hybrid_pages.lab.conversations import KINDS, ConversationRequest, Workload
from overhead.driver import EngineEnded

ROOT = Path(__file__).resolve().parents[2]
STATE_UNITS = 3
"""A state takes as much room as so many pages."""
ALONE = -1
"""The session of texts that are sent before the others come."""


@dataclass(frozen=True)
class Arm:
    """A cache: ours, vLLM's offloading, or vLLM's own alone."""

    name: str
    connector: str
    unit: int | None = None
    """vLLM's --prefix-match-unit."""
    checkout: Path = ROOT
    settings: dict[str, Any] = field(default_factory=dict)
    more_blocks: bool = False
    """Whether vLLM's pool has the memory as blocks in addition: a bound, as no host memory is."""

    @property
    def uses_memory(self) -> bool:
        """Whether it makes a difference how much memory there is beside vLLM's pool."""
        return self.connector != "none" or self.more_blocks

    def fits(self, block: int) -> bool:
        """Whether vLLM takes the unit for blocks of so many tokens."""
        return self.unit is None or block % self.unit == 0


OURS = Arm("hybrid-pages", "ours")
VLLM = Arm("vLLM alone", "none")
OFFLOADING = Arm("vLLM offloading", "offloading")
ARMS = (
    OURS,
    Arm("hybrid-pages, unit 16", "ours", 16),
    VLLM,
    Arm("vLLM alone, unit 16", "none", 16),
    OFFLOADING,
    Arm("vLLM offloading, unit 16", "offloading", 16),
    Arm("vLLM offloading, unit 32", "offloading", 32),
    Arm("vLLM alone, were the memory GPU memory", "none", more_blocks=True),
    Arm("vLLM alone, were the memory GPU memory, unit 16", "none", 16, more_blocks=True),
)


def before(checkout: Path) -> Arm:
    """Ours as another version has it, built in a checkout of it."""
    return Arm("hybrid-pages before", "ours", checkout=checkout.resolve())


@dataclass
class Texts:
    """A workload, what it would cost a cache that forgets nothing, and the room that takes."""

    name: str
    warmed: bool
    requests: list[ConversationRequest]
    beginnings: list[list[int]]
    ideal: list[int]

    @classmethod
    def of(cls, name: str, *, warmed: bool, seed: int, sessions: int) -> Texts:
        workload = Workload(KINDS[name], seed=seed, sessions=sessions)
        requests = list(workload.requests())
        beginnings = workload.beginnings() if warmed else []
        return cls(name, warmed, requests, beginnings, list(ideal(requests, beginnings)))

    @property
    def label(self) -> str:
        return f"{self.name}, warmed" if self.warmed else self.name

    def footprint(self, block: int) -> int:
        """Pages that hold all texts and a state behind each of their blocks."""
        computed = Computed()
        for text in self.beginnings:
            computed.add(text)
        for request in self.requests:
            computed.add(computed_by(request))
        return computed.blocks(block) * (1 + STATE_UNITS)

    def write(self, file: Path) -> None:
        """A JSON object for each request."""
        with file.open("w") as out:
            for text in self.beginnings:
                asked = {"session": ALONE, "prompt": text, "answer": [Special.START], "alone": True}
                out.write(json.dumps(asked) + "\n")
            for request in self.requests:
                asked = {"session": request.session, "alone": False}
                asked |= {"prompt": request.prompt, "answer": request.answer}
                out.write(json.dumps(asked) + "\n")


@dataclass(frozen=True)
class Outcome:
    """What a workload cost with one cache."""

    arm: Arm
    texts: Texts
    block: int
    memory: float
    found: dict[str, Any]

    @property
    def computed(self) -> list[int]:
        """Tokens of each prompt that were computed; not of the texts sent before."""
        rows = self.found["rows"][len(self.texts.beginnings) :]
        return [row["computed"] for row in rows]

    @property
    def multiple(self) -> float:
        """Tokens that were computed, for each that nobody had computed before."""
        return sum(self.computed) / sum(self.texts.ideal)


class Simulation:
    """A process that sends workloads through vLLM's scheduler with one cache."""

    def __init__(self, arm: Arm, log: Path, vllm: Path | None) -> None:
        """vllm: a folder of vLLM's Python files, instead of the installed one."""
        self.arm, self._log = arm, log
        path = [arm.checkout / "python", arm.checkout / "tests" / "scheduler", ROOT / "benches"]
        path.append(ROOT / "tests" / "scheduler")  # for what an earlier checkout lacks
        if vllm is not None:
            path.insert(0, vllm.resolve())
        with log.open("w") as sink:
            self._process = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("simulated.py")],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                text=True,
            )

    def run(self, texts: Texts, file: Path, block: int, memory: float, **how: Any) -> Outcome:
        """file: what the workload wrote. memory: a share of its footprint.

        Raises:
            EngineEnded: the process is gone; the message holds the end of its log.
        """
        given = {
            "requests": str(file),
            "connector": self.arm.connector,
            "settings": self.arm.settings,
            "unit": self.arm.unit,
            "more_blocks": self.arm.more_blocks,
            "block": block,
            "memory": max(1 + STATE_UNITS, round(memory * texts.footprint(block))),
        }
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answers is not None
        try:
            asked.write(json.dumps(given | how) + "\n")
            asked.flush()
            line = answers.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])
            raise EngineEnded(f"{tail}\n'{self.arm.name}' ended in '{texts.label}'")
        return Outcome(self.arm, texts, block, memory, json.loads(line))

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


def lost(outcome: Outcome, most: int) -> Iterator[str]:
    """Lines on the requests that computed most of what was known."""
    found = outcome.found["rows"][len(outcome.texts.beginnings) :]
    turns: dict[int, int] = {}
    lines = []
    for request, row, least in zip(outcome.texts.requests, found, outcome.texts.ideal, strict=True):
        turn = turns[request.session] = turns.get(request.session, 0) + 1
        lines.append((row["computed"] - least, request, turn, row, least))
    for excess, request, turn, row, least in sorted(lines, key=lambda line: -line[0])[:most]:
        yield (
            f"    session {request.session}, request {turn}: computed {row['computed']} of "
            f"{len(request.prompt)}, new {least}, again {excess}; from vLLM's own cache "
            f"{row['local']}, restored {row['restored']}"
        )


def chosen(arms: Sequence[Arm], parts: Sequence[str]) -> list[Arm]:
    """Those whose names have one of the parts, or all."""
    return [arm for arm in arms if not parts or any(part in arm.name for part in parts)]
