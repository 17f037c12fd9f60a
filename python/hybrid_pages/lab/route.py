"""``hybrid-pages lab route``: what routers in front of several engines are worth on a trace."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

from hybrid_pages import HybridPagesError
from hybrid_pages._core import ROUTES, Trace, route_trace
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.arguments import require_file
from hybrid_pages.lab.budgets import Budget


def run(args: SimpleNamespace) -> int:
    """Routes. Exit status 2 if something can't be read or done, 130 when interrupted."""
    try:
        require_file("TRACE", args.trace)
        lines = [line for count in args.engines for line in _lines(count, args)]
    except (HybridPagesError, OSError) as error:
        print(f"hybrid-pages lab route: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("hybrid-pages lab route: interrupted", file=sys.stderr)
        return 130
    print("\n".join(lines))
    return 0


def _lines(engines: int, args: SimpleNamespace) -> list[str]:
    """The hit rates of every route with so many engines, as a table or as objects."""
    trace = Trace.open(args.trace)
    found = []
    rates = [["hit rate", *(budget.label for budget in args.budget)]]
    for route in ROUTES:
        rows = [
            route_trace(
                trace,
                route=route,
                engines=engines,
                policy=args.policy,
                ratio=args.ratio,
                fraction=_share(budget),
            )
            for budget in args.budget
        ]
        rates.append([route, *(f"{row.hit_rate:.3f}" for row in rows)])
        found += [
            {
                "engines": engines,
                "route": route,
                "budget_fraction": budget.fraction,
                "input_tokens": row.input_tokens,
                "hit_tokens": row.hit_tokens,
                "hit_rate": row.hit_rate,
                "predicted_tokens": row.predicted_tokens,
                "imbalance": row.imbalance,
            }
            for budget, row in zip(args.budget, rows, strict=True)
        ]
    if args.json:
        return [json.dumps(each) for each in found]
    table = ["  ".join([row[0].ljust(12), *(cell.rjust(6) for cell in row[1:])]) for row in rates]
    return [f"{engines} {'engine' if engines == 1 else 'engines'}, {args.policy}", *table, ""]


def _share(budget: Budget) -> float:
    if budget.fraction is None:
        raise SettingsError(f"--budget: expected shares such as 5%, found {budget.label}")
    return budget.fraction
