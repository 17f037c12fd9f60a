"""Speculative decoding in `align` mode: what is restored is right, and drafts are never stored."""

from __future__ import annotations

import pytest

from simulation.engine import StartEngine
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from simulation.speculation import METHODS, Speculation
from test_boundaries import tokens
from test_checkpoints import visit

ROOM = {"host_gb": 0.02}
SOME = ["gdn", "mamba2", "mamba2-window", "gdn-window", "kda-latent", "attention-only"]


@pytest.mark.parametrize("drafts", [1, 3, 7])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("runner", [1, 2])
@pytest.mark.parametrize("name", SOME)
def test_a_prompt_sent_again_is_restored(
    name: str, runner: int, asynchronous: bool, method: str, drafts: int, start: StartEngine
) -> None:
    engine = start(
        SHAPES[name],
        runner_version=runner,
        async_scheduling=asynchronous,
        speculation=Speculation(method, drafts),
        extra=ROOM,
    )
    for seed, length in enumerate((9 * N + 6, 9 * N, 5 * N + 1, 4 * N - 1)):
        prompt = tokens(length, seed)
        assert visit(engine, prompt) == 0
        print(length, visit(engine, prompt))
    engine.check_idle()
