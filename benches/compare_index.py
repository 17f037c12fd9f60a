"""Index cost per request: hybrid-pages beside vLLM's LRU and LMCache's L1, in one run.

The same stream of operations on each index in turn, step by step, so that whatever else the
machine does hits all of them: a prompt of 164 blocks in 4 groups comes in, another one is looked
up, a third one is held and refreshed. README.md says how to read the table.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rivals.indexes import GROUPS, Absent, Index, LMCacheL1, Ours, VllmManager, VllmPolicy

OPERATIONS = ("lookup", "lookup, warm", "use", "insert", "insert, evicting")
_FILL, _EVICT = OPERATIONS[3:]


class Measured:
    """One index with its samples."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.samples: dict[str, list[float]] = {name: [] for name in OPERATIONS}
        self.bytes_a_block = 0.0
        self.hits = 0

    def time(self, name: str, call: Callable[[Any], Any], prompt: Any) -> Any:
        # The thread's own time: a busy machine must not lengthen the longer operations.
        start = time.thread_time_ns()
        result = call(prompt)
        self.samples[name].append((time.thread_time_ns() - start) / 1000)
        return result

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.index.name,
            "remark": self.index.remark,
            "bytes_a_block": round(self.bytes_a_block),
            "microseconds": {
                name: {
                    "median": statistics.median(samples),
                    "p99": sorted(samples)[int(0.99 * (len(samples) - 1))],
                    "longest": max(samples),
                }
                for name, samples in self.samples.items()
            },
        }


def hashes(source: random.Random, blocks: int) -> list[bytes]:
    """A new prompt."""
    return [source.randbytes(32) for _ in range(blocks)]


def resident_bytes() -> int:
    """Memory of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def filled(
    make: Callable[[int], Index], prompts: list[list[bytes]], entries: int
) -> tuple[Measured, list[Any]]:
    """An index full of these prompts; its memory is that of the process, keys included."""
    make(GROUPS * len(prompts[0])).close()  # whatever has to be imported
    before = resident_bytes()
    one, prepared = Measured(make(entries)), []
    for prompt in prompts:
        prepared.append(one.index.prepare(prompt))
        one.time(_FILL, one.index.insert, prepared[-1])
    taken = resident_bytes() - before - one.index.payload_bytes
    one.bytes_a_block = taken / sum(map(len, prompts))
    return one, prepared


def measure(
    kinds: dict[str, Callable[[int], Index]], options: argparse.Namespace
) -> tuple[list[Measured], dict[str, str]]:
    """Fills each index, then goes on step by step over all of them; and why some are absent."""
    source = random.Random(options.seed)
    prompts = [hashes(source, options.blocks) for _ in range(options.prompts)]
    entries = options.prompts * options.blocks * GROUPS
    measured, resident, skipped = [], [], {}
    for name, make in kinds.items():
        try:
            one, prepared = filled(make, prompts, entries)
        except Absent as error:
            skipped[name] = str(error)
            continue
        measured.append(one)
        resident.append(prepared)
    gc.freeze()
    gc.disable()
    for step in range(options.rounds):
        prompt = hashes(source, options.blocks)
        # Among the newest half: no policy has given them up.
        looked_up, used = (source.randrange(options.prompts // 2) for _ in range(2))
        for turn in range(len(measured)):
            at = (turn + step) % len(measured)
            one, known = measured[at], resident[at]
            known.append(one.index.prepare(prompt))
            one.time(_EVICT, one.index.insert, known[-1])
            found = one.time("lookup", one.index.lookup, known[-1 - looked_up])
            one.time("lookup, warm", one.index.lookup, known[-1 - looked_up])
            one.hits += found == options.blocks
            one.time("use", one.index.use, known[-1 - used])
            del known[0]
        gc.collect()
    gc.enable()
    for one in measured:
        one.index.close()
    return measured, skipped


def cells(one: dict[str, Any], base: dict[str, Any]) -> list[str]:
    """A row of the table: medians, each with its ratio to ours."""
    row = [one["name"]]
    for name in OPERATIONS:
        median, ours = (entry["microseconds"][name]["median"] for entry in (one, base))
        ratio = "" if one is base else f" ({median / ours:.1f}x)"
        row.append(f"{median:,.1f}{ratio}")
    row.append(f"{one['microseconds'][_EVICT]['longest']:,.0f}")
    return [*row, f"{one['bytes_a_block']:,}"]


def print_table(rows: list[list[str]]) -> None:
    """Markdown, aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    for row in rows:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("|", " | ".join(padded), "|")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--blocks", type=int, default=164, help="blocks per prompt (164)")
    add("--prompts", type=int, default=150, help="prompts that there is room for (150)")
    add("--rounds", type=int, default=200, help="steps that are measured (200)")
    add("--seed", type=int, default=0, help="of the prompts")
    add("--json", action="store_true", help="print one JSON object and no table")
    options = parser.parse_args(arguments)
    if options.blocks < 1 or options.prompts < 4 or options.rounds < 1:
        parser.error("expected at least 1 block, 4 prompts and 1 round")
    return options


def main() -> int:
    options = parse()
    logging.disable(logging.WARNING)
    measured, skipped = measure(
        {
            "hybrid-pages, lru": lambda entries: Ours(entries, options.blocks, "lru"),
            "hybrid-pages, reuse": lambda entries: Ours(entries, options.blocks, "reuse"),
            "vLLM LRUCachePolicy": VllmPolicy,
            "vLLM CPUOffloadingManager": VllmManager,
            "LMCache L1Manager": LMCacheL1,
        },
        options,
    )
    found = [one.as_json() for one in measured]
    # An LRU keeps what was used lately; a lookup that misses would measure nothing.
    lost = [one.index.name for one in measured if one.hits < options.rounds]
    if options.json:
        print(
            json.dumps(
                {
                    "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
                    "blocks": options.blocks,
                    "groups": GROUPS,
                    "entries": options.prompts * options.blocks * GROUPS,
                    "rounds": options.rounds,
                    "rows": found,
                    "skipped": skipped,
                    "hits": {one.index.name: one.hits for one in measured},
                }
            )
        )
        return 0
    entries = options.prompts * options.blocks * GROUPS
    print(
        f"{options.blocks} blocks x {GROUPS} groups per prompt, room for {entries:,} entries; "
        f"medians of {options.rounds}, microseconds of the thread a prompt\n"
    )
    print_table(
        [
            ["index", *OPERATIONS, "longest insert", "bytes per block"],
            *(cells(one, found[0]) for one in found),
        ]
    )
    for name, reason in skipped.items():
        print(f"\nskipped: {name}: {reason}")
    for one in found:
        if one["remark"]:
            print(f"\n{one['name']}: {one['remark']}")
    for name in lost:
        print(f"\n{name}: some lookups missed", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
