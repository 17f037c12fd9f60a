"""A workload through real engines of a tiny hybrid model, request by request in turn."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine_overhead import engine_settings
from exact.arms import Arm, before, chosen
from exact.report import Table
from hybrid_pages.lab.computed import Computed
from hybrid_pages.lab.conversations import KINDS, ConversationRequest, Workload
from overhead.driver import EngineProcess, Progress, rotated
from overhead.samples import NONE, OURS, RIVAL

BLOCK = 256
SCALE = 0.33
"""Of the lengths, so that a block holds as many messages as one of 784 tokens."""
HOST_MIB = 1024
WORKLOADS = ("chat-200", "chat-1000", "reasoning-dropped", "agent")
SESSIONS = {"agent": 2}
CHATS = 6
ARMS = (
    Arm("hybrid-pages", OURS),
    Arm("vLLM alone", NONE),
    Arm("vLLM offloading", RIVAL),
)

_Requests = Generator[ConversationRequest, tuple[int, ...] | None, None]


@dataclass
class _Talking:
    """One engine and what it was asked and has answered of a workload."""

    engine: EngineProcess
    keeps_local: bool
    """Whether vLLM's own cache is what is measured; else others have filled it meanwhile."""
    requests: _Requests = field(init=False)
    request: ConversationRequest | None = field(init=False)
    known: Computed = field(init=False)
    computed: int = 0
    ideal: int = 0

    def begin(self, workload: Workload, *, warmed: bool) -> None:
        self.requests, self.known = workload.requests(), Computed()
        self.request = next(self.requests)
        self.computed = self.ideal = 0
        for text in workload.beginnings() if warmed else ():
            self._run(text, 1)
            self.known.add(text)

    def step(self) -> None:
        request = self.request
        assert request is not None
        answer = self._run(list(request.prompt), len(request.answer))
        self.computed += len(request.prompt) - answer["cached_tokens"]
        self.ideal += len(request.prompt) - self.known.known(request.prompt)
        self.known.add([*request.prompt, *answer["tokens"][:-1]])
        try:
            self.request = self.requests.send(tuple(answer["tokens"]))
        except StopIteration:
            self.request = None

    def _run(self, prompt: list[int], decode: int) -> dict[str, Any]:
        if not self.keeps_local:
            self.engine.ask("reset_local")
        done = self.engine.ask("run", prompts=[prompt], decode=decode)
        return done["answers"][0]


def measure(options: argparse.Namespace, folder: Path) -> list[Table]:
    """Starts an engine for each cache, and sends all the same conversations."""
    from hybrid_pages.demo.models import ensure

    options.burst, options.host_mib = 8, HOST_MIB
    model = ensure("qwen3.5")
    earlier = [replace(before(options.before), connector=OURS)] if options.before else []
    talking: dict[str, _Talking] = {}
    facts: dict[str, Any] = {}
    try:
        for arm in chosen([*ARMS, *earlier], options.arms):
            print(f"starting the engine: {arm.name}", file=sys.stderr, flush=True)
            log = folder / f"{arm.name.replace(' ', '-')}.log"
            engine = EngineProcess(arm.name, log, [str(arm.checkout / "python")])
            talking[arm.name] = _Talking(engine, arm.connector == NONE)
            settings = engine_settings(arm.connector, model, options) | {"block_size": BLOCK}
            facts = engine.ask("start", settings=settings)
        return _tables(options, talking, facts)
    finally:
        for one in talking.values():
            one.engine.close()


def _tables(
    options: argparse.Namespace, talking: dict[str, _Talking], facts: dict[str, Any]
) -> list[Table]:
    again: list[list[str]] = []
    for number, name in enumerate(WORKLOADS):
        for warmed in (False, True) if name in options.workloads else ():
            workload = Workload(
                KINDS[name],
                seed=options.seed + 100 * number + warmed,  # nothing is known from before
                sessions=SESSIONS.get(name, CHATS),
                scale=SCALE,
                vocabulary=facts["vocab"],
            )
            _talk(list(talking.values()), workload, f"{name}{', warmed' if warmed else ''}", warmed)
            label = f"{name}, warmed" if warmed else name
            again.append([label, *(f"{one.computed / one.ideal:.2f}" for one in talking.values())])
    version = f"vLLM {facts['vllm']} on a CPU, blocks of {facts['block_tokens']} tokens"
    return [
        Table(
            f"{version}: prompt tokens computed, for each that nobody had computed before.",
            ["workload", *talking],
            again,
        ),
    ]


def _talk(talking: Sequence[_Talking], workload: Workload, label: str, warmed: bool) -> None:
    for one in talking:
        one.begin(workload, warmed=warmed)
    total = sum(1 for _ in workload.requests())
    progress, number = Progress(total), 0
    while all(one.request is not None for one in talking):
        progress.step(f"{label}, request {number} of {total}")
        for place in rotated(list(map(str, range(len(talking)))), number):
            talking[int(place)].step()
        number += 1
    progress.end()
