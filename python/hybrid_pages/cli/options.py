"""Options that several commands have, and how the words of an option become values."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Annotated, TypeVar

import typer

from hybrid_pages._core import POLICIES
from hybrid_pages.arguments import WrongArgument, whole
from hybrid_pages.lab import remote

T = TypeVar("T")

MOST_RATIO = (1 << 20) - 1
"""The most pages that a checkpoint may take in the lab."""

Policy = Enum("Policy", {name: name for name in POLICIES}, type=str)  # type: ignore[misc]
REUSE = Policy("reuse")

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def read(reader: Callable[[str], T]) -> Callable[[str], T]:
    """Makes a reader of one word whose errors are usage errors."""

    def parse(text: str) -> T:
        if not isinstance(text, str):  # a default that is no word
            return text
        try:
            return reader(text)
        except WrongArgument as error:
            raise typer.BadParameter(str(error)) from None

    return parse


TokenBytes = typer.Option(
    parser=read(whole(1 << 30)),
    metavar="BYTES",
    help="Of a token's keys and values, without --model; by default "
    f"{remote.TOKEN_BYTES}, Qwen3.6-27B.",
)
Compute = typer.Option(
    parser=read(whole(10**9)),
    metavar="TOKENS",
    help="Prompt tokens that an engine computes per second; measure yours. By default "
    f"{remote.COMPUTE}, an estimate for 27 billion parameters on an H100.",
)
Ratio = typer.Option(
    parser=read(whole(MOST_RATIO)),
    metavar="R",
    help="Room of a checkpoint, in pages; by default 3. Not with --model.",
)
Folder = typer.Option(
    metavar="PATH",
    help="A Hugging Face model's folder or config.json, which says how large both are.",
)


def one_of(**given: object) -> None:
    """Rejects options that exclude each other.

    Raises:
        typer.BadParameter: more than one was given.
    """
    first, *others = [f"--{name}" for name, value in given.items() if value is not None] or [""]
    if others:
        raise typer.BadParameter(f"not allowed with argument {first}", param_hint=others[0])
