"""``warm``: for people whose prompts begin with what is known before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Annotated

import typer

from hybrid_pages.arguments import positive
from hybrid_pages.cli.options import Json, read

_DAY = 24 * 60 * 60


def warm(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Texts; in .json, and .jsonl one a line, token ids, chat messages, or objects "
            "with `prompt`, `prompt_token_ids` or `messages` (and `tools`).",
        ),
    ],
    url: Annotated[
        str,
        typer.Option(metavar="URL", help="The address that `vllm serve` listens on."),
    ] = "http://localhost:8000",
    retain: Annotated[
        float,
        typer.Option(
            parser=read(positive(_DAY)),
            metavar="SECONDS",
            help="Keep them in host memory longer than all that is not retained.",
        ),
    ] = 0.0,
    model: Annotated[
        str, typer.Option(metavar="NAME", help="A served model or adapter; default the first.")
    ] = "",
    salt: Annotated[
        str, typer.Option(metavar="TEXT", help="The cache_salt of the prompts that go on.")
    ] = "",
    as_json: Json = False,
) -> int:
    """Send known beginnings of prompts once, so that all prompts go on from their ends.

    Safe to repeat: what is warm costs one token. Chats are cut where every continuation goes on.
    Exit status 1 if some end is no place to resume from, 2 if a file or the server can't be used.
    """
    from hybrid_pages.warm.main import run

    return run(
        SimpleNamespace(files=files, url=url, retain=retain, model=model, salt=salt, json=as_json)
    )
