"""Where reports go, and how a run is interrupted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.verify.report import as_json, markdown, show

_LEAST_COLUMNS = 120


def check(args: SimpleNamespace) -> None:
    """Checks where reports are to go.

    Raises:
        SettingsError: two of them to one place, or to one that can't be written.
    """
    if str(args.json) == "-" and str(args.markdown) == "-":
        raise SettingsError("expected one report on standard output, found two: name a file")
    for name in ("json", "markdown"):
        path = getattr(args, name)
        if path is not None and str(path) != "-":
            require_writable(f"--{name}", path.absolute())
    if args.json is not None and args.json == args.markdown:
        raise SettingsError(f"expected a file for each report, found one for both: {args.json}")


def require_writable(option: str, path: Path) -> None:
    """Rejects a file that can't be written, before engines run whose results would be lost."""
    if not path.parent.is_dir():
        raise SettingsError(f"{option}: expected a directory to write in, found none: {path}")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise SettingsError(f"{option}: expected a file that can be written, found {path}")


def require_replaceable(option: str, path: Path) -> None:
    """Rejects a file that can't be replaced: a new one is written beside it first."""
    if not path.parent.is_dir():
        raise SettingsError(f"{option}: expected a directory to write in, found none: {path}")
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise SettingsError(
            f"{option}: expected a file in a directory that can be written, as a new file takes "
            f"its place, found {path}"
        )


def write(args: SimpleNamespace, found: Mapping[str, Any]) -> None:
    """Writes the reports that go into files."""
    _write(args, as_json(found), markdown(found))


def write_failure(args: SimpleNamespace, status: int, error: str) -> None:
    """Writes why there is no report, in the place of those of a run before."""
    failure = {"good": False, "status": status, "error": error}
    _write(args, as_json(failure), f"# hybrid-pages verify\n\n**NOT VERIFIED.** {error}\n")


def _write(args: SimpleNamespace, json: str, markdown: str) -> None:
    for path, text in ((args.json, json), (args.markdown, markdown)):
        if path is not None and str(path) != "-":
            path.write_text(text if text.endswith("\n") else f"{text}\n", encoding="utf-8")


def show_on_terminal(args: SimpleNamespace, found: Mapping[str, Any]) -> None:
    """Prints one of the reports, or a table."""
    if str(args.json) == "-":
        print(as_json(found))
    elif str(args.markdown) == "-":
        print(markdown(found), end="")
    else:
        console = Console(highlight=False)
        # A pipe or a log has no width.
        wide = console if console.is_terminal else Console(width=_LEAST_COLUMNS, highlight=False)
        show(found, wide)
