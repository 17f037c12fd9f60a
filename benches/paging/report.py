"""Rows, tables, goals and the picture."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paging.cases import DIRECTIONS, KIB, Case, kib
from paging.methods import LIMIT


@dataclass(frozen=True)
class Row:
    """One method in one case. Of both directions at once the bytes count both ways."""

    case: Case
    method: str
    seconds: float
    """Median of a round, idle; a round among many, busy."""
    gb_per_s: float
    share_of_limit: float | None
    matmul_slowdown: float | None

    def as_json(self) -> dict[str, Any]:
        fields = asdict(self)
        return fields.pop("case") | fields


def table(rows: Iterable[Row]) -> str:
    """Markdown: a line a case, a column a method, GB/s (share of the limit; matmul slow-down)."""
    by_case: dict[Case, dict[str, Row]] = {}
    for row in rows:
        by_case.setdefault(row.case, {})[row.method] = row
    methods = list(dict.fromkeys(method for found in by_case.values() for method in found))
    lines = [f"| pieces | way | {' | '.join(methods)} |", "|---" * (len(methods) + 2) + "|"]
    for case, found in by_case.items():
        beside = ", busy" if case.busy else ""
        cells = [_cell(found.get(method)) for method in methods]
        name = f"{case.count} x {kib(case.size)}"
        lines.append(f"| {name} | {case.direction}{beside} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    notes = []
    if row.share_of_limit is not None and row.method != LIMIT:
        notes.append(f"{row.share_of_limit:.0%}")
    if row.matmul_slowdown is not None:
        notes.append(f"matmul {row.matmul_slowdown:+.1%}")
    return f"{row.gb_per_s:.1f}" + (f" ({'; '.join(notes)})" if notes else "")


def goals(rows: list[Row]) -> list[dict[str, Any]]:
    """The goal and the measured value of each claim, in its worst case."""
    idle = {(r.case, r.method): r for r in rows if not r.case.busy}
    shares = [
        (r.share_of_limit, str(r.case))
        for r in idle.values()
        if r.method == "auto"
        and r.case.size >= 64 * KIB
        and r.case.count >= 256
        and r.case.direction != "both"
        and r.share_of_limit is not None
    ]
    speedups = [
        (r.gb_per_s / rival.gb_per_s, str(r.case))
        for (case, method), r in idle.items()
        if method == "auto"
        and case.size == 16 * KIB
        and case.count >= 1024
        and case.direction != "both"
        and (rival := idle.get((case, "batch copy"))) is not None
    ]
    slowdowns = [
        (-r.matmul_slowdown, str(r.case))
        for r in rows
        if r.method == "auto" and r.matmul_slowdown is not None
    ]
    found = []
    for what, least, values in (
        ("share of the limit from 64 KiB and 256 pieces up, one way", 0.95, shares),
        ("times the batch copy at 16 KiB and 1,024 pieces or more, one way", 2.0, speedups),
        ("minus the matmul's slow-down at the default share", -0.02, slowdowns),
    ):
        worst = min(values) if values else None
        found.append(
            {
                "goal": what,
                "at_least": least,
                "worst": worst and worst[0],
                "case": worst and worst[1],
                "met": worst and worst[0] >= least,
            }
        )
    return found


def picture(rows: list[Row], title: str, path: Path) -> None:
    """GB/s over the piece's size, with the most pieces measured; and the matmul's slow-down.

    Raises:
        ImportError: without matplotlib.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 4, figsize=(20, 5), constrained_layout=True)
    most: dict[tuple[int, bool], int] = {}
    for row in rows:
        key = (row.case.size, row.case.busy)
        most[key] = max(most.get(key, 0), row.case.count)
    largest = [r for r in rows if r.case.count == most[r.case.size, r.case.busy]]
    methods = list(dict.fromkeys(row.method for row in rows))
    for axis, direction in zip(axes, DIRECTIONS, strict=False):
        _lines(
            axis,
            methods,
            [r for r in largest if r.case.direction == direction and not r.case.busy],
            lambda row: row.gb_per_s,
        )
        axis.set_title(f"{direction}, idle")
        axis.set_ylabel("GB/s")
        axis.set_ylim(bottom=0)
    _lines(
        axes[3],
        methods,
        [r for r in largest if r.case.direction == "both" and r.matmul_slowdown is not None],
        lambda row: 100 * (row.matmul_slowdown or 0.0),
    )
    axes[3].set_title("both, beside a matmul")
    axes[3].set_ylabel("slow-down of the matmul, %")
    axes[0].legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _lines(axis: Any, methods: list[str], rows: list[Row], value: Any) -> None:
    for method in methods:
        points = sorted((r.case.size, value(r)) for r in rows if r.method == method)
        if points:
            style = "k--" if method == LIMIT else "o-"
            axis.plot(*zip(*points, strict=True), style, label=method)
    axis.set_xscale("log", base=2)
    sizes = sorted({row.case.size for row in rows})
    axis.set_xticks(sizes, [kib(size) for size in sizes], rotation=45)
    axis.set_xlabel("piece")
    axis.grid(alpha=0.3)
