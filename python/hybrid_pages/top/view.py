"""The figures on a terminal."""

from __future__ import annotations

from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from hybrid_pages.text import size

_BAR = 30
_COLOURS = {
    "local": "cyan",
    "host": "green",
    "disk": "yellow",
    "remote": "blue",
    "other": "magenta",
    "pages": "green",
    "windows": "cyan",
    "checkpoints": "yellow",
}


def view(
    url: str, figures: dict[str, Any], totals: dict[str, Any], note: str = ""
) -> RenderableType:
    """A screen: the last interval beside everything since the start.

    note: a line for what can't be shown now.
    """
    engines = figures["engines"]
    since = figures["since"]
    head = Text(f"hybrid-pages top  {url}", style="bold")
    head.append(f"  {engines} engine core{'s' if engines != 1 else ''}", style="dim")
    parts: list[RenderableType] = [head]
    if note:
        parts.append(Text(note, style="bold red"))
    if failed := _failed(totals):  # also here: a low terminal cuts the end off
        parts.append(Text(f"failures: {failed}", style="bold red"))
    parts += [Text(), _hits(figures, totals, since), Text(), _room(figures), Text()]
    parts.append(_copies(figures, totals))
    parts += [Text(), *_counts(figures, totals)]
    return Group(*parts)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for at, column in enumerate(columns):
        left = not at or not column
        table.add_column(column, justify="left" if left else "right", overflow="fold")
    return table


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _hits(figures: dict[str, Any], totals: dict[str, Any], since: Any) -> Table:
    last = "since start" if since == "start" else f"last {since:g} s"
    table = _table("prompt tokens", last, "since start", "")
    table.add_row(
        "looked up", f"{figures['prompt_tokens']:,.0f}", f"{totals['prompt_tokens']:,.0f}", ""
    )
    for source, rate in figures["hit_rates"].items():
        table.add_row(
            f"hit: {source}",
            _share(rate),
            _share(totals["hit_rates"][source]),
            _Bar([(_COLOURS[source], totals["hit_rates"][source] or 0.0)]),
        )
    table.add_row("hit: all", _share(figures["hit_rate"]), _share(totals["hit_rate"]), "")
    reasons = ", ".join(f"{n:,.0f} {reason}" for reason, n in totals["missing_states"].items())
    table.add_row(
        "pages without a state",
        _share(figures["missing_state_share"]),
        _share(totals["missing_state_share"]),
        Text(reasons, style="dim"),
    )
    return table


class _Bar:
    """Shares of a whole, as wide as there is room."""

    def __init__(self, parts: list[tuple[str, float]], said: str = "") -> None:
        self._parts, self._said = parts, said

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, _BAR + cell_len(self._said))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        bar, drawn = Text(), 0
        whole = min(_BAR, options.max_width)
        for colour, share in self._parts:
            width = min(round(share * whole), whole - drawn)
            bar.append("█" * width, style=colour)
            drawn += width
        bar.append("·" * (whole - drawn), style="dim")
        yield bar.append(self._said, style="bold red")


def _room(figures: dict[str, Any]) -> Table:
    host, disk = figures["host"], figures["disk"]
    table = _table("room", "used", "of", "")
    used = sum(host["bytes"].values())
    total = max(host["ready_bytes"], used + host["free_bytes"]) or 1
    table.add_row(
        "host",
        size(used),
        size(total),
        _Bar([(_COLOURS[kind], nbytes / total) for kind, nbytes in host["bytes"].items()]),
    )
    for kind, nbytes in host["bytes"].items():
        if nbytes:
            count = host["entries"][kind]
            table.add_row(f"  {kind}", size(nbytes), "", f"{count:,.0f} entries")
    if disk is not None:
        here, quota = sum(disk["used_bytes"].values()), disk["quota_bytes"]
        state = (
            "out: it failed or hung"
            if disk["out"]
            else ""
            if disk["lasting"]
            else "ends with the engine"
        )
        bar = _Bar([("blue", here / quota)], f" {state}" if state else "")
        table.add_row("disk", size(here), size(quota), bar)
    if (remote := figures["remote"]) is not None:
        state = "out: it failed or hung" if remote["out"] else ""
        state = state or ("" if remote["sharing"] else "shared no more")
        known = "-" if remote["known_bytes"] is None else size(remote["known_bytes"])
        entries = remote["known_entries"]
        said = Text("" if entries is None else f"{entries:,.0f} entries known")
        said.append(f" {state}" if state else "", style="bold red")
        table.add_row("remote", known, "", said)
    return table


