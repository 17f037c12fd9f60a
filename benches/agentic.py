"""Writes an agentic workload as a trace on standard output, in the format of Mooncake's traces.

Templates shared by many users, one-shot calls, conversations with heavy-tailed lengths, tool loops
with short gaps, pauses, and forks, as of sub-agents. The same seed gives the same trace.

    benches/agentic.py --seed 7 > agentic7.jsonl
"""

import argparse
import heapq
import json
import random
import sys
from collections.abc import Iterator
from itertools import count

BLOCK = 512
"""Tokens that a hash stands for."""


def requests(rng: random.Random, args: argparse.Namespace) -> list[dict]:
    """The rows, by time. The order of calls to `rng` is part of what a seed means."""
    ids = count(1)
    templates = [_fresh(ids, rng.choice([4, 5, 8, 12, 16, 24])) for _ in range(args.templates)]
    weights = [1 / (rank + 1) ** 1.1 for rank in range(args.templates)]
    # Time, a number that keeps equal times in order, and of a later turn its prompt and turns left.
    events: list[tuple[float, int, tuple[list[int], int] | None]] = []
    now, order = 0.0, count()
    for _ in range(max(1, args.requests * 3 // 10)):
        now += rng.expovariate(args.rate)
        heapq.heappush(events, (now, next(order), None))
    rows: list[dict] = []
    while events and len(rows) < args.requests:
        at, _, turn = heapq.heappop(events)
        if turn is None:
            path = list(rng.choices(templates, weights)[0])
            one_shot = rng.random() < args.one_shot
            left = 0 if one_shot else min(60, int(rng.paretovariate(1.1) * 2))
            path += _fresh(ids, min(100, max(1, int(rng.lognormvariate(1.2, 1.0)))))
        else:
            path, left = turn
        rows.append(
            {
                "timestamp": int(at * 1000),
                "input_length": len(path) * BLOCK + rng.randint(1, BLOCK - 1),
                "output_length": int(rng.lognormvariate(5, 1)),
                "hash_ids": path + _fresh(ids, 1),
            }
        )
        if left and len(path) < 250:
            soon = rng.random() < 0.8
            gap = rng.lognormvariate(1.6, 0.8) if soon else rng.lognormvariate(4.8, 1.2)
            longer = path + _fresh(ids, 1 + int(rng.lognormvariate(0.3, 0.9)))
            heapq.heappush(events, (at + gap, next(order), (longer, left - 1)))
            if rng.random() < args.fork:
                fork = (path + _fresh(ids, 2), rng.randint(0, 5))
                heapq.heappush(events, (at + 0.7 * gap, next(order), fork))
    return sorted(rows, key=lambda row: row["timestamp"])


def _fresh(ids: Iterator[int], number: int) -> list[int]:
    return [next(ids) for _ in range(number)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--templates", type=int, default=40)
    parser.add_argument("--one-shot", type=float, default=0.5, help="share of sessions of one turn")
    parser.add_argument("--fork", type=float, default=0.05, help="chance that a turn forks")
    parser.add_argument("--rate", type=float, default=0.7, help="new sessions a second")
    words = parser.parse_args()
    for row in requests(random.Random(words.seed), words):
        sys.stdout.write(json.dumps(row, separators=(",", ":")) + "\n")
