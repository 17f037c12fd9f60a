"""Tokens that an engine computes again, as a multiple of those that nobody had computed before.

Chats and agents (`hybrid-pages lab conversations`) go through vLLM's real scheduler with this
package, with vLLM's own prefix cache alone, and with its offloading; and through real engines of a
tiny hybrid model, where the time to first token of a conversation's second turn is measured, too.
README.md says how to read the tables.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from exact import live, second_turns
from exact.arms import ARMS, Outcome, Simulation, Texts, before, chosen, lost
from exact.report import Table, multiples, write
from hybrid_pages.lab.conversations import KINDS
from overhead.driver import EngineEnded
from overhead.report import print_table

WORKLOADS = (
    "chat-200",
    "chat-1000",
    "chat-edited",
    "reasoning-kept",
    "reasoning-dropped",
    "agent",
)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--workloads", nargs="+", default=list(WORKLOADS), choices=list(KINDS), metavar="NAME")
    add("--blocks", type=int, nargs="+", default=[784, 1568], help="tokens of a block (784 1568)")
    add("--memory", type=float, nargs="+", default=[100, 20, 5], help="percent of the footprint")
    add("--arms", nargs="+", default=[], metavar="PART", help="caches whose names have a part")
    add("--before", type=Path, metavar="CHECKOUT", help="compare with this built checkout, too")
    add("--vllm", type=Path, metavar="FOLDER", help="Python files of another vLLM (the installed)")
    add("--chats", type=int, default=40, help="conversations of a workload (40)")
    add("--agents", type=int, default=8, help="agents of a workload (8)")
    add("--abreast", type=int, default=3, help="requests at a time (3)")
    add("--synchronous", action="store_true", help="without asynchronous scheduling")
    add("--seed", type=int, default=0, help="of the texts")
    add(
        "--engine",
        choices=["also", "only", "never", "turns"],
        default="also",
        help="real engines: after the scheduler, alone, not at all, or second turns alone (also)",
    )
    add("--rounds", type=int, default=9, help="of second turns on real engines (9)")
    add("--lost", type=int, default=0, metavar="N", help="show the N costliest requests of a run")
    add("--json", type=Path, metavar="FILE", help="write the tables there")
    return parser.parse_args()


def simulated(options: argparse.Namespace, folder: Path) -> list[Table]:
    """All workloads through vLLM's scheduler, cache by cache."""
    arms = chosen([*ARMS, *([before(options.before)] if options.before else [])], options.arms)
    workloads = [
        made(name, warmed, options) for name in options.workloads for warmed in (False, True)
    ]
    outcomes: list[Outcome] = []
    for number, texts in enumerate(workloads):
        texts.write(folder / f"{number}.jsonl")
    for number, arm in enumerate(arms):
        simulation = Simulation(arm, folder / f"arm-{number}.log", options.vllm)
        try:
            for place, texts in enumerate(workloads):
                file = folder / f"{place}.jsonl"
                for block in filter(arm.fits, options.blocks):
                    memories = amounts(texts, options)
                    for memory in memories if arm.uses_memory else memories[:1]:
                        outcomes.append(one(simulation, texts, file, block, memory, options))
                    if not arm.uses_memory:
                        outcomes += [replace(outcomes[-1], memory=each) for each in memories[1:]]
        finally:
            simulation.close()
    return [multiples(block, outcomes, arms) for block in options.blocks]


def made(name: str, warmed: bool, options: argparse.Namespace) -> Texts:
    sessions = options.agents if name.startswith("agent") else options.chats
    return Texts.of(name, warmed=warmed, seed=options.seed, sessions=sessions)


def amounts(texts: Texts, options: argparse.Namespace) -> list[float]:
    """Shares of the footprint; of what is warmed, the largest alone."""
    shares = [percent / 100 for percent in options.memory]
    return [max(shares)] if texts.warmed else shares


def one(
    simulation: Simulation,
    texts: Texts,
    file: Path,
    block: int,
    memory: float,
    options: argparse.Namespace,
) -> Outcome:
    outcome = simulation.run(
        texts, file, block, memory, abreast=options.abreast, asynchronous=not options.synchronous
    )
    print(
        f"{texts.label}, blocks of {block}, memory {memory:.0%}, {simulation.arm.name}: "
        f"{outcome.multiple:.2f} ({outcome.found['seconds']:.0f} s of CPU time, "
        f"{outcome.found['preempted']} preempted)",
        file=sys.stderr,
        flush=True,
    )
    for line in lost(outcome, options.lost):
        print(line, file=sys.stderr)
    return outcome


def main() -> int:
    options = parse()
    tables: list[Table] = []
    with tempfile.TemporaryDirectory(prefix="resume-") as folder:
        try:
            if options.engine in ("also", "never"):
                tables += simulated(options, Path(folder))
            if options.engine in ("also", "only"):
                tables += live.measure(options, Path(folder))
            if options.engine != "never":
                tables += second_turns.measure_turns(options, Path(folder))
        except EngineEnded as error:
            print(error, file=sys.stderr)
            return 2
    for table in tables:
        print_table(table.title, iter([table.columns, *table.rows]))
    if options.json:
        write(options.json, tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
