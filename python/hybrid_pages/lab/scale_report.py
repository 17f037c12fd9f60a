"""Results of simulated fleets over a remote store: JSON objects, tables, and a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybrid_pages._core import FleetRow, Link, StoreLoad, Trace
from hybrid_pages.lab.budgets import amount
from hybrid_pages.lab.remote import RemoteWay
from hybrid_pages.text import columns

PUTS = 3_500
GETS = 5_500
"""Requests per second that Amazon S3 promises for each partitioned prefix of a bucket, see
https://docs.aws.amazon.com/AmazonS3/latest/userguide/optimizing-performance.html. It states none
for lists."""

INDEX_BYTES = 160
"""Bytes of memory, about, that one entry takes in an engine's index of the store: its name, place
and checksum in a hash table."""

DEADLINE = 2.0
"""Seconds that a lookup waits for an answer: the default of the tier."""

_ROUTES = {"events": "#D55E00", "round-robin": "#0072B2", "sent": "#009E73", "load": "#999999"}
_DASHES: dict[str | None, tuple[float, ...]] = {None: (1, 1), "auto": (4, 1.5), "all": ()}


@dataclass(frozen=True)
class Scaled:
    """Fleets on one trace, by route and use of the store, then by engines."""

    path: str
    trace: Trace
    link: Link
    way: RemoteWay
    assumed: Sequence[str]
    host: str
    pack: str
    rows: Sequence[FleetRow]

    def series(self) -> list[list[FleetRow]]:
        """The rows of each route and use, by engines."""
        found: dict[tuple[str, str | None], list[FleetRow]] = {}
        for row in self.rows:
            found.setdefault((row.route, row.admit), []).append(row)
        return list(found.values())


def gets(load: StoreLoad) -> float:
    """GET requests a second, for tables and for entries."""
    return load.table_gets + load.data_gets


def limits(scaled: Scaled) -> list[tuple[str, float, Callable[[FleetRow], float]]]:
    """The limits that a fleet may reach: in words, as a number, and what a fleet needs."""
    bandwidth = scaled.link.bandwidth
    return [
        ("GET/s of one prefix", GETS, lambda row: gets(row.load)),
        ("PUT/s of one prefix", PUTS, lambda row: row.load.puts),
        (
            "bytes down to one engine",
            bandwidth,
            lambda row: (row.load.down_bytes + row.load.table_bytes) / row.engines,
        ),
        (
            f"a listing takes {DEADLINE:g} s",
            DEADLINE,
            lambda row: scaled.link.latency * row.load.lists / max(row.load.looks, 1e-9),
        ),
        ("bytes up from one engine", bandwidth, lambda row: row.load.up_bytes / row.engines),
    ]


def reached(rows: Sequence[FleetRow], limit: float, need: Callable[[FleetRow], float]) -> int:
    """How many engines reach a limit; 0 for never. Logarithms are interpolated between rows."""
    before: FleetRow | None = None
    for row in rows:
        if need(row) >= limit:
            if before is None or need(before) <= 0:
                return row.engines
            rise = math.log(need(row) / need(before))
            part = math.log(limit / need(before)) / rise
            return round(before.engines * math.pow(row.engines / before.engines, part))
        before = row
    return 0


def breaks(scaled: Scaled, rows: Sequence[FleetRow]) -> list[tuple[int, str]]:
    """How many engines reach each limit, and its name, the fewest engines first."""
    found = [(reached(rows, limit, need), name) for name, limit, need in limits(scaled)]
    return sorted(each for each in found if each[0])


def object_of(scaled: Scaled, row: FleetRow) -> dict[str, Any]:
    """The JSON object of a row."""

    def load(load: StoreLoad) -> dict[str, float]:
        return {
            "looks": load.looks,
            "lists": load.lists,
            "table_gets": load.table_gets,
            "data_gets": load.data_gets,
            "puts": load.puts,
            "table_bytes": load.table_bytes,
            "down_bytes": load.down_bytes,
            "up_bytes": load.up_bytes,
        }

    return {
        "trace": scaled.path,
        "engines": row.engines,
        "route": row.route,
        "admit": row.admit or "off",
        "copies": row.copies,
        "seconds": row.seconds,
        "requests": row.requests,
        "input_tokens": row.input_tokens,
        "hit_tokens": row.hit_tokens,
        "hit_rate": row.hit_rate,
        "remote_hit_tokens": row.remote_hit_tokens,
        "remote_slow_tokens": row.remote_slow_tokens,
        "remote_saved_seconds": row.saved_seconds,
        "imbalance": row.imbalance,
        "per_second": load(row.load),
        "most_in_a_second": load(row.most),
        "packs": row.packs,
        "entries": row.entries,
        "index_bytes": row.entries * INDEX_BYTES,
        "stored_bytes": row.stored_bytes,
        "page_bytes": scaled.link.page_bytes,
        "checkpoint_bytes": scaled.link.checkpoint_bytes,
    }


def table(scaled: Scaled) -> str:
    """A table for each route and use of the store, and where it breaks."""
    link = scaled.link
    lines = [
        f"{scaled.path}: copies for {link.tokens_per_second:,.0f} tokens a second and engine, "
        f"the last {scaled.rows[0].seconds:,.0f} s of twice as many",
        f"{scaled.host} of host memory each; {amount(link.page_bytes)} per page, "
        f"{amount(link.checkpoint_bytes)} per checkpoint; {scaled.way.label} to the store, "
        f"packs of {scaled.pack}",
        *([f"assumed: {', '.join(scaled.assumed)}"] if scaled.assumed else []),
    ]
    for rows in scaled.series():
        remote = rows[0].admit is not None
        lines += ["", f"{rows[0].route}, {rows[0].admit or 'off'}"]
        lines += columns([_HEAD if remote else _HEAD[:2], *(_cells(scaled, row) for row in rows)])
        if remote:
            found = [
                f"{name} at about {engines:,} engines" for engines, name in breaks(scaled, rows)
            ]
            lines.append(f"beyond a limit: {', then '.join(found) or 'nothing'}")
    lines += [
        "",
        f"limits: {PUTS:,} PUT/s and {GETS:,} GET/s of one prefix (Amazon S3); of one engine "
        f"{scaled.way.label.partition(',')[2].strip()} each way, and a listing of {DEADLINE:g} s. "
        f"index: {INDEX_BYTES} bytes per entry, in every engine",
    ]
    return "\n".join(lines)


_HEAD = (
    "engines",
    "hit rate",
    "fetched",
    "up GB/s",
    "down GB/s",
    "PUT/s",
    "GET/s data",
    "GET/s tables",
    "LIST/s",
    "stored",
    "index",
)


def _cells(scaled: Scaled, row: FleetRow) -> list[str]:
    cells = [f"{row.engines:,}", f"{row.hit_rate:.3f}"]
    if row.admit is None:
        return cells
    load = row.load
    return [
        *cells,
        f"{row.remote_hit_tokens / max(1, row.input_tokens):.3f}",
        f"{load.up_bytes / 1e9:,.2f}",
        f"{(load.down_bytes + load.table_bytes) / 1e9:,.2f}",
        f"{load.puts:,.1f}",
        f"{load.data_gets:,.1f}",
        f"{load.table_gets:,.0f}",
        f"{load.lists:,.1f}",
        amount(row.stored_bytes),
        amount(row.entries * INDEX_BYTES),
    ]


def draw(scaled: Scaled, path: Path) -> None:
    """Writes two panels over engines: hit rates, and requests to the store with their limits.

    Raises:
        OSError: it can't be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.2, 4.2), layout="constrained")
    hits, requests = figure.subplots(1, 2)
    for rows in scaled.series():
        admit = rows[0].admit
        engines = [row.engines for row in rows]
        style: dict[str, Any] = {
            "color": _ROUTES[rows[0].route],
            "dashes": _DASHES[admit],
            "marker": "o",
            "markersize": 4,
            "linewidth": 1.4,
        }
        label = f"{rows[0].route}, {admit or 'off'}"
        hits.plot(engines, [row.hit_rate for row in rows], label=label, **style)
        if admit is not None:
            requests.plot(engines, [gets(row.load) for row in rows], **style)
            puts = style | {"marker": "^", "markerfacecolor": "white", "linewidth": 0.8}
            requests.plot(engines, [row.load.puts for row in rows], **puts)
    for limit, name in ((PUTS, f"{PUTS:,} PUT/s"), (GETS, f"{GETS:,} GET/s")):
        requests.axhline(limit, color="#000000", linewidth=0.8, dashes=(5, 3))
        below = limit == PUTS
        requests.annotate(
            name,
            (min(row.engines for row in scaled.rows), limit),
            xytext=(0, -10 if below else 3),
            textcoords="offset points",
            fontsize=8,
        )
    for panel in (hits, requests):
        panel.set_xscale("log")
        panel.set_xlabel("engines")
        panel.grid(color="#dddddd", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    hits.set_ylim(bottom=0)
    hits.set_ylabel("hit rate, tokens")
    hits.legend(frameon=False, handlelength=4, fontsize=8)
    requests.set_yscale("log")
    requests.set_ylabel("requests a second: o GET, triangle PUT")
    figure.suptitle(Path(scaled.path).name, fontsize=10)
    figure.savefig(path, dpi=130)
