"""``hybrid-pages lab conversations``: writes made-up chats and agents as a trace, or as tokens."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

from hybrid_pages.lab.computed import ideal, trace
from hybrid_pages.lab.conversations import KINDS, Workload


def run(args: SimpleNamespace) -> int:
    """Writes a line for each request to standard output."""
    workload = Workload(
        KINDS[args.kind], seed=args.seed, sessions=args.sessions, rate=args.rate, scale=args.scale
    )
    requests = list(workload.requests())
    if args.tokens:
        for request, new in zip(requests, ideal(requests), strict=True):
            row = {
                "session": request.session,
                "timestamp": round(1000 * request.at),
                "prompt": request.prompt,
                "answer": request.answer,
                "new_tokens": new,
            }
            print(json.dumps(row, separators=(",", ":")))
    else:
        for line in trace(requests, args.block):
            print(line)
    new, prompts = sum(ideal(requests)), sum(len(request.prompt) for request in requests)
    print(
        f"{len(requests):,} requests, {prompts:,} prompt tokens, of which {new:,} had not been "
        "computed for an earlier one",
        file=sys.stderr,
    )
    return 0
