"""Results of a replay, as JSON objects or as a table per trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hybrid_pages._core import Link, ReplayRow, Trace
from hybrid_pages.lab import remote
from hybrid_pages.lab.budgets import BOUND, Budget, amount
from hybrid_pages.lab.model import Model
from hybrid_pages.text import columns, count


def footprint(trace: Trace, ratio: int) -> int:
    """The size of every page and every checkpoint, in pages."""
    return trace.distinct_blocks * (1 + ratio)


@dataclass(frozen=True)
class Replayed:
    """One trace with its rows: a list per policy and way to use a store, with a row per budget."""

    path: str
    trace: Trace
    ratio: int
    rows: Sequence[Sequence[ReplayRow]]
    link: Link | None = None

    @property
    def footprint(self) -> int:
        """The size of every page and every checkpoint, in pages."""
        return footprint(self.trace, self.ratio)


def objects(
    replayed: Replayed, budgets: Sequence[Budget], model: Model | None
) -> list[dict[str, Any]]:
    """A JSON object per row; null where a bound has no such figure."""
    extra: dict[str, Any] = {
        "block_tokens": replayed.trace.block_tokens,
        "skipped_lines": replayed.trace.skipped,
        "footprint_units": replayed.footprint,
    }
    if model is not None:
        page = model.page_bytes(replayed.trace.block_tokens)
        extra["page_bytes"] = page
        extra["checkpoint_bytes"] = model.checkpoint_bytes
        extra["footprint_bytes"] = replayed.footprint * page
    link = replayed.link
    return [
        _object(replayed.path, row)
        | ({} if link is None else remote.objects(row, link, replayed.trace.block_tokens))
        | extra
        | {
            "requested_bytes": budget.bytes,
            "holds_trace": row.budget_units >= replayed.footprint,
        }
        for rows in replayed.rows
        for row, budget in zip(rows, budgets, strict=True)
    ]


def _object(path: str, row: ReplayRow) -> dict[str, Any]:
    real = row.policy != BOUND
    return {
        "trace": path,
        "policy": row.policy,
        "ratio": row.ratio,
        "budget_fraction": row.budget_fraction,
        "budget_units": row.budget_units,
        "requests": row.requests,
        "input_tokens": row.input_tokens,
        "hit_tokens": row.hit_tokens,
        "hit_rate": row.hit_rate,
        "written_units": row.written_units if real else None,
        "state_share": row.state_share if real else None,
        "policy_us_per_request": row.policy_us_per_request if real else None,
        "metadata_bytes": row.metadata_bytes if real else None,
        "disk_units": row.disk_units,
        "disk_hit_tokens": row.disk_hit_tokens if real else None,
        "disk_written_units": row.disk_written_units if real else None,
        "disk_read_units": row.disk_read_units if real else None,
    }


def table(
    replayed: Replayed,
    budgets: Sequence[Budget],
    model: Model | None,
    way: remote.RemoteWay | None = None,
    assumed: Sequence[str] = (),
) -> str:
    """The hit rates by policy and budget, below a summary of the trace.

    way: the link to the remote store, as given. assumed: figures that no option gave.
    """
    trace = replayed.trace
    lines = [
        f"{replayed.path}: {trace.requests:,} requests, {trace.input_tokens:,} prompt tokens, "
        f"{trace.distinct_blocks:,} different blocks of {trace.block_tokens} tokens"
    ]
    if trace.skipped:
        lines.append(f"{count(trace.skipped, 'broken line')} left out")
    ratio = f"a checkpoint takes as much room as {count(replayed.ratio, 'page')}"
    whole = f"all pages and checkpoints: {replayed.footprint:,} pages"
    if model is not None:
        page = model.page_bytes(trace.block_tokens)
        exact = model.exact_ratio(trace.block_tokens)
        lines.append(
            f"{model.name}, {model.dtype}: {model.attention_layers} attention layers, "
            f"{page:,} bytes per page; {model.recurrent_layers} recurrent layers, "
            f"{model.checkpoint_bytes:,} bytes per checkpoint"
        )
        ratio += f" ({exact:.4g}, rounded)" if exact != replayed.ratio else ""
        whole += f", {amount(replayed.footprint * page)}"
    lines += [f"{ratio}; {whole}", ""]

    head = ["hit rate", *(budget.label for budget in budgets)]
    body = [
        [remote.name(rows[0]), *(f"{row.hit_rate:.3f}" for row in rows)] for rows in replayed.rows
    ]
    if any(budget.bytes is not None for budget in budgets):
        shares = (f"{row.budget_fraction:.3g}" for row in replayed.rows[0])
        body.insert(0, ["(share)", *shares])
    lines += columns([head, *body])
    if replayed.rows[0][0].disk_units:
        lines += _disk(replayed, budgets, model)
    if replayed.link is not None and way is not None:
        shown = [budget.label for budget in budgets]
        lines += remote.report(replayed.rows, shown, replayed.link, way, trace, assumed)
    if model is not None:
        lines += _holding(replayed, budgets, model.page_bytes(trace.block_tokens))
    if any(rows[0].policy == BOUND for rows in replayed.rows):
        lines += ["", "bound: proven, no policy can exceed it, not even one that knows the future"]
    return "\n".join(lines)


def _disk(replayed: Replayed, budgets: Sequence[Budget], model: Model | None) -> list[str]:
    """Lines on the hits that the disk adds, and on bytes written to it: in all and per block
    restored."""
    rate: list[list[str]] = []
    written: list[list[str]] = []
    tokens = replayed.trace.block_tokens
    page = None if model is None else model.page_bytes(tokens)

    def size(units: float) -> str:
        return f"{units:,.3g}" if page is None else amount(round(units * page))

    labels = [budget.label for budget in budgets]
    for rows in replayed.rows:
        name = rows[0].policy
        if name == BOUND:
            continue
        shares = (row.disk_hit_tokens / max(1, row.input_tokens) for row in rows)
        rate.append([name, *(f"{share:.3f}" for share in shares)])
        per_block = (row.disk_written_units * tokens / max(1, row.disk_hit_tokens) for row in rows)
        cells = (
            f"{row.disk_written_units:,}" if page is None else amount(row.disk_written_units * page)
            for row in rows
        )
        written += [[name, *cells], ["  per block restored", *map(size, per_block)]]
    what = "pages written" if page is None else "written"
    return [
        "",
        f"with a disk of {replayed.rows[0][0].disk_units:,} pages below",
        *columns([["from the disk", *labels], *rate]),
        "",
        *columns([[what, *labels], *written]),
    ]


def _holding(replayed: Replayed, budgets: Sequence[Budget], page: int) -> list[str]:
    """A line that names the budgets larger than the whole trace, if there are any."""
    need = replayed.footprint * page
    labels = [one.label for one in budgets if one.bytes is not None and one.bytes >= need > 0]
    if not labels:
        return []
    holds = "holds" if len(labels) == 1 else "hold"
    return [
        "",
        f"{' and '.join(labels)} {holds} the whole trace, which needs {amount(need)}: "
        "replayed with that, a share of 1",
    ]
