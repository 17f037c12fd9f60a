"""``hybrid-pages doctor``: exit status 0 for nothing to change, 1 for findings, 2 for an error."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from types import SimpleNamespace

from rich.console import Console
from rich.text import Text

from hybrid_pages import HybridPagesError
from hybrid_pages.checks.situation import Finding
from hybrid_pages.doctor import command, engine
from hybrid_pages.doctor.serve_arguments import read_command
from hybrid_pages.scrape import scrape, version_of

_MEANS = {
    "start": ("does not start", "bold red"),
    "safety": ("answers may be wrong", "bold red"),
    "hits": ("costs hits", "yellow"),
    "time": ("costs time", "yellow"),
    "memory": ("costs memory", "yellow"),
}


def run(args: SimpleNamespace) -> int:
    """Examines a command line or an engine."""
    try:
        if args.url is not None:
            samples = scrape(args.url)
            found, skipped = engine.examine(samples, version_of(args.url))
        else:
            found, skipped = command.examine(read_command(args.words), args.vllm)
    except (HybridPagesError, OSError) as error:
        print(f"hybrid-pages doctor: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps({"findings": [asdict(finding) for finding in found], "skipped": skipped}))
    else:
        _show(found, skipped)
    return int(bool(found))


def _show(found: list[Finding], skipped: list[str]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for finding in found:
        means, style = _MEANS[finding.effect]
        head = Text(f"{finding.name} ", style="bold")
        head.append(f"({means})", style=style)
        console.print(head)
        console.print(Text(f"  found  {finding.found}"))
        console.print(Text(f"  fix    {finding.fix}"))
    for reason in skipped:
        console.print(Text(f"not looked at: {reason}", style="dim"))
    console.print(
        Text(f"{len(found)} finding{'s' if len(found) != 1 else ''}" if found else "nothing to do")
    )
