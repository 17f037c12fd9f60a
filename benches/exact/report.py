"""Tables of what engines computed again."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from exact.arms import Arm, Outcome


@dataclass
class Table:
    """As a file of results holds it."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def multiples(block: int, outcomes: Sequence[Outcome], arms: Sequence[Arm]) -> Table:
    """A row for each workload and memory, a column for each cache."""
    cells: dict[tuple[str, float], dict[str, str]] = {}
    for outcome in outcomes:
        if outcome.block == block:
            row = cells.setdefault((outcome.texts.label, outcome.memory), {})
            row[outcome.arm.name] = f"{outcome.multiple:.2f}"
    names = [arm.name for arm in arms if arm.fits(block)]
    return Table(
        f"Blocks of {block} tokens, vLLM's scheduler: prompt tokens computed, for each that nobody "
        "had computed before.",
        ["workload", "memory", *names],
        [
            [label, f"{memory:.0%}", *(row.get(name, "") for name in names)]
            for (label, memory), row in cells.items()
        ],
    )


def write(file: Path, tables: Sequence[Table]) -> None:
    """The tables of a run, to be put among the results."""
    run = {"date": datetime.date.today().isoformat(), "tables": [asdict(one) for one in tables]}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(run, indent=1) + "\n")
