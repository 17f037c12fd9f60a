"""Where states are made: modes, forks that steer the engine, intervals, hints."""

from __future__ import annotations

import random
from typing import Any

import pytest

from simulation.engine import Engine, StartEngine
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from simulation.workload import Workload
from test_boundaries import tokens

LARGE = {"host_gb": 0.05}


def counters(engine: Engine) -> dict[str, float]:
    return engine.connector.scheduler.stats()["counters"]


def visit(engine: Engine, prompt: list[int], max_tokens: int = 2, **more: Any) -> int:
    """Tokens restored for a prompt after vLLM's own cache has forgotten everything."""
    assert engine.reset_prefix_cache()
    return engine.generate(prompt, max_tokens, **more).restored_tokens


def suffixed(shared: list[int], visitor: int) -> list[int]:
    """A shared prefix and a suffix of its own, in which the prompt's last boundary lies."""
    return shared + tokens(3 * N, 100 + visitor)


# forks: vllm-project/vllm#45238, a shared prefix whose state is never kept


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name", ["gdn", "gdn-window", "mamba2", "two-recurrent-kinds"])
def test_the_second_visitor_makes_the_state_that_the_third_one_gets(
    name: str, asynchronous: bool, start: StartEngine
) -> None:
    engine = start(SHAPES[name], async_scheduling=asynchronous, batched_tokens=400, extra=LARGE)
    shared = tokens(7 * N + 5)
    assert [visit(engine, suffixed(shared, i)) for i in range(4)] == [
        0,
        0,
        len(shared),
        len(shared),
    ]
    engine.check_idle()


def test_without_steering_nobody_gets_it(start: StartEngine) -> None:
    shared = tokens(7 * N + 5)
    missing = {}
    for mode in ("align", "adaptive"):
        extra = {"checkpoint_mode": mode, "policy": "junction-lru", **LARGE}
        engine = start(batched_tokens=400, extra=extra)
        hits = [visit(engine, suffixed(shared, i)) for i in range(6)]
        assert hits == ([0] * 6 if mode == "align" else [0, 0, *[len(shared)] * 4])
        missing[mode] = counters(engine)["missing_state_tokens"]
    assert missing == {"align": 5 * 7 * N, "adaptive": 7 * N}


@pytest.mark.usefixtures("seconds_apart")
def test_a_fork_is_known_from_keys_when_its_pages_were_evicted(start: StartEngine) -> None:
    engine = start(batched_tokens=400, extra={"host_gb": 0.0001})
    shared = tokens(4 * N + 5)

    def others(first: int) -> None:
        for seed in range(first, first + 6):
            visit(engine, tokens(9 * N, seed))

    assert visit(engine, suffixed(shared, 0)) == 0
    others(500)
    before = counters(engine)
    assert visit(engine, suffixed(shared, 1)) == 0
    after = counters(engine)
    steered = after["steered_steps"] - before.get("steered_steps", 0)
    assert steered == 2, "at the boundary and, behind it, where the prompts part"
    assert after.get("missing_state_tokens", 0) == before.get("missing_state_tokens", 0), "no pages"
    assert visit(engine, suffixed(shared, 2)) == len(shared)
    assert visit(engine, suffixed(shared[: 4 * N], 3)) == 4 * N
    engine.check_idle()


def test_a_fork_inside_an_answer_is_known(start: StartEngine) -> None:
    engine = start(extra=LARGE)
    prompt = tokens(2 * N + 3)
    first = engine.generate(prompt, max_tokens=3 * N)
    talk = prompt + first.tokens
    forked = talk[: 4 * N + 5]
    assert visit(engine, forked + tokens(2 * N, 1)) == len(prompt)
    assert visit(engine, forked + tokens(2 * N, 2)) == 4 * N


