"""Decode context parallelism: each rank keeps some of the tokens of a page, and whole states."""

from __future__ import annotations

import random
from typing import Any

import pytest

from simulation.engine import StartEngine
from simulation.runner import Mismatch
from simulation.shapes import BLOCK_TOKENS, SHAPES
from simulation.workload import Workload

N = 2 * BLOCK_TOKENS
"""Two ranks keep the tokens of a block together."""
PROMPT = Workload(random.Random(5)).fresh(5 * N + 1)
TWO = {"ranks": 2, "context": 2}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("run", [1, 4, BLOCK_TOKENS])
@pytest.mark.parametrize(
    "shape", ["gdn", "mamba2", "kda-exports", "attention-only", "pages-differ"]
)
def test_divided_pages_are_restored(
    shape: str, run: int, asynchronous: bool, start: StartEngine
) -> None:
    engine = start(SHAPES[shape], async_scheduling=asynchronous, run=run, **TWO)
    engine.generate(PROMPT)
    assert engine.half.connection.grid.block_tokens == N
    assert engine.reset_prefix_cache()
    assert engine.generate(PROMPT).restored_tokens == 5 * N
    engine.check_idle()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"run": 4, "blocks": 48},
        {"match_unit": 8, "retention": None},
        {"ranks": 4, "context": 2, "nodes": 2},
    ],
)
@pytest.mark.parametrize("shape", ["gdn-kernel-blocks", "mamba2", "attention-only"])
@pytest.mark.parametrize("seed", [1, 2])
def test_random_requests(
    shape: str, options: dict[str, Any], seed: int, start: StartEngine
) -> None:
    engine = start(SHAPES[shape], **TWO | options)
    engine.watches_local_cache = True
    Workload(random.Random(seed)).run(engine, 15)
    counters = engine.half.stats()["counters"]
    assert not any(name.startswith("failures") for name in counters)
    engine.check_idle()


def test_pages_divided_in_another_way_are_other_entries(start: StartEngine) -> None:
    ways = [{}, {"ranks": 2}, TWO, {**TWO, "run": 4}]
    found = {start(**way).half.connection.geometry.fingerprint for way in ways}
    assert len(found) == len(ways)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_tokens_of_another_rank_are_noticed(rank: int, start: StartEngine) -> None:
    engine = start(**TWO)
    engine.generate(PROMPT)
    planes = [runner.connector.worker._arena.path for runner in engine.runners]
    with open(planes[1 - rank], "rb") as other, open(planes[rank], "r+b") as plane:
        other.seek(4096)  # behind the header
        plane.seek(4096)
        plane.write(other.read())
    assert engine.reset_prefix_cache()
    with pytest.raises(Mismatch, match=f"rank {rank}, request r1, layer"):
        engine.generate(PROMPT)
