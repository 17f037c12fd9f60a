"""``hybrid-pages plan MODEL``."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

from rich.console import Console

from hybrid_pages import HybridPagesError
from hybrid_pages.arguments import require_named, require_picture
from hybrid_pages.models.config import Config, find
from hybrid_pages.plan.facts import facts
from hybrid_pages.plan.report import draw, show

_LEAST_COLUMNS = 100


def run(args: SimpleNamespace) -> int:
    """Plans a model's caches. Exit status 2 if the model can't be read or is not known."""
    try:
        _check(args)
        found = facts(Config.read(find(args.model, args.revision)), args)
        if args.plot is not None:
            draw(found, args.plot)
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


def _check(args: SimpleNamespace) -> None:
    """Rejects options at once that would otherwise fail only at the end."""
    require_named("MODEL", args.model)
    require_named("--revision", args.revision)
    require_picture("--plot", args.plot)