def test_visitors_that_come_together_are_steered_too(start: StartEngine) -> None:
    engine = start(batched_tokens=64, extra=LARGE)
    shared = tokens(7 * N + 5)
    for visitor in range(4):
        engine.add(suffixed(shared, visitor))
    engine.run()
    engine.check_idle()
    assert visit(engine, suffixed(shared, 9)) >= 7 * N


def test_a_preempted_visitor_still_makes_the_state(start: StartEngine) -> None:
    # vLLM does not preempt by reset while a step is in flight.
    engine = start(batched_tokens=N, extra=LARGE, async_scheduling=False)
    shared = tokens(7 * N + 5)
    visit(engine, suffixed(shared, 0))
    engine.add(suffixed(shared, 1))
    for _ in range(4):
        engine.step()
    assert engine.reset_prefix_cache(reset_running_requests=True)
    engine.run()
    engine.check_idle()
    assert visit(engine, suffixed(shared, 2)) == 7 * N


def sequence(seed: int, count: int = 40) -> list[list[int]]:
    """Forks at any token, extensions, repeats, exact multiples, around one system prompt."""
    rng = random.Random(seed)
    workload = Workload(rng, known=[tokens(6 * N + 5, seed)])
    return [workload.prompt() for _ in range(count)]


@pytest.mark.parametrize("seed", range(6))
def test_a_tree_restores_no_less_than_vllm_keeps_itself(seed: int, start: StartEngine) -> None:
    prompts = sequence(seed)
    with Engine(blocks=2048, batched_tokens=400) as alone:
        local = [alone.generate(prompt, 3).local_tokens for prompt in prompts]
    engine = start(blocks=2048, batched_tokens=400, extra=LARGE)
    restored = [visit(engine, prompt, 3) for prompt in prompts]
    assert sum(restored) >= sum(local) > 0
    engine.check_idle()


# modes, intervals, hints


MODES = {
    "none": [],
    "align": [9],
    "all": [2, 4, 6, 8, 9, 10, 11, 12],
    "adaptive": [9],
}


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_decides_which_ends_of_steps_are_kept(mode: str, start: StartEngine) -> None:
    extra = {"checkpoint_mode": mode, "policy": "junction-lru", **LARGE}
    engine = start(batched_tokens=2 * N, extra=extra)
    prompt = tokens(9 * N + 3)
    talk = prompt + engine.generate(prompt, max_tokens=3 * N).tokens
    assert engine.depths(talk) == MODES[mode]
    assert (engine.cache.stats()["pages"] > 0) == (mode != "none")
    ends = {"all": len(talk) - 1, "adaptive": len(talk) - 1}
    assert visit(engine, [*talk, 1]) == ends.get(mode, max([0, *MODES[mode]]) * N)
    engine.check_idle()


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_state_of_every_step_is_right(
    name: str, asynchronous: bool, start: StartEngine
) -> None:
    extra = {"checkpoint_mode": "all", "policy": "lru", **LARGE}
    engine = start(SHAPES[name], batched_tokens=40, extra=extra, async_scheduling=asynchronous)
    prompt = tokens(7 * N + 3)
    talk = prompt + engine.generate(prompt, max_tokens=2 * N).tokens
    n = engine.block_tokens
    for depth in engine.depths(talk):
        assert visit(engine, talk[: depth * n + 1]) == depth * n
    engine.check_idle()


def test_attention_alone_needs_no_mode(start: StartEngine) -> None:
    for mode in MODES:
        engine = start(SHAPES["attention-only"], extra={"checkpoint_mode": mode, **LARGE})
        visit(engine, tokens(5 * N + 1))
        assert visit(engine, tokens(5 * N + 1)) == 5 * N


@pytest.mark.parametrize("mode", ["align", "all", "adaptive"])
def test_an_interval_bounds_what_is_computed_again(mode: str, start: StartEngine) -> None:
    extra = {"checkpoint_mode": mode, "checkpoint_interval": 2 * N + 1, **LARGE}
    engine = start(batched_tokens=400, extra=extra)
    prompt = tokens(10 * N + 2)
    visit(engine, prompt, 1)
    assert engine.depths(prompt) == [3, 6, 9, 10]
    assert visit(engine, suffixed(prompt[: 8 * N + 4], 1)) == 6 * N
    engine.check_idle()


