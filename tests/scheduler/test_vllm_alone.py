"""What vLLM itself, 0.32 and 0.33, gets wrong with drafts: shown without any connector.

The random workloads of `test_fuzz.py` leave out just these cases (`enough`). A test that fails here
says that vLLM has mended one of them: then it belongs among the workloads again.
"""

from __future__ import annotations

from typing import Any

import pytest

from hybrid_pages.vllm.scheduler.engine_steps import Steps
from simulation.audit import WrongEntry
from simulation.engine import Engine, StartEngine
from simulation.runner import Mismatch
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from simulation.speculation import METHODS, Speculation
from test_boundaries import tokens
from test_speculation import ENGINES

pytestmark = pytest.mark.every_version

EXPORTING = ["mamba2", "gdn-exports", "two-recurrent-kinds"]


def alone(
    name: str, speculation: Speculation, version: int, asynchronous: bool, **more: Any
) -> Engine:
    return Engine(
        SHAPES[name],
        speculation=speculation,
        runner_version=version,
        async_scheduling=asynchronous,
        **more,
    )


@pytest.mark.parametrize(("version", "asynchronous"), ENGINES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", EXPORTING)
def test_with_one_draft_an_export_overwrites_the_state_of_a_step_of_two_blocks(
    name: str, method: str, version: int, asynchronous: bool
) -> None:
    """Kernels export a state from inside every step of a prompt, whether the scheduler has reserved
    a block or not, as the workers take a column without one for the null block. The only scratch
    block is in that column, though, of which the scheduler has just made the running state's block;
    rows of workers are only added to. The exported inputs of the convolutions replace the last
    ones."""
    one = Speculation(method, 1)
    with alone(name, one, version, asynchronous, batched_tokens=2 * N + 1) as engine:
        engine.add(tokens(6 * N + 3))
        with pytest.raises(Mismatch, match=r"the state after 64 tokens.*convolution's inputs"):
            engine.run()


@pytest.mark.parametrize(
    ("drafts", "blocks", "retention"),
    [
        pytest.param(1, 1, 0, id="steps of one block"),
        pytest.param(1, 4, 0, id="steps of four blocks"),
        pytest.param(2, 2, 0, id="two drafts"),
        pytest.param(1, 2, None, id="a block is reserved in every step"),
    ],
)
@pytest.mark.parametrize("name", EXPORTING)
def test_nothing_else_overwrites_it(
    name: str, drafts: int, blocks: int, retention: int | None
) -> None:
    for version, asynchronous in ENGINES:
        for method in METHODS:
            speculation = Speculation(method, drafts)
            with alone(
                name,
                speculation,
                version,
                asynchronous,
                batched_tokens=blocks * N + N // 2,
                retention=retention,
            ) as engine:
                engine.generate(tokens(9 * N + 3))
                engine.check_idle()


def overwritten_and_aborted(start: StartEngine, name: str, method: str, **options: Any) -> Engine:
    """An engine whose one request went away just behind a step that spoilt its state."""
    engine = start(
        SHAPES[name],
        speculation=Speculation(method, 1),
        batched_tokens=2 * N + 1,
        extra={"host_gb": 0.02, "checkpoint_mode": "all"},
        **options,
    )
    result = engine.add(tokens(6 * N + 3))
    while result.request.num_computed_tokens < 4 * N:
        engine.step()
    engine.abort(result)
    engine.run()
    return engine


@pytest.mark.parametrize(("version", "asynchronous"), ENGINES)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", EXPORTING)
def test_beside_this_connector_nothing_of_that_step_is_stored(
    name: str, method: str, version: int, asynchronous: bool, start: StartEngine
) -> None:
    options = {"runner_version": version, "async_scheduling": asynchronous}
    engine = overwritten_and_aborted(start, name, method, **options)
    engine.check_idle()  # every state is that of its boundary
    counters = engine.half.stats()["counters"]
    assert counters["stored_entries:checkpoints"] == 1  # behind the first step
    assert counters["skipped_entries:stale"] > 0


@pytest.mark.parametrize("name", EXPORTING)
def test_what_it_would_store_is_wrong(
    name: str, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Steps, "_is_overwritten", lambda *_: False)
    with pytest.raises(WrongEntry):
        overwritten_and_aborted(start, name, "mtp").check_idle()


@pytest.mark.parametrize(("drafts", "retention"), [(1, None), (2, 0)])
def test_where_vllm_is_right_everything_is_stored(
    drafts: int, retention: int | None, start: StartEngine
) -> None:
    speculation = Speculation("mtp", drafts)
    engine = start(
        SHAPES["mamba2"], speculation=speculation, batched_tokens=2 * N, retention=retention
    )
    engine.generate(tokens(6 * N + 3))
    engine.check_idle()
    assert "skipped_entries:stale" not in engine.half.stats()["counters"]


@pytest.mark.parametrize(("version", "asynchronous"), ENGINES)
def test_beside_a_draft_model_a_budget_of_one_block_never_runs_a_longer_prompt(
    version: int, asynchronous: bool
) -> None:
    """Each request leaves a token of the budget to the draft model, so that no step has room for a
    block; and as the budget seems to be large enough for one, no step may end inside it."""
    drafts = Speculation("draft_model", 7)
    with alone("gdn", drafts, version, asynchronous, batched_tokens=N) as engine:
        result = engine.add(tokens(N + 1))
        for _ in range(50):
            engine.step()
        assert not result.tokens and result.request.num_computed_tokens == 0
        engine.abort(result)
        engine.run()
    for budget in (N - 1, N + 1):
        with alone("gdn", drafts, version, asynchronous, batched_tokens=budget) as engine:
            engine.generate(tokens(N + 1))
