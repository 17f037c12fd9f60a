"""Memory over context length: this model, and one of full attention of the same shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def draw(facts: dict[str, Any], path: Path) -> None:
    """Writes the figure, in the format that the file's suffix names.

    Raises:
        OSError: it can't be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    rows = [row for row in facts["memory"] if row["bytes"]]
    tokens = [row["tokens"] for row in rows]
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes: Any = figure.subplots()
    for key, label, colour, dashes in (
        ("full_attention_bytes", "full attention, same shape", "#999999", (4, 2)),
        ("bytes", "pages and one checkpoint", "#D55E00", ()),
    ):
        axes.plot(
            tokens, [row[key] / 2**30 for row in rows], label=label, color=colour, dashes=dashes
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1024:g}k"))
    axes.set_xlabel("tokens of context")
    axes.set_ylabel("GiB")
    axes.set_title(f"{facts['architecture']}, N = {facts['block_tokens']:,}")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
