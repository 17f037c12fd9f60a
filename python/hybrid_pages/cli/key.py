"""The group ``key``: for people who encrypt what is on disks and in remote stores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Annotated, Optional

import typer

from hybrid_pages.cli.options import Json

group = typer.Typer(help="Make the file of encrypt_key, or destroy the key of a tenant in it.")

_FILE = typer.Argument(metavar="FILE", help="The engines' encrypt_key.")


@group.command()
def new(path: Annotated[str, _FILE], as_json: Json = False) -> int:
    """Make a key file, from which every tenant gets a key that can be destroyed alone."""
    from hybrid_pages.key_file import run

    return run(SimpleNamespace(action="new", path=path, json=as_json))


@group.command()
def destroy(
    path: Annotated[str, _FILE],
    as_json: Json = False,
    salt: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="SALT", help="The tenant's cache_salt; '' for requests without one."),
    ] = None,
    sha256: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="DIGEST", help="The SHA-256 of it instead."),
    ] = None,
) -> int:
    """Destroy the key of one tenant, and with it all that is encrypted with it, wherever it is.

    The file is replaced. Others keep their keys, and the tenant gets a new one.
    """
    from hybrid_pages.key_file import run

    return run(SimpleNamespace(action="destroy", path=path, json=as_json, salt=salt, sha256=sha256))


def add_to(app: typer.Typer) -> None:
    """Adds the group to the command."""
    app.add_typer(group, name="key")
