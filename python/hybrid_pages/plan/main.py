"""``hybrid-pages plan MODEL``."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

from rich.console import Console

from hybrid_pages import HybridPagesError
from hybrid_pages.arguments import WrongArgument, require_named, require_picture
from hybrid_pages.models.config import Config, find
from hybrid_pages.plan import plot
from hybrid_pages.plan.facts import facts
from hybrid_pages.plan.report import show

_LEAST_COLUMNS = 100


def run(args: SimpleNamespace) -> int:
    """Plans. Exit status 2 if the model can't be read or is not known."""
    try:
        _check(args)
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


def _check(args: SimpleNamespace) -> None:
    """What would fail only at the end, or come to nothing."""
    require_named("MODEL", args.model)
    require_named("--revision", args.revision)
    require_picture("--plot", args.plot)
    together = {
        "--active-params": args.active_params,
        "--tflops": args.tflops,
        "--gb-per-s": args.gb_per_s,
    }
    missing = [name for name, value in together.items() if value is None]
    if 0 < len(missing) < len(together):
        given = ", ".join(name for name in together if name not in missing)
        raise WrongArgument(
            f"{' and '.join(missing)}: expected with {given}, found none: the break-even needs all "
            f"of {', '.join(together)}"
        )
