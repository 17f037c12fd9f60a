"""The group ``lab``: commands that replay traces of requests."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Optional

import typer

from hybrid_pages.arguments import whole
from hybrid_pages.cli.options import (
    MOST_RATIO,
    REUSE,
    Compute,
    Folder,
    Policy,
    Ratio,
    TokenBytes,
    one_of,
    read,
)
from hybrid_pages.cli.scale import scale
from hybrid_pages.lab import remote as store
from hybrid_pages.lab.budgets import budgets, policies, share

group = typer.Typer(
    help="Replay recorded requests: compare policies, budgets, routers and fleets of engines."
)

_REMOTE = typer.Option(
    parser=read(store.way),
    metavar="LATENCY,BANDWIDTH",
    help="An unbounded store below the host behind such a network, such as 20ms,1GB/s: shows from "
    "how many tokens on fetching pays, and what crosses the network. Not with --disk.",
)


class Talk(str, Enum):
    """Kinds of made-up conversations."""

    chat = "chat"
    chat_200 = "chat-200"
    chat_1000 = "chat-1000"
    chat_edited = "chat-edited"
    reasoning_kept = "reasoning-kept"
    reasoning_dropped = "reasoning-dropped"
    reasoning_emptied = "reasoning-emptied"
    agent = "agent"
    agent_dropped = "agent-dropped"


class SessionSource(str, Enum):
    """Whose session ids the policies see."""

    given = "given"
    ignore = "ignore"
    derive = "derive"
    returning = "returning"


def replay(
    traces: Annotated[
        list[str], typer.Argument(metavar="TRACE...", help="JSON lines, plain, gzip or zstd.")
    ],
    policy: Annotated[
        object,
        typer.Option(
            parser=read(policies),
            metavar="NAME[,NAME...]",
            help="Policies, and `bound`, which none can exceed.",
        ),
    ] = "page-lru,align-lru,junction-lru,reuse,bound",
    budget: Annotated[
        object,
        typer.Option(
            parser=read(budgets),
            metavar="SIZE[,SIZE...]",
            help="Shares of the room of all pages and checkpoints, or sizes such as 64GiB, which "
            "need --model.",
        ),
    ] = "0.5%,1%,2%,5%,10%,20%,50%",
    disk: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            parser=read(share),
            metavar="SHARE",
            help="A disk below the host, such as 20% of the room of all pages and checkpoints; "
            "budgets are the host's. Not with --remote.",
        ),
    ] = None,
    remote: Annotated[object, _REMOTE] = None,
    disk_policy: Annotated[
        Optional[Policy],  # noqa: UP045
        typer.Option(help="The disk's, by default `reuse`; all others write everything."),
    ] = None,
    ratio: Annotated[Optional[int], Ratio] = None,  # noqa: UP045
    model: Annotated[Optional[Path], Folder] = None,  # noqa: UP045
    token_bytes: Annotated[Optional[int], TokenBytes] = None,  # noqa: UP045
    compute: Annotated[Optional[int], Compute] = None,  # noqa: UP045
    trace_block: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=read(whole(MOST_RATIO)),
            metavar="N",
            help="Tokens per block; by default as a recording says, else 512.",
        ),
    ] = None,
    sessions: Annotated[
        SessionSource,
        typer.Option(
            help="Whose session ids the policies see: those in the trace, none, derived for every "
            "request, or derived for conversations of several requests alone."
        ),
    ] = SessionSource.given,
    skip_bad: Annotated[
        bool,
        typer.Option("--skip-bad", help="Count broken lines instead of rejecting the trace."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per trace, policy and budget.")
    ] = False,
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Draw hit rate over budget (.png, .pdf, .svg)."),
    ] = None,
) -> int:
    """Compare policies and budgets on a trace of requests."""
    one_of(ratio=ratio, model=model)
    one_of(disk=disk, remote=remote)
    from hybrid_pages.lab.replay import run

    return run(
        SimpleNamespace(
            traces=traces,
            policy=policy,
            budget=budget,
            disk=disk,
            disk_policy=None if disk_policy is None else disk_policy.value,
            remote=remote,
            ratio=ratio,
            model=model,
            token_bytes=token_bytes,
            compute=compute,
            trace_block=trace_block,
            sessions=sessions.value,
            skip_bad=skip_bad,
            json=as_json,
            plot=plot,
        )
    )


def _engine_counts(text: str) -> list[int]:
    return [whole(1024)(word) for word in text.split(",")]


def route(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="JSON lines, plain, gzip or zstd.")],
    engines: Annotated[
        object, typer.Option(parser=read(_engine_counts), metavar="N[,N...]", help="How many.")
    ] = "2,8",
    budget: Annotated[
        object,
        typer.Option(
            parser=read(budgets),
            metavar="SHARE[,SHARE...]",
            help="Of all engines together, as shares of the room of all pages and checkpoints.",
        ),
    ] = "1%,5%,10%,20%",
    policy: Annotated[Policy, typer.Option(help="Of every engine.")] = REUSE,
    ratio: Annotated[
        int,
        typer.Option(
            parser=read(whole(MOST_RATIO)), metavar="R", help="Room of a checkpoint, in pages."
        ),
    ] = 3,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per route and budget.")
    ] = False,
) -> int:
    """Compare ways to route a trace to several engines."""
    from hybrid_pages.lab.route import run

    return run(
        SimpleNamespace(
            trace=trace,
            engines=engines,
            budget=budget,
            policy=policy.value,
            ratio=ratio,
            json=as_json,
        )
    )


def conversations(
    kind: Annotated[Talk, typer.Argument(help="What the conversations are like.")],
    sessions: Annotated[
        int, typer.Option(parser=read(whole(1 << 20)), metavar="N", help="How many.")
    ] = 40,
    seed: Annotated[int, typer.Option(help="Everything follows from it.")] = 0,
    block: Annotated[
        int, typer.Option(parser=read(whole(1 << 20)), metavar="N", help="Tokens per block.")
    ] = 512,
    rate: Annotated[
        float, typer.Option(min=1e-6, metavar="R", help="New conversations a second.")
    ] = 0.2,
    scale: Annotated[
        float, typer.Option(min=0.001, max=10.0, metavar="X", help="Of all lengths.")
    ] = 1.0,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Write prompts and answers as token ids, not a trace.")
    ] = False,
) -> int:
    """Write made-up chats and agents, token by token, as a trace for the other commands."""
    from hybrid_pages.lab.converse import run

    return run(
        SimpleNamespace(
            kind=kind.value,
            sessions=sessions,
            seed=seed,
            block=block,
            rate=rate,
            scale=scale,
            tokens=tokens,
        )
    )


def add_to(app: typer.Typer) -> None:
    """Adds the group to the command, and each of its commands under its old name, hidden."""
    app.add_typer(group, name="lab")
    for command in (replay, route, scale):
        group.command()(command)
        app.command(hidden=True)(command)
    group.command()(conversations)
