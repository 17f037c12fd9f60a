"""``hybrid-pages replay``: replays traces through policies, at any budget."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from hybrid_pages import (
    POLICIES,
    HybridPagesError,
    ReplayRow,
    Trace,
    TraceError,
    replay_traces,
)
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.arguments import whole
from hybrid_pages.progress import progress
from hybrid_pages.replay import plot
from hybrid_pages.replay.model import Model, read_model
from hybrid_pages.replay.report import Replayed, footprint, objects, table
from hybrid_pages.replay.words import Budget, budgets, policies, share

_POLICIES = "page-lru,align-lru,junction-lru,reuse,bound"
_BUDGETS = "0.5%,1%,2%,5%,10%,20%,50%"
_RATIO = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the lab."""
    add = parser.add_argument
    add("traces", nargs="+", metavar="TRACE", help="JSON lines, plain, gzip or zstd")
    add(
        "--policy",
        type=policies,
        default=_POLICIES,
        metavar="NAME[,NAME...]",
        help="policies, and `bound`, which none can exceed (default %(default)s)",
    )
    add(
        "--budget",
        type=budgets,
        default=_BUDGETS,
        metavar="SIZE[,SIZE...]",
        help="shares of the room of all pages and checkpoints, or sizes such as 64GiB, which need "
        "--model (default %(default)s)",
    )
    add(
        "--disk",
        type=share,
        metavar="SHARE",
        help="a disk below the host, such as 20%% of the room of all pages and checkpoints; "
        "budgets are the host's",
    )
    add(
        "--disk-policy",
        choices=POLICIES,
        default="reuse",
        help="the disk's; all but `reuse` write everything (default %(default)s)",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--ratio",
        type=whole((1 << 20) - 1),
        metavar="R",
        help=f"room of a checkpoint, in pages (default {_RATIO})",
    )
    size.add_argument(
        "--model",
        type=Path,
        metavar="PATH",
        help="a Hugging Face model's folder or config.json, which says how large both are",
    )
    add(
        "--trace-block",
        type=whole((1 << 20) - 1),
        metavar="N",
        help="tokens per block (default: as a recording says, else 512)",
    )
    add(
        "--sessions",
        choices=["given", "ignore", "derive", "returning"],
        default="given",
        help="whose session ids the policies see: those in the trace, none, derived for every "
        "request, or derived for conversations of several requests alone (default %(default)s)",
    )
    add("--skip-bad", action="store_true", help="count broken lines instead of rejecting the trace")
    add("--json", action="store_true", help="print a JSON object per trace, policy and budget")
    add("--plot", type=Path, metavar="FILE", help="draw hit rate over budget (.png, .pdf, .svg)")


def run(args: argparse.Namespace) -> int:
    """Replays. Exit status 2 if something can't be read or done, 130 when interrupted."""
    try:
        _check(args)
        model = None if args.model is None else read_model(args.model)
        traces = [_open(path, args) for path in args.traces]
        replayed = _replay(traces, model, args)
        if args.plot is not None:
            plot.draw(replayed, args.plot)
    except (HybridPagesError, OSError) as error:
        print(f"hybrid-pages replay: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("hybrid-pages replay: interrupted", file=sys.stderr)
        return 130
    if args.json:
        for one in replayed:
            for row in objects(one, args.budget, model):
                print(json.dumps(row))
    else:
        print("\n\n".join(table(one, args.budget, model) for one in replayed))
    return 0


def _check(args: argparse.Namespace) -> None:
    """Checks options before anything is read: these would fail only at the end."""
    sized = [budget.label for budget in args.budget if budget.bytes is not None]
    if sized and args.model is None:
        raise SettingsError(
            f"--budget {','.join(sized)} needs --model, the folder of a model: without it nothing "
            "says how many bytes a page takes"
        )
    if args.plot is None:
        return
    if args.plot.suffix.lower() not in plot.SUFFIXES:
        raise SettingsError(
            f"--plot: expected a name that ends in {', '.join(plot.SUFFIXES)}, found {args.plot}"
        )
    if not args.plot.absolute().parent.is_dir():
        raise SettingsError(f"--plot: expected a folder that exists, found {args.plot.parent}")
    if not plot.is_installed():
        raise SettingsError("--plot needs matplotlib: pip install matplotlib")


def _open(path: str, args: argparse.Namespace) -> Trace:
    trace = Trace.open(
        path,
        block_tokens=args.trace_block,
        skip_bad=args.skip_bad,
        sessions=args.sessions,
    )
    if trace.input_tokens == 0:
        broken = f" and {trace.skipped} broken lines" if trace.skipped else ""
        raise TraceError(f"trace: {path}: expected requests with prompts, found none{broken}")
    return trace


def _replay(
    traces: Sequence[Trace], model: Model | None, args: argparse.Namespace
) -> list[Replayed]:
    """Replays together the traces that have the same ratio and the same sizes of budgets."""
    names, room = args.policy, args.budget
    together: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for at, trace in enumerate(traces):
        ratio = args.ratio or (_RATIO if model is None else model.ratio(trace.block_tokens))
        together.setdefault((ratio, _units(room, model, trace, ratio)), []).append(at)
    found: dict[int, Replayed] = {}
    with progress(len(traces) * len(names) * len(room), "replay") as bar:

        def done(row: ReplayRow) -> None:
            if bar is not None:
                bar.update()

        for (ratio, units), places in together.items():
            rows = iter(
                replay_traces(
                    [traces[at] for at in places],
                    names,
                    ratio=ratio,
                    fractions=[one.fraction for one in room if one.fraction is not None],
                    units=units,
                    disk=None if args.disk is None else (args.disk, args.disk_policy),
                    done=done,
                )
            )
            for at in places:
                table = [[next(rows) for _ in room] for _ in names]
                found[at] = Replayed(args.traces[at], traces[at], ratio, table)
    return [found[at] for at in range(len(traces))]


def _units(
    room: Sequence[Budget], model: Model | None, trace: Trace, ratio: int
) -> tuple[int, ...]:
    """Budgets in bytes as whole pages, no more than the trace has use for."""
    if model is None:
        return ()
    page, most = model.page_bytes(trace.block_tokens), footprint(trace, ratio)
    return tuple(min(one.bytes // page, most) for one in room if one.bytes is not None)
