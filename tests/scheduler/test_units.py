"""States that vLLM itself keeps inside blocks, with `--prefix-match-unit`: they are stored, too."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.engine import Engine, StartEngine
from simulation.shapes import SHAPES
from test_boundaries import tokens
from test_checkpoints import LARGE, counters
from test_tails import BACKGROUND, check

pytestmark = pytest.mark.every_version

UNIT = 4
WITH_UNITS = ["gdn", "two-recurrent-kinds", "mamba2", "gdn-exports"]  # vLLM: not with windows


def started(start: StartEngine, name: str, **options: Any) -> Engine:
    engine = start(SHAPES[name], match_unit=UNIT, blocks=200, **options)
    engine.watches_local_cache = True
    return engine


def kept(prompt: list[int]) -> int:
    """Where vLLM keeps the last state of a prompt."""
    return (len(prompt) - 1) // UNIT * UNIT


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("extra", [BACKGROUND, LARGE, BACKGROUND | {"checkpoint_mode": "align"}])
@pytest.mark.parametrize("name", WITH_UNITS)
def test_what_vllm_keeps_inside_a_block_is_stored(
    name: str,
    extra: dict[str, Any],
    asynchronous: bool,
    ready: StartEngine,
) -> None:
    engine = started(ready, name, extra=extra, async_scheduling=asynchronous, batched_tokens=200)
    n = engine.half.connection.grid.block_tokens
    for seed, length in enumerate((n - 1, 2 * n - 2, 3 * n + 3, 4 * n + 9)):
        prompt = tokens(length, seed)
        result = engine.generate(prompt, max_tokens=3)
        (ends,) = check(engine, result)
        assert kept(prompt) in ends or not kept(prompt) % n, (length, ends)
        if extra.get("checkpoint_mode") == "align":
            assert ends == [kept(prompt)] * (kept(prompt) % n > 0)
        engine.forget_local()
        again = engine.generate(prompt, max_tokens=3)
        assert again.restored_tokens == kept(prompt)
        assert again.tokens == result.tokens
    engine.check_idle()
    skipped = {key for key in counters(engine) if key.startswith("skipped")}
    assert skipped <= {"skipped_tails:hint"}  # of the first request
