"""What the numbers support: a claim, its border, the worst value, and a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paging.beside import Decode, Pinned
from paging.cases import KIB
from paging.report import Row, goals

BORDER = 28 * KIB


@dataclass(frozen=True)
class Claim:
    """`worst` must be at least `border`; without a worst value nothing was measured."""

    claim: str
    border: float
    worst: float | None
    where: str | None

    @property
    def verdict(self) -> str:
        if self.worst is None:
            return "not measured"
        return "supported" if self.worst >= self.border else "not supported"

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"verdict": self.verdict}


def judge(
    rows: list[Row],
    pinned: Iterable[Pinned],
    decoded: Iterable[Decode],
    stores: dict[str, float] | None,
) -> list[Claim]:
    """Every claim that the documentation makes or would like to make of a GPU."""
    found = [Claim(g["goal"], g["at_least"], g["worst"], g["case"]) for g in goals(rows)]
    found += [
        _faster("copy", "staged", rows, lambda size: size >= BORDER),
        _faster("staged", "copy", rows, lambda size: size < BORDER),
    ]
    for pin in pinned:
        claim = f"GiB pinned a second, of {pin.gib:g} in the background"
        rate = pin.gib / pin.seconds if pin.seconds else None
        # A piece that fails is a finding, too; too little memory is none.
        failed = pin.seconds is None and pin.first_slot_seconds is not None
        found.append(Claim(claim, 2.0, 0.0 if failed else rate, pin.why))
    by_way = {one.way: one for one in decoded}
    for way in ("staged", "copy"):
        beside = by_way.get(way)
        found.append(
            Claim(
                f"minus the slow-down of p99 of decode steps beside stores by {way}",
                -0.05,
                -beside.slowdown if beside else None,
                f"p99 {beside.p99_ms:.3f} ms, alone {beside.p99_alone_ms:.3f}" if beside else None,
            )
        )
    ratio = stores["one"] / stores["ten"] if stores else None
    found.append(Claim("time of one store over that of ten parts in flight", 0.8, ratio, None))
    return found


def _faster(way: str, other: str, rows: list[Row], of_size: Any) -> Claim:
    idle = {(row.case, row.method): row.gb_per_s for row in rows if not row.case.busy}
    ratios = [
        (speed / idle[case, other], str(case))
        for (case, method), speed in idle.items()
        if method == way and of_size(case.size) and case.count >= 256 and (case, other) in idle
    ]
    sizes = "from 28 KiB up" if way == "copy" else "below 28 KiB"
    worst = min(ratios) if ratios else (None, None)
    return Claim(f"speed of the {way} over the {other}, pieces {sizes}", 1.0, *worst)


def summary(claims: Iterable[Claim], faults: Sequence[str]) -> str:
    """One line: how many of each verdict, and the first fault."""
    found = Counter(one.verdict for one in claims)
    line = ", ".join(f"{count} {verdict}" for verdict, count in sorted(found.items()))
    first = f"; faults: {len(faults)}, the first: {faults[0]}" if faults else ""
    return f"claims: {line}{first}"


def table(claims: Iterable[Claim]) -> str:
    """Markdown: a line a claim."""
    lines = ["| claim | at least | worst found | where | verdict |", "|---" * 5 + "|"]
    for one in claims:
        worst = "" if one.worst is None else f"{one.worst:.3g}"
        lines.append(
            f"| {one.claim} | {one.border:g} | {worst} | {one.where or ''} | {one.verdict} |"
        )
    return "\n".join(lines)
