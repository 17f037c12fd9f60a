"""``hybrid-pages top``: exit status 0, or 2 if the endpoint can't be read at the start."""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace
from typing import Any

from rich.console import Console
from rich.live import Live

from hybrid_pages.interrupts import ENDING, interruptible
from hybrid_pages.scrape import Samples, ScrapeError, base_of, scrape
from hybrid_pages.text import finite
from hybrid_pages.top.figures import figures
from hybrid_pages.top.view import view

_NOTHING = "no metric of hybrid-pages yet: send a request; `hybrid-pages doctor --url` says more"


def run(args: SimpleNamespace) -> int:
    """Shows an engine until it is interrupted, or once."""
    try:
        first = scrape(args.url)
    except ScrapeError as error:
        print(f"hybrid-pages top: {error}", file=sys.stderr)
        return 2
    try:
        if args.once:
            _once(args, first)
        elif args.json:
            _lines(args, first)
        else:
            # The terminal gets its screen and its cursor back.
            with interruptible(*ENDING):
                _live(args, first)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        sys.stderr.close()
    return 0


def _once(args: SimpleNamespace, samples: Samples) -> None:
    totals = figures(samples, None, 0)
    if args.json:
        print(_line(args, totals))
        return
    console = Console(highlight=False)
    console.print(view(base_of(args.url), totals, totals, _note(samples)))


def _note(samples: Samples) -> str:
    return "" if samples.has_ours() else _NOTHING


def _lines(args: SimpleNamespace, before: Samples) -> None:
    """An object for each interval."""
    began = time.monotonic()
    while True:
        time.sleep(args.interval)
        try:
            now, at = scrape(args.url), time.monotonic()
        except ScrapeError as error:
            print(_line(args, {"error": str(error)}), flush=True)
            continue
        print(_line(args, figures(now, before, at - began)), flush=True)
        before, began = now, at


def _line(args: SimpleNamespace, shown: dict[str, Any]) -> str:
    return json.dumps({"url": base_of(args.url), **finite(shown)}, allow_nan=False)


def _live(args: SimpleNamespace, before: Samples) -> None:
    url, console = base_of(args.url), Console(highlight=False)
    totals = figures(before, None, 0)
    last: dict[str, Any] = totals
    began = time.monotonic()
    # The other screen of the terminal: what was there before comes back at the end.
    with Live(
        view(url, totals, totals, _note(before)),
        console=console,
        screen=console.is_terminal,
        auto_refresh=False,
    ) as live:
        while True:
            time.sleep(args.interval)
            try:
                now, at = scrape(args.url), time.monotonic()
            except ScrapeError as error:
                live.update(view(url, last, totals, f"no answer: {error}"), refresh=True)
                continue
            last, totals = figures(now, before, at - began), figures(now, None, 0)
            live.update(view(url, last, totals, _note(now)), refresh=True)
            before, began = now, at
