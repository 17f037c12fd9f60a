"""Hits and costs of policies and checkpoint modes on a real vLLM engine with a small budget.

The same requests go to each engine, one after the other: a system prompt that all of them share,
one-shot prompts, and conversations that come back. vLLM's own cache is emptied before each, as if
others had filled it. A rival, vLLM's OffloadingConnector, gets the same budget.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine_overhead import engine_settings
from overhead.driver import FIRST_TOKEN, EngineEnded, EngineProcess, Progress
from overhead.samples import OURS, RIVAL

DECODE_TOKENS = 8
TURNS = 6
TALKS = 3


@dataclass(frozen=True)
class Variant:
    """An engine: a connector with its settings."""

    name: str
    connector: str
    settings: dict[str, Any]


@dataclass
class Row:
    """Totals of one variant over all requests."""

    name: str
    prompt_tokens: int = 0
    restored_tokens: int = 0
    steps: int = 0
    stored_mib: float = 0.0
    checkpoints: int = 0
    missing_state_tokens: int = 0


def variants(block: int, chosen: Sequence[str]) -> list[Variant]:
    """Policies in the mode that is the default, and modes with the policy that is."""
    policies = [
        Variant("reuse, adaptive", OURS, {}),
        Variant("junction-lru, adaptive", OURS, {"policy": "junction-lru"}),
        Variant(
            "junction-lru, align", OURS, {"policy": "junction-lru", "checkpoint_mode": "align"}
        ),
        Variant(
            "page-lru, a state at every boundary",
            OURS,
            {"policy": "page-lru", "checkpoint_mode": "all", "checkpoint_interval": block},
        ),
        Variant("reuse, align", OURS, {"checkpoint_mode": "align"}),
        Variant("reuse, all", OURS, {"checkpoint_mode": "all"}),
        Variant("reuse, none", OURS, {"checkpoint_mode": "none"}),
        Variant(RIVAL, RIVAL, {}),
    ]
    return [each for each in policies if not chosen or any(part in each.name for part in chosen)]


def requests(seed: int, count: int, block: int, vocab: int, one_shots: float) -> list[list[int]]:
    """Prompts in order. Answers in conversations are made up, so that all engines get the same."""
    rng = random.Random(seed)

    def words(tokens: int) -> list[int]:
        return [rng.randrange(FIRST_TOKEN, vocab) for _ in range(tokens)]

    system = words(4 * block + 5)
    talks: list[tuple[int, list[int]]] = []
    prompts = []
    for _ in range(count):
        talks += [(0, system)] * (TALKS - len(talks))
        if rng.random() < one_shots:
            prompts.append(system + words(rng.randint(3, 6) * block))
            continue
        at = rng.randrange(TALKS)
        turn, talk = talks[at]
        prompts.append(talk + words(block + 7))
        if turn + 1 < TURNS:
            talks[at] = turn + 1, prompts[-1] + words(DECODE_TOKENS)
        else:
            del talks[at]
    return prompts


def run(variant: Variant, options: argparse.Namespace, model: Path, log: Path) -> Row:
    """Starts an engine, sends it everything, ends it."""
    engine = EngineProcess(variant.name, log)
    try:
        settings = engine_settings(variant.connector, model, options)
        extra = settings["kv_transfer_config"]["kv_connector_extra_config"]
        extra.update(variant.settings)
        facts = engine.ask("start", settings=settings)
        row = Row(variant.name)
        prompts = requests(
            options.seed, options.requests, options.block, facts["vocab"], options.one_shots
        )
        progress = Progress(len(prompts))
        for prompt in prompts:
            progress.step(variant.name)
            engine.ask("reset_local")
            done = engine.ask("run", prompts=[prompt], decode=DECODE_TOKENS)
            row.prompt_tokens += len(prompt)
            row.restored_tokens += done["answers"][0]["external_tokens"]
            row.steps += sum(step["tokens"] > 0 for step in done["steps"])
        progress.end()
        counters = engine.ask("counters")
        row.stored_mib = counters.get("stored_bytes", 0) / (1 << 20)
        row.checkpoints = int(counters.get("stored_entries:checkpoints", 0))
        row.missing_state_tokens = int(counters.get("missing_state_tokens", 0))
        return row
    finally:
        engine.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--requests", type=int, default=120, help="how many (120)")
    add("--one-shots", type=float, default=0.5, help="share of prompts that never come back (0.5)")
    add("--host-mib", type=float, default=2, help="budget of each connector (2)")
    add("--block", type=int, default=64, help="tokens per block of the model (64)")
    add("--seed", type=int, default=0, help="of the prompts")
    add("--only", nargs="+", default=[], metavar="PART", help="variants whose names have a part")
    add("--json", action="store_true", help="an object a variant")
    options = parser.parse_args()
    options.burst = 8

    from hybrid_pages.demo.models import ensure

    model = ensure("qwen3.5")
    logs = Path(tempfile.mkdtemp(prefix="live-policies-"))
    if not options.json:
        print(f"{'':36} {'hit rate':>8} {'steps':>6} {'stored MiB':>10} {'checkpoints':>11}")
    for number, variant in enumerate(variants(options.block, options.only)):
        try:
            row = run(variant, options, model, logs / f"{number}.log")
        except EngineEnded as error:
            print(error, file=sys.stderr)
            return 2
        if options.json:
            print(json.dumps(asdict(row)), flush=True)
        else:
            rate = row.restored_tokens / row.prompt_tokens
            ours = variant.connector == OURS
            print(
                f"{row.name:36} {rate:8.3f} {row.steps:6}"
                + (f" {row.stored_mib:10.1f} {row.checkpoints:11}" if ours else ""),
                flush=True,
            )
    shutil.rmtree(logs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
