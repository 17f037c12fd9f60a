"""``hybrid-pages lab scale``: many engines over one remote store."""

from __future__ import annotations

import json
import re
import reprlib
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace

from hybrid_pages import HybridPagesError
from hybrid_pages._core import FleetRow, Trace, run_fleets
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.arguments import WrongArgument, require_file, require_picture, whole
from hybrid_pages.lab import remote, scale_report
from hybrid_pages.lab.budgets import RATIO, Budget, budgets
from hybrid_pages.lab.model import read_model
from hybrid_pages.progress import progress

ADMIT = {"off": None, "auto": "auto", "all": "all"}
"""Ways to use the store, by their names."""

_TIMES = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000}


def run(args: SimpleNamespace) -> int:
    """Simulates. Exit status 2 if something can't be read or done, 130 when interrupted."""
    try:
        require_file("TRACE", args.trace)
        remote.check(args)
        require_picture("--plot", args.plot)
        found = _run(args)
        if args.plot is not None:
            scale_report.draw(found, args.plot)
    except (HybridPagesError, OSError) as error:
        print(f"hybrid-pages lab scale: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("hybrid-pages lab scale: interrupted", file=sys.stderr)
        return 130
    if args.json:
        for row in found.rows:
            print(json.dumps(scale_report.object_of(found, row)))
    else:
        print(scale_report.table(found))
    return 0


def _run(args: SimpleNamespace) -> scale_report.Scaled:
    model = None if args.model is None else read_model(args.model)
    trace = Trace.open(args.trace)
    ratio = args.ratio or (RATIO if model is None else model.ratio(trace.block_tokens))
    link = remote.link(args.remote, args, model, trace.block_tokens, ratio)
    units = args.host.bytes // link.page_bytes
    if units <= ratio:
        raise SettingsError(
            f"--host {args.host.label}: expected room for a page and a checkpoint, "
            f"{(1 + ratio) * link.page_bytes} bytes"
        )
    fleets = [
        (engines, route, ADMIT[admit])
        for route in args.route
        for admit in args.admit
        for engines in args.engines
    ]
    with progress(1, "request") as bar:

        def done(ran: int, expected: int) -> None:
            if bar is not None:
                bar.total = expected
                bar.update(ran)

        rows: list[FleetRow] = run_fleets(
            trace,
            fleets,
            link=link,
            policy=args.policy,
            ratio=ratio,
            host_units=units,
            pack_bytes=args.pack.bytes,
            stale=args.index_age,
            overlap=args.overlap,
            list_keys=args.list_keys,
            retention=args.retention,
            share=not args.separate,
            lasts=args.lasts,
            done=done,
        )
    return scale_report.Scaled(
        path=args.trace,
        trace=trace,
        link=link,
        way=args.remote,
        assumed=remote.assumed(args, model),
        host=args.host.label,
        pack=args.pack.label,
        rows=rows,
    )


def engines(text: str) -> list[int]:
    """Numbers of engines, separated by commas, each once.

    Raises:
        WrongArgument: for anything else.
    """
    return sorted({whole(10_000)(word) for word in text.split(",")})


def some(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Reads some of these names, separated by commas."""

    def read(text: str) -> list[str]:
        found = list(dict.fromkeys(text.split(",")))
        for name in found:
            if name not in names:
                raise WrongArgument(
                    f"expected some of {', '.join(names)}, found {reprlib.repr(name)}"
                )
        return found

    return read


def size(text: str) -> Budget:
    """One size such as 64GiB.

    Raises:
        WrongArgument: for anything else.
    """
    found = budgets(text)
    if len(found) != 1 or found[0].bytes is None:
        raise WrongArgument(f"expected one size such as 64GiB, found {reprlib.repr(text)}")
    return found[0]


def milliseconds(text: str) -> int:
    """A time such as 10min, in milliseconds.

    Raises:
        WrongArgument: for anything else.
    """
    match = re.fullmatch(rf"0*([1-9]\d{{0,8}})({'|'.join(_TIMES)})", text, re.ASCII)
    if match is None:
        raise WrongArgument(
            f"expected a whole number of {', '.join(_TIMES)} above 0 such as 10min, "
            f"found {reprlib.repr(text)}"
        )
    return int(match[1]) * _TIMES[match[2]]
