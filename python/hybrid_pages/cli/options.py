"""Types of options, and ``--json``, which every command but ``mlx-server`` has."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Annotated, TypeVar

import typer

from hybrid_pages import POLICIES
from hybrid_pages.arguments import WrongArgument

T = TypeVar("T")

Policy = Enum("Policy", {name: name for name in POLICIES}, type=str)  # type: ignore[misc]
REUSE = Policy("reuse")

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def read(reader: Callable[[str], T]) -> Callable[[str], T]:
    """A reader of one word, whose complaints become usage errors."""

    def parse(text: str) -> T:
        if not isinstance(text, str):  # a default that is no word
            return text
        try:
            return reader(text)
        except WrongArgument as error:
            raise typer.BadParameter(str(error)) from None

    return parse
