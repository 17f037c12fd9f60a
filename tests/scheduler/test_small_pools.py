"""Pools of one to two times the blocks that vLLM needs to start: what finishes without the
connector finishes with it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from simulation.config import MAX_MODEL_LEN, SimulatedHybridForCausalLM, save_model
from simulation.copies import Script
from simulation.engine import Engine, Result, StartEngine
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES, Shape
from simulation.speculation import METHODS, Speculation
from simulation.workload import Mix, Workload
from test_boundaries import tokens
from test_counts import counters
from test_fuzz import FIRST, SCENARIOS, Scenario, enough, scenario
from test_identity import safetensors

WINDOWED = [shape for shape in SHAPES.values() if shape.has_windows]
LIMIT = 5000


def loaded_at_once(engine: Engine, lengths: list[int], outputs: int = 4) -> list[Result]:
    """Prompts that the host has and vLLM has not, asked for again at once, and one behind them."""
    prompts = [tokens(length, seed) for seed, length in enumerate(lengths)]
    for prompt in prompts:
        engine.generate(prompt, 2)
    engine.forget_local()
    longer = [prompt + tokens(40, 50 + seed) for seed, prompt in enumerate(prompts)]
    return [*(engine.add(each, outputs) for each in longer), engine.add(tokens(200, 99), 2)]


@pytest.mark.parametrize("shape", WINDOWED, ids=lambda shape: shape.name)
@pytest.mark.parametrize("pool", [1.0, 1.1, 1.2, 1.35, 1.5, 2.0])
@pytest.mark.parametrize("lengths", [(205, 205), (273, 273), (205, 64, 300), (300, 300, 300, 300)])
def test_loads_at_once_leave_each_other_room(
    start: StartEngine, shape: Shape, pool: float, lengths: tuple[int, ...]
) -> None:
    engine = start(shape, pool=pool, batched_tokens=64, requests=4, extra={"host_gb": 0.05})
    results = loaded_at_once(engine, list(lengths))
    engine.run(LIMIT)
    assert any(result.restored_tokens for result in results)
    engine.check_idle()


def test_a_load_waits_for_those_that_hold_its_blocks_and_is_not_lost(start: StartEngine) -> None:
    shape = SHAPES["window-attention"]
    engine = start(shape, pool=1.2, batched_tokens=64, requests=4, extra={"host_gb": 0.05})
    results = loaded_at_once(engine, [205, 205])
    engine.run(LIMIT)
    assert [result.restored_tokens // N for result in results] == [12, 12, 0]
    assert not any(key.startswith("skipped_loads") for key in counters(engine))
    engine.check_idle()


@pytest.mark.parametrize("shape", WINDOWED, ids=lambda shape: shape.name)
def test_a_load_that_is_left_out_counts_once(
    start: StartEngine, script: Script, shape: Shape
) -> None:
    rng = random.Random(5)
    script.delay = lambda kind: rng.randint(0, 12) if kind == "load" else 0
    extra = {"host_gb": 0.05, "verify_on_load": False}
    engine = start(shape, pool=1.2, batched_tokens=64, requests=8, extra=extra)
    *results, _ = loaded_at_once(engine, [rng.choice((205, 273, 300)) for _ in range(10)])
    engine.run(LIMIT)
    reasons = ("skipped_loads:no_room", "skipped_loads:never_admitted")
    counted = sum(counters(engine).get(reason, 0) for reason in reasons)
    assert counted == sum(not result.restored_tokens for result in results)
    engine.check_idle()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("steps", [6, 8, 11, 15])
@pytest.mark.parametrize("name", ["attention-only", "gdn", "mamba2-window", "window-attention"])
def test_a_load_behind_a_request_that_is_aborted_waits_for_its_blocks(
    start: StartEngine, name: str, steps: int, asynchronous: bool
) -> None:
    engine = start(
        SHAPES[name],
        pool=1.0,
        batched_tokens=64,
        requests=4,
        async_scheduling=asynchronous,
        extra={"host_gb": 0.05},
    )
    prompt = tokens(300, 1)
    engine.generate(prompt, 2)
    engine.forget_local()
    long, again = engine.add(tokens(290, 2), 50), engine.add(prompt, 2)
    for _ in range(steps):
        engine.step()
    engine.abort(long)  # under asynchronous scheduling a step of it is in flight
    engine.run(LIMIT)
    assert again.restored_tokens
    assert not any(key.startswith("skipped_loads") for key in counters(engine))
    engine.check_idle()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["compressed-ring", "gdn-compressed-ring", "gdn", "mamba2-window"])
def test_a_load_that_the_pool_never_has_room_for_is_computed(
    start: StartEngine, name: str, method: str, asynchronous: bool
) -> None:
    engine = start(
        SHAPES[name],
        blocks=1,
        batched_tokens=40,
        requests=2,
        speculation=Speculation(method, 3),
        async_scheduling=asynchronous,
        extra={"host_gb": 0.02},
    )
    prompt = tokens(MAX_MODEL_LEN - 9, 1)
    engine.generate(prompt, 8)
    engine.forget_local()
    again, short = engine.add(prompt, 8), engine.add(tokens(20, 2), 2)
    engine.run(LIMIT)
    refused = counters(engine).get("skipped_loads:never_admitted", 0)
    assert bool(again.restored_tokens) == (not refused)
    if name == "compressed-ring" and method == "mtp":
        assert refused == 1
    assert short.done
    engine.check_idle()
    # Not for good: with another prompt there is room.
    half = tokens(MAX_MODEL_LEN // 2, 3)
    engine.generate(half)
    engine.forget_local()
    assert engine.generate(half).restored_tokens > 0


def small_pool(seed: int, kind: str) -> Scenario:
    """Any workload in a pool of one to two times the least."""
    chosen = scenario(seed, f"small pool {kind}")
    rng = chosen.rng
    if kind == "drafts":
        drafts = rng.choice((1, 2, 3, 5))
        chosen.engine["speculation"] = Speculation(rng.choice(METHODS), drafts)
        chosen.engine["batched_tokens"] = max(chosen.engine["batched_tokens"], 2 * drafts + 2)
        chosen.engine = enough(chosen.engine, chosen.shape)
    if chosen.shape.exports:  # as `enough` says, and preemption amid an answer is frequent here
        chosen.engine["match_unit"] = None
    chosen.engine["pool"] = rng.choice((1.0, 1.1, 1.2, 1.3, 1.5, 1.75, 2.0))
    priorities = rng.choice((1, 3))
    chosen.engine["priorities"] = priorities > 1
    chosen.mix = Mix(
        arrival=rng.choice((0.3, 0.6)),
        abort=rng.choice((0.0, 0.05)),
        forget=rng.choice((0.3, 0.7)),
        priorities=priorities,
    )
    chosen.extra["host_gb"] = rng.choice((0.0003, 0.001, 0.004))
    return chosen


def play(engine: Engine, chosen: Scenario, seed: int) -> None:
    Workload(random.Random(seed), chosen.mix).run(engine, 40)


@pytest.mark.parametrize("kind", ["plain", "drafts", "disk"])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + SCENARIOS))
def test_whatever_finishes_without_the_connector_finishes_with_it(
    seed: int, kind: str, start: StartEngine, script: Script, tmp_path: Path
) -> None:
    chosen = small_pool(seed, kind)
    options: dict[str, Any] = dict(chosen.engine)
    if kind == "disk":
        save_model(tmp_path, SimulatedHybridForCausalLM.__name__)
        safetensors(tmp_path / "model.safetensors", bytes(1000))
        options["model"] = tmp_path
        chosen.extra |= {"disk_path": str(tmp_path / "disk"), "disk_gb": 0.05}
    engine = start(chosen.shape, extra=chosen.extra, **options)
    try:
        play(engine, chosen, seed)
    except AssertionError as error:
        if "still busy" not in str(error):
            raise
        with Engine(chosen.shape, **options) as plain:
            play(plain, chosen, seed)
        pytest.fail(f"finishes without the connector alone: {chosen}")
