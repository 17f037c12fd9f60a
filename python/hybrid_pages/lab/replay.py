"""``hybrid-pages lab replay``: replays traces through policies, at any budget."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from types import SimpleNamespace

from hybrid_pages import HybridPagesError
from hybrid_pages._core import ReplayRow, Trace, TraceError, replay_traces
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.arguments import require_file, require_picture
from hybrid_pages.lab import remote, replay_plot
from hybrid_pages.lab.budgets import BOUND, RATIO, Budget
from hybrid_pages.lab.model import Model, read_model
from hybrid_pages.lab.replay_report import Replayed, footprint, objects, table
from hybrid_pages.progress import progress


def run(args: SimpleNamespace) -> int:
    """Replays. Exit status 2 if something can't be read or done, 130 when interrupted."""
    try:
        _check(args)
        model = None if args.model is None else read_model(args.model)
        traces = [_open(path, args) for path in args.traces]
        replayed = _replay(traces, model, args)
        if args.plot is not None:
            replay_plot.draw(replayed, args.plot)
    except (HybridPagesError, OSError) as error:
        print(f"hybrid-pages lab replay: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("hybrid-pages lab replay: interrupted", file=sys.stderr)
        return 130
    if args.json:
        for one in replayed:
            for row in objects(one, args.budget, model):
                print(json.dumps(row))
    else:
        assumed = [] if args.remote is None else remote.assumed(args, model)
        print("\n\n".join(table(one, args.budget, model, args.remote, assumed) for one in replayed))
    return 0


def _check(args: SimpleNamespace) -> None:
    """Checks options before anything is read: these would fail only at the end."""
    for path in args.traces:
        require_file("TRACE", path)
    remote.check(args)
    if args.disk is None and args.disk_policy is not None:
        raise SettingsError(
            f"--disk-policy {args.disk_policy}: expected --disk beside it, found none: name the "
            "disk's share, or drop it"
        )
    if args.remote is None and (args.token_bytes or args.compute) is not None:
        raise SettingsError("--token-bytes and --compute need --remote: nothing else uses them")
    sized = [budget.label for budget in args.budget if budget.bytes is not None]
    if sized and args.model is None:
        raise SettingsError(
            f"--budget {','.join(sized)} needs --model, the folder of a model: without it nothing "
            "says how many bytes a page takes"
        )
    require_picture("--plot", args.plot)


def _open(path: str, args: SimpleNamespace) -> Trace:
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


def _replay(traces: Sequence[Trace], model: Model | None, args: SimpleNamespace) -> list[Replayed]:
    """Replays together the traces that have the same ratio and the same sizes of budgets."""
    names, room = args.policy, args.budget
    ratios = [
        args.ratio or (RATIO if model is None else model.ratio(trace.block_tokens))
        for trace in traces
    ]
    together: dict[tuple[int, int, tuple[int, ...]], list[int]] = {}
    for at, (trace, ratio) in enumerate(zip(traces, ratios, strict=True)):
        key = (trace.block_tokens, ratio, _units(room, model, trace, ratio))
        together.setdefault(key, []).append(at)
    # A policy is replayed once, or in each way to use a remote store.
    ways = [1 if args.remote is None or name == BOUND else 2 for name in names]
    found: dict[int, Replayed] = {}
    with progress(len(traces) * sum(ways) * len(room), "replay") as bar:

        def done(row: ReplayRow) -> None:
            if bar is not None:
                bar.update()

        for (block_tokens, ratio, units), places in together.items():
            link = None
            if args.remote is not None:
                link = remote.link(args.remote, args, model, block_tokens, ratio)
            rows = iter(
                replay_traces(
                    [traces[at] for at in places],
                    names,
                    ratio=ratio,
                    fractions=[one.fraction for one in room if one.fraction is not None],
                    units=units,
                    disk=None if args.disk is None else (args.disk, args.disk_policy or "reuse"),
                    remote=link,
                    done=done,
                )
            )
            for at in places:
                table = [[next(rows) for _ in room] for _ in range(sum(ways))]
                found[at] = Replayed(args.traces[at], traces[at], ratio, table, link)
    return [found[at] for at in range(len(traces))]


def _units(
    room: Sequence[Budget], model: Model | None, trace: Trace, ratio: int
) -> tuple[int, ...]:
    """Budgets in bytes as whole pages, no more than the trace has use for."""
    if model is None:
        return ()
    page, most = model.page_bytes(trace.block_tokens), footprint(trace, ratio)
    return tuple(min(one.bytes // page, most) for one in room if one.bytes is not None)
