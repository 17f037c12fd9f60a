"""The options of ``hybrid-pages lab scale``."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Optional

import typer

from hybrid_pages._core import ROUTES
from hybrid_pages.arguments import whole
from hybrid_pages.cli.options import (
    REUSE,
    Compute,
    Folder,
    Policy,
    Ratio,
    TokenBytes,
    one_of,
    read,
)
from hybrid_pages.lab import scale as fleets
from hybrid_pages.lab.remote import way


def scale(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="JSON lines, plain, gzip or zstd.")],
    engines: Annotated[
        object,
        typer.Option(
            parser=read(fleets.engines),
            metavar="N[,N...]",
            help="They get as many copies of the trace as they could just compute without a hit.",
        ),
    ] = "1,10,100,1000",
    route: Annotated[
        object,
        typer.Option(
            parser=read(fleets.some(ROUTES)),
            metavar="NAME[,NAME...]",
            help=f"Some of {', '.join(ROUTES)}.",
        ),
    ] = "events,round-robin",
    admit: Annotated[
        object,
        typer.Option(
            parser=read(fleets.some(list(fleets.ADMIT))),
            metavar="NAME[,NAME...]",
            help="How the store is used: off; auto, which uploads what a second request has "
            "passed and fetches what is faster to fetch than to compute; all.",
        ),
    ] = "off,auto,all",
    remote: Annotated[
        object,
        typer.Option(
            parser=read(way),
            metavar="LATENCY,BANDWIDTH",
            help="Between one engine and the store.",
        ),
    ] = "100ms,1GB/s",
    host: Annotated[
        object, typer.Option(parser=read(fleets.size), metavar="SIZE", help="Each engine's.")
    ] = "64GiB",
    policy: Annotated[Policy, typer.Option(help="Of every engine.")] = REUSE,
    ratio: Annotated[Optional[int], Ratio] = None,  # noqa: UP045
    model: Annotated[Optional[Path], Folder] = None,  # noqa: UP045
    token_bytes: Annotated[Optional[int], TokenBytes] = None,  # noqa: UP045
    compute: Annotated[Optional[int], Compute] = None,  # noqa: UP045
    pack: Annotated[
        object,
        typer.Option(
            parser=read(fleets.size),
            metavar="SIZE",
            help="Of an object, or less if its first entry has waited 0.4 s.",
        ),
    ] = "32MiB",
    index_age: Annotated[
        object,
        typer.Option(
            parser=read(fleets.milliseconds),
            metavar="TIME",
            help="After which a lookup looks for new objects.",
        ),
    ] = "1s",
    overlap: Annotated[
        object,
        typer.Option(
            parser=read(fleets.milliseconds),
            metavar="TIME",
            help="A listing begins so long before the last one: an object may be under way as "
            "long, and clocks differ.",
        ),
    ] = "1min",
    list_keys: Annotated[
        int,
        typer.Option(
            parser=read(whole(1_000_000)),
            metavar="N",
            help="In a reply to a listing; 1000 is Amazon S3's.",
        ),
    ] = 1000,
    retention: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=read(fleets.milliseconds),
            metavar="TIME",
            help="After which objects are deleted, such as 10min; by default never.",
        ),
    ] = None,
    separate: Annotated[
        bool,
        typer.Option(
            "--separate",
            help="Copies of the trace have no blocks in common; else they share those that ten "
            "sessions of the trace pass, such as system prompts.",
        ),
    ] = False,
    lasts: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=read(fleets.milliseconds),
            metavar="TIME",
            help="Take only the first part of the trace.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per fleet.")] = False,
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Draw requests and hits (.png, .pdf, .svg)."),
    ] = None,
) -> int:
    """Simulate many engines over one remote store: hits, and the store's load."""
    one_of(ratio=ratio, model=model)
    return fleets.run(
        SimpleNamespace(
            trace=trace,
            engines=engines,
            route=route,
            admit=admit,
            remote=remote,
            host=host,
            policy=policy.value,
            ratio=ratio,
            model=model,
            token_bytes=token_bytes,
            compute=compute,
            pack=pack,
            index_age=index_age,
            overlap=overlap,
            list_keys=list_keys,
            retention=retention,
            separate=separate,
            lasts=lasts,
            json=as_json,
            plot=plot,
        )
    )
