"""Hit rate over budget: a panel per trace, a line per policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hybrid_pages.lab.budgets import BOUND
from hybrid_pages.lab.remote import name
from hybrid_pages.lab.replay_report import Replayed

# With more budgets than this, not every one is labelled.
_MOST_TICKS = 9

# Colours of Okabe and Ito, dark ones first; markers and dashes tell the lines apart in print.
_STYLES: dict[str, dict[str, Any]] = {
    "lru": {"color": "#999999", "marker": "x", "dashes": (1, 1)},
    "page-lru": {"color": "#56B4E9", "marker": "v", "dashes": (4, 1.5)},
    "align-lru": {"color": "#009E73", "marker": "^", "dashes": (2, 1.5)},
    "junction-lru": {"color": "#0072B2", "marker": "s", "dashes": (6, 1.5, 1, 1.5)},
    "marconi": {"color": "#CC79A7", "marker": "D", "dashes": (1, 2)},
    "reuse": {"color": "#D55E00", "marker": "o", "dashes": (), "linewidth": 2.2},
    BOUND: {"color": "#000000", "dashes": (5, 3), "linewidth": 1.2},
}


def draw(replayed: Sequence[Replayed], path: Path) -> None:
    """Writes the figure, in the format that the file's suffix names.

    Raises:
        OSError: it can't be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullLocator

    columns = min(len(replayed), 2)
    lines = -(-len(replayed) // columns)
    figure = Figure(figsize=(1.2 + 5.2 * columns, 3.9 * lines), layout="constrained")
    panels: Any = figure.subplots(lines, columns, squeeze=False, sharey=True).flat
    for panel, one in zip(panels, replayed, strict=False):
        shares: set[float] = set()
        for rows in one.rows:
            # Room for less than a page is a share of 0, which has no place on this axis.
            points = sorted(
                (100 * row.budget_fraction, row.hit_rate) for row in rows if row.budget_fraction > 0
            )
            shares.update(share for share, _ in points)
            style = {"markersize": 5, "linewidth": 1.4} | _STYLES.get(rows[0].policy, {})
            if rows[0].remote_admit == "auto":
                style["markerfacecolor"] = "white"
            panel.plot(
                [share for share, _ in points],
                [rate for _, rate in points],
                label=name(rows[0]),
                **style,
            )
        if shares:
            panel.set_xscale("log")
        if len(shares) <= _MOST_TICKS:
            panel.set_xticks(sorted(shares))
            panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.3g} %"))
        panel.set_ylim(bottom=0)
        panel.grid(color="#dddddd", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_xlabel(f"budget, share of all pages and checkpoints (R = {one.ratio})")
        panel.set_title(Path(one.path).name, fontsize=10)
    for panel in panels:
        panel.set_visible(False)
    axes = figure.axes
    for panel in axes[::columns]:
        panel.set_ylabel("hit rate, tokens")
    axes[0].legend(frameon=False, handlelength=4)
    figure.savefig(path, dpi=150)