@pytest.mark.parametrize("mode", ["align", "adaptive"])
def test_a_hinted_fork_has_its_state_for_the_second_visitor(mode: str, start: StartEngine) -> None:
    engine = start(batched_tokens=400, extra={"checkpoint_mode": mode, **LARGE})
    shared = tokens(7 * N + 5)
    hints = {"checkpoint_at": [3 * N, len(shared), 2]}
    visit(engine, suffixed(shared, 0), 1, hints=hints)
    assert engine.depths(suffixed(shared, 0)) == [3, 7, 10]
    assert visit(engine, suffixed(shared, 1)) == (7 * N if mode == "align" else len(shared))
    assert counters(engine)["steered_steps"] >= 2


def test_mode_none_makes_no_state_for_hints_either(start: StartEngine) -> None:
    extra = {"checkpoint_mode": "none", "checkpoint_interval": N, **LARGE}
    engine = start(extra=extra)
    visit(engine, tokens(5 * N + 2), hints={"checkpoint_at": [N]})
    assert engine.depths(tokens(5 * N + 2)) == []


@pytest.mark.parametrize(
    "bad",
    [
        "1024",
        ["checkpoint_at"],
        {"checkpoint_at": 64},
        {"checkpoint_at": "64"},
        {"checkpoint_at": None},
        {"checkpoint_at": [64.0]},
        {"checkpoint_at": [True]},
        {"checkpoint_at": ["64"]},
        {"checkpoint_at": [0]},
        {"checkpoint_at": [-16]},
        {"checkpoint_at": [2**63]},
        {"checkpoint_at": [16, 5 * N + 3]},
        {"checkpoint_at": [16] * 65},
        {"checkpoints_at": [16]},
        {"checkpoint_at": [16], "more": 1},
    ],
)
def test_bad_hints_are_refused_for_their_request_only(bad: Any, start: StartEngine) -> None:
    engine = start(batched_tokens=400, extra=LARGE)
    prompt, other = tokens(5 * N + 2, 1), tokens(5 * N + 2, 2)
    engine.add(prompt, hints=bad)
    engine.add(other, hints={"checkpoint_at": [2 * N]})
    engine.run()
    engine.check_idle()
    assert counters(engine)["refused_hints"] == 1
    assert 2 in engine.depths(other) and 2 not in engine.depths(prompt)
    assert visit(engine, prompt) == 5 * N


def test_bad_hints_are_logged_once_and_counted(
    start: StartEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine = start()
    with caplog.at_level("WARNING", logger="vllm.hybrid_pages"):
        for seed in range(4):
            engine.generate(tokens(2 * N + 1, seed), hints={"checkpoint_at": "everywhere"})
    assert caplog.text.count("is ignored") == 1
    assert counters(engine)["refused_hints"] == 4


@pytest.mark.parametrize("params", [{}, {"hybrid_pages": None}, {"do_remote_decode": False}])
def test_what_is_meant_for_others_is_no_hint(params: dict[str, Any], start: StartEngine) -> None:
    engine = start(extra=LARGE)
    result = engine.add(tokens(3 * N))
    result.request.kv_transfer_params = params
    engine.run()
    assert "refused_hints" not in counters(engine)


def test_a_request_that_reads_no_cache_is_steered_too(start: StartEngine) -> None:
    engine = start(batched_tokens=200, extra=LARGE | {"checkpoint_interval": 2 * N})
    request = engine.add(tokens(9 * N + 5)).request
    request.skip_reading_prefix_cache = True
    engine.run()
    assert engine.depths(request.prompt_token_ids) == [2, 4, 6, 8, 9]
    engine.check_idle()
