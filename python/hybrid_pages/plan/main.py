"""``hybrid-pages plan MODEL``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

from rich.console import Console

from hybrid_pages import HybridPagesError
from hybrid_pages.adapter.errors import MissingError, SettingsError
from hybrid_pages.models.config import Config, find
from hybrid_pages.plan import plot
from hybrid_pages.plan.facts import facts
from hybrid_pages.plan.report import show

_LEAST_COLUMNS = 100


def run(args: SimpleNamespace) -> int:
    """Plans. Exit status 2 if the model can't be read or is not known."""
    try:
        _check(args.plot)
        found = facts(Config.read(find(args.model, args.revision)), args)
        if args.plot is not None:
            plot.draw(found, args.plot)
    except (HybridPagesError, OSError) as error:
        print(f"hybrid-pages plan: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(found))
    else:
        console = Console()
        # A pipe or a log has no width.
        show(found, console if console.is_terminal else Console(width=_LEAST_COLUMNS))
    return 0


def _check(path: Path | None) -> None:
    if path is None:
        return
    if path.suffix.lower() not in plot.SUFFIXES:
        raise SettingsError(
            f"--plot: expected a name that ends in {', '.join(plot.SUFFIXES)}, found {path}"
        )
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingError(
            f"--plot needs matplotlib, found {str(error)!r}: pip install matplotlib"
        ) from None