def _copies(figures: dict[str, Any], totals: dict[str, Any]) -> Table:
    table = _table("copies", "now", "since start", "while copying")
    for name, label in (("stored", "out of the engine"), ("loaded", "into the engine")):
        rate, total = figures["copies"][name]["bytes_per_s"], totals["copies"][name]
        speed = total["gb_per_s_while_copying"]
        table.add_row(
            label,
            "-" if rate is None else f"{size(rate)}/s",
            size(total["bytes"]),
            "-" if speed is None else f"{speed:.2f} GB/s",
        )
    for tier in ("disk", "remote"):
        if totals[tier] is None:
            continue
        for name in ("written", "read"):
            waiting = totals[tier]["queue"].get(name, 0)
            took = totals[tier]["seconds_each"].get(name)
            table.add_row(
                f"{tier}: {name}",
                f"{waiting:.0f} waiting",
                size(totals[tier][f"{name}_bytes"]),
                "" if took is None else f"{1e3 * took:.1f} ms each",
            )
    return table


def _remote(totals: dict[str, Any]) -> list[Text]:
    """Lines about a remote store: what was not written or read, and how fast it is."""
    remote = totals["remote"]
    if remote is None:
        return []
    names = {"not_worth": "faster to compute", "unanswered": "unanswered"}
    refused = [f"{n:,.0f} {event}" for event, n in remote["not_written"].items()]
    missed = [f"{n:,.0f} {names[name]}" for name, n in remote["not_read"].items()]
    speed = []
    if remote["latency_seconds"]:
        speed.append(f"answers in {1e3 * remote['latency_seconds']:.1f} ms")
    if remote["bytes_per_second"]:
        speed.append(f"reads bring {size(remote['bytes_per_second'])}/s")
    if remote["outages"]:
        speed.append(f"left alone {remote['outages']:,.0f} times")
    requests = [f"{n:,.0f} {kind}" for kind, n in remote["requests"].items()]
    return [
        Text(f"{'not shared':<12}{', '.join(refused) or 'nothing'}"),
        Text(f"{'not fetched':<12}{', '.join(missed) or 'nothing'}"),
        Text(f"{'remote':<12}{', '.join(speed) or 'not used yet'}"),
        Text(f"{'requests':<12}{', '.join(requests) or 'none'}"),
    ]


def _counts(figures: dict[str, Any], totals: dict[str, Any]) -> list[Text]:
    lines = []
    for key, label in (
        ("stored_entries", "stored"),
        ("evicted_entries", "evicted"),
        ("skipped_entries", "not stored"),
        ("skipped_loads", "not loaded"),
    ):
        said = ", ".join(f"{n:,.0f} {name}" for name, n in totals[key].items())
        lines.append(Text(f"{label:<12}{said or 'nothing'}"))
    lines += _remote(totals)
    failed = _failed(totals)
    lines.append(Text(f"{'failures':<12}{failed or 'none'}", style="bold red" if failed else ""))
    return lines


def _failed(totals: dict[str, Any]) -> str:
    found = dict(totals["failures"])
    for tier in ("disk", "remote"):
        found |= {f"{tier}: {key}": n for key, n in totals[f"{tier}_failures"].items()}
    return ", ".join(f"{n:,.0f} {name}" for name, n in found.items() if n)
