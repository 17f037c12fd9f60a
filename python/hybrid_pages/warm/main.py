"""``hybrid-pages warm``: exit status 0; 1 if some end is no place to resume from; 2 if a file, the
server or its answers can't be used."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from types import SimpleNamespace

from hybrid_pages import HybridPagesError
from hybrid_pages.scrape import PREFIX, ScrapeError, scrape
from hybrid_pages.served import RefusedError, ServedModelError
from hybrid_pages.warm.beginnings import Beginning, BeginningError, read
from hybrid_pages.warm.cut import CutBeginning, cut
from hybrid_pages.warm.report import Row, as_json, line
from hybrid_pages.warm.server import Server
from hybrid_pages.warm.visit import visit

_PATIENCE = 5.0
"""Seconds in which the metrics of an engine that was idle come."""
_LEAST = 2
"""Tokens of the shortest prompt that is sent: kernels of vLLM 0.32 for CPUs end the engine at one
of a single token."""
_GREETING = (1,) * 8
"""Tokens that any model has."""
_UNTOLD = (
    "the server does not tell what it restored: start it with --enable-prompt-tokens-details to "
    "have that checked, and what is warm left alone"
)


def run(args: SimpleNamespace) -> int:
    """Warms the beginnings in all files."""
    try:
        beginnings = [each for path in args.files for each in read(path)]
        key = os.environ.get("VLLM_API_KEY", "")
        server = Server(args.url, key=key, model=args.model, salt=args.salt)
        notes: list[str] = []
        block_tokens = _connector(server, notes)
        rows = _warm(server, beginnings, args.retain)
    except (HybridPagesError, OSError) as error:
        print(f"hybrid-pages warm: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("hybrid-pages warm: interrupted", file=sys.stderr)
        return 130
    if any(row.visit is not None and row.visit.saves is None for row in rows):
        notes.append(_UNTOLD)
    if args.json:
        print(json.dumps(as_json(server.base, server.model, rows, notes)))
    else:
        for row in rows:
            print(line(row, block_tokens))
        for note in notes:
            print(f"note: {note}")
    return int(not all(row.good for row in rows))


def _warm(server: Server, beginnings: Sequence[Beginning], retain: float) -> list[Row]:
    """Sends all beginnings, the shortest first, since longer ones may go on from there."""
    rows: dict[int, Row] = {}
    cuts: dict[int, CutBeginning] = {}
    for at, beginning in enumerate(beginnings):
        try:
            cuts[at] = _fitting(server, beginning.name, cut(server, beginning))
        except (BeginningError, RefusedError) as error:
            rows[at] = Row(beginning.name, trouble=str(error))
    for at in sorted(cuts, key=lambda at: len(cuts[at].tokens)):
        name = beginnings[at].name
        try:
            rows[at] = Row(name, visit(server, cuts[at], retain))
        except RefusedError as error:
            rows[at] = Row(name, trouble=str(error))
    return [rows[at] for at in range(len(beginnings))]


def _fitting(server: Server, name: str, found: CutBeginning) -> CutBeginning:
    if len(found.tokens) < _LEAST:
        raise BeginningError(
            f"{name}: expected at least {_LEAST} tokens, found {len(found.tokens)}: make it longer"
        )
    most = server.most_tokens
    if most is not None and len(found.tokens) + 2 > most:
        raise BeginningError(
            f"{name}: expected at most {most - 2:,} tokens, which leave room for two more in "
            f"--max-model-len, found {len(found.tokens):,}: shorten it"
        )
    return found


def _connector(server: Server, notes: list[str]) -> int | None:
    """Makes sure that the connector is in use. Returns the tokens of its blocks, if that is known.

    Raises:
        ServedModelError: it is not in use.
    """
    until = None
    while True:
        try:
            samples = scrape(server.base)
        except ScrapeError as error:
            notes.append(f"it is not known whether hybrid-pages is in use: {error}")
            return None
        if samples.has_ours():
            tokens = samples.all(f"{PREFIX}block_tokens")
            return int(max((it.value for it in tokens), default=0)) or None
        if until is None:  # an engine says nothing before its first request
            until = time.monotonic() + _PATIENCE
            server.serve(_GREETING, {"store": False})
        if time.monotonic() > until:
            raise ServedModelError(
                f"{server.base}: expected a server with hybrid-pages, found none of its metrics: "
                "start vLLM with --kv-transfer-config, or name another with --url"
            )
        time.sleep(0.1)
