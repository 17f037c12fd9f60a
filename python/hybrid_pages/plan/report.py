"""The facts of ``hybrid-pages plan`` as tables, lines and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hybrid_pages import text

_ANYWHERE = "at any token where an earlier prompt or answer ended, and at multiples of N"
_WHOLE_BLOCKS = {
    "no_states": "no layer is recurrent",
    "drafts": "with drafts no state inside a block is kept",
    "context": "ranks divide a context",
    "narrow_window": "a sliding window is narrower than a block",
}
"""Where requests resume, and why nowhere else."""


def size(nbytes: float) -> str:
    """Bytes in the largest unit of which there is at least one, with four digits."""
    return text.size(nbytes, ",.4g")


def report(facts: dict[str, Any]) -> RenderableType:
    """Tables and lines, one after another."""
    parts: list[RenderableType] = [
        Text(f"{facts['model']}: {facts['architecture']}", style="bold"),
        f"  {facts['file']}",
        f"  {facts['dtype']}, tensor parallel {facts['tp']}, "
        + (f"pipeline parallel {facts['pp']}, " if facts["pp"] > 1 else "")
        + facts["device"],
        "",
        _layers(facts),
        "",
        *_sizes(facts),
        *_spread(facts),
        "",
        _settings(facts),
        "",
        _modes(facts),
        "",
        *_break_even(facts),
        "",
        _memory(facts),
    ]
    return Group(*parts)


def show(facts: dict[str, Any], console: Console) -> None:
    """Prints the report."""
    console.print(report(facts), highlight=False)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for at, column in enumerate(columns):
        left = column.startswith("<")
        table.add_column(
            column.removeprefix("<"),
            justify="left" if left or not at else "right",
            overflow="fold",
        )
    return table


def _layers(facts: dict[str, Any]) -> Table:
    title = "Layers, on one rank" if facts["pp"] == 1 else "Layers of all stages, each on one rank"
    table = _table(title, "kind", "layers", "<keeps")
    for row in facts["layers"]:
        keeps = (
            f"{size(row['state_bytes'])} in each checkpoint"
            if "state_bytes" in row
            else f"{size(row['bytes_per_token'])} per token"
        )
        table.add_row(row["kind"], str(row["count"]), keeps)
    return table


def _sizes(facts: dict[str, Any]) -> list[str]:
    n = facts["block_tokens"]
    groups: dict[tuple[str, int, int], int] = {}
    for group in facts["groups"]:
        key = (group["kind"], group["layers"], group["block_tokens"])
        groups[key] = groups.get(key, 0) + 1
    why = facts["whole_blocks_only"]
    lines = [
        f"Block           N = {n:,} tokens (2N-1 = {facts['min_batched_tokens']:,})",
        "Resumes         "
        + (_ANYWHERE if why is None else f"at multiples of N only, since {_WHOLE_BLOCKS[why]}"),
        "Groups          "
        + ", ".join(
            f"{count} of {layers} ({kind}, blocks of {tokens:,})"
            for (kind, layers, tokens), count in groups.items()
        ),
        f"Bytes per token {size(facts['bytes_per_token'])}",
        f"Page            {size(facts['page_bytes'])}",
    ]
    states = facts["states"]
    if states is None:
        return [*lines, "Checkpoint      none: no recurrent layers"]
    ratio = facts["checkpoint_bytes"] / facts["page_bytes"]
    lines += [
        f"Checkpoint      {size(facts['checkpoint_bytes'])}, {ratio:.2f} pages; padding of "
        f"{size(facts['checkpoint_padding_bytes'])} stays in the engine",
        f"States          {states['made']}",
    ]
    other = states["alternative"]
    if other is not None:
        lines.append(
            f"                with {other['kernels']}: N = {other['block_tokens']:,}; vLLM's log "
            "says which it chose (--exports plans for it)"
        )
    return lines


def _spread(facts: dict[str, Any]) -> list[str]:
    """What each rank and each node has."""
    lines, ranks = [], facts["tp"] * facts["pp"]
    if facts["pp"] > 1:
        lines.append(
            f"Stages          {facts['pp']}, with "
            f"{' + '.join(map(str, facts['stages']))} of these layers"
        )
        zeros = {name: nbytes for name, nbytes in facts["zero_bytes"].items() if nbytes}
        for name, nbytes in zeros.items():
            lines.append(
                f"                {size(nbytes)} of a {name} are zeros: each rank has room for the "
                "stage with the most layers of a group"
            )
    if ranks > 1:
        lines.append(f"On each rank    {_held(facts['per_rank'])}: 1 of {ranks}")
    if facts["nodes"] > 1:
        lines.append(f"On each node    {_held(facts['per_node'])}: 1 of {facts['nodes']}")
    return lines


def _held(part: dict[str, float]) -> str:
    found = [f"{size(part['page_bytes'])} of a page"]
    if part["checkpoint_bytes"]:
        found.append(f"{size(part['checkpoint_bytes'])} of a checkpoint")
    return ", ".join([*found, f"{part['host_gib']:,.4g} GiB of host memory"])


def _settings(facts: dict[str, Any]) -> Table:
    table = _table("Settings", "setting", "<why", "<cost")
    for row in facts["settings"]:
        table.add_row(row["setting"], row["why"], row["cost"])
    return table


def _modes(facts: dict[str, Any]) -> Table:
    talk, budgets = facts["conversation"], facts["capacity"]
    table = _table(
        f"Conversations of {talk['tokens']:,} tokens in {talk['turns']} turns",
        "checkpoint_mode",
        "checkpoints",
        "each",
        *(f"in {one['gib']:g} GiB {name}" for name, one in budgets.items()),
        "<cost",
    )
    for row in facts["modes"]:
        table.add_row(
            row["mode"],
            str(row["checkpoints"]),
            size(row["bytes"]) if row["bytes"] else "-",
            *(f"{row['conversations'][name]:,}" for name in budgets),
            row["cost"],
        )
    if budgets:
        table.caption = "; ".join(
            f"{one['gib']:g} GiB of {name} hold {one['dense_tokens']:,} tokens with a checkpoint "
            "at every boundary"
            for name, one in budgets.items()
        )
        table.caption_justify = "left"
    return table


def _break_even(facts: dict[str, Any]) -> list[str]:
    found = facts["break_even"]
    if found is None:
        return [
            "Break-even      give --active-params, --tflops and --gb-per-s: it depends on the "
            "machine"
        ]
    given = (
        f"{found['active_params']:g} billion active parameters, {found['tflops']:g} TFLOPS, "
        f"{found['gb_per_s']:g} GB/s"
    )
    if found["tokens"] is None:
        return [f"Break-even      never: computing is faster than copying ({given})"]
    return [f"Break-even      from {found['tokens']:,} tokens on a restore is faster ({given})"]


def _memory(facts: dict[str, Any]) -> Table:
    table = _table(
        "Memory of one context", "tokens", "pages and one checkpoint", "full attention", "share"
    )
    for row in facts["memory"]:
        share = row["bytes"] / row["full_attention_bytes"]
        table.add_row(
            f"{row['tokens']:,}",
            size(row["bytes"]) if row["bytes"] else "nothing: under N",
            size(row["full_attention_bytes"]),
            f"{share:.1%}" if row["bytes"] else "-",
        )
    return table


def draw(facts: dict[str, Any], path: Path) -> None:
    """Draws memory over context length: this model, and one of full attention of the same shape.

    The suffix of the file names the format.

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
