"""What vLLM itself does with requests that resume inside a block: every text, every state, and
every block that its own prefix cache would serve to others."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from simulation.anywhere import PLANS, TRANSFER, Load, Plan
from simulation.engine import Engine
from simulation.function import Origin, Prefix, advance, expand
from simulation.local_cache import WrongCached
from simulation.runner import Mismatch
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES, Shape
from simulation.workload import Mix, Workload
from test_boundaries import tokens

pytestmark = pytest.mark.every_version

ROUNDS = int(os.environ.get("HYBRID_PAGES_FUZZ", "16"))
FIRST = int(os.environ.get("HYBRID_PAGES_FUZZ_SEED", "0"))
WHOLE = [name for name, shape in SHAPES.items() if "compressed" not in name]
"""Shapes that keep one state for each token."""


@pytest.fixture
def plan() -> Iterator[Plan]:
    PLANS.append(Plan())
    yield PLANS[-1]
    PLANS.clear()


def engine_of(shape: Shape | str, **options: Any) -> Engine:
    shape = SHAPES[shape] if isinstance(shape, str) else shape
    engine = Engine(shape, transfer=TRANSFER, **options)
    engine.watches_local_cache = True
    return engine


def anywhere(plan: Plan, rng: random.Random) -> None:
    """Most requests resume after any number of tokens, many at the last but one."""

    def offer(request: Any, local: int) -> int:
        most = request.num_tokens - 1
        if local >= most or rng.random() < 0.2:
            return 0
        return rng.choice((most, rng.randint(local + 1, most), rng.randint(local + 1, most)))

    plan.offer, plan.delay = offer, lambda: rng.choice((0, 0, 1, 4))


def any_engine(rng: random.Random, name: str) -> dict[str, Any]:
    shape = SHAPES[name]
    return {
        "async_scheduling": rng.random() < 0.7,
        "runner_version": rng.choice((1, 2)),
        "blocks": rng.choice((40, 48, 64, 96)),
        "batched_tokens": rng.choice((5, 12, 24, 40, 64, 200)),
        "requests": rng.choice((2, 4, 8)),
        "match_unit": None if shape.exports else rng.choice((None, None, 4)),
        "retention": rng.choice((0, 0, None, 96)) if shape.thins_out else 0,
    }


class Stop(int):
    """A number of tokens that vLLM's scheduler does not round to a block."""

    def __sub__(self, start: int) -> int:
        return _Distance(int(self) - start)


class _Distance(int):
    def __floordiv__(self, size: int) -> int:
        return _Blocks(self)


class _Blocks(int):
    def __mul__(self, size: int) -> int:
        return int(self)


def stopping(plan: Plan, choose: Any) -> None:
    """Requests end a step of their prompt where `choose` says."""
    offer = plan.offer

    def asked(request: Any, local: int) -> int:
        offered = offer(request, local)
        request.shared_prefix_boundary = Stop(choose(request))
        return offered

    plan.offer = asked


def step_ends(engine: Engine) -> dict[str, list[int]]:
    """By request, after how many tokens its steps end."""
    ends: dict[str, list[int]] = {}
    schedule = engine.scheduler.schedule

    def noted(*args: Any) -> Any:
        output = schedule(*args)
        for name in output.num_scheduled_tokens:
            computed = engine.scheduler.requests[name].num_computed_tokens
            ends.setdefault(name, []).append(computed)
        return output

    engine.scheduler.schedule = noted
    return ends


@pytest.mark.parametrize("seed", range(FIRST, FIRST + max(1, ROUNDS // 4)))
def test_any_workload_resumes_and_stops_anywhere(seed: int, plan: Plan) -> None:
    rng = random.Random(f"anywhere {seed}")
    name = rng.choice(WHOLE)
    anywhere(plan, rng)
    if rng.random() < 0.5:
        stopping(plan, lambda request: rng.randint(1, request.num_tokens))
    mix = Mix(
        arrival=rng.choice((0.1, 0.5)),
        abort=rng.choice((0.0, 0.1)),
        forget=rng.choice((0.0, 0.0, 0.1, 0.5)),
        salts=rng.choice(((None,), (None, "a"))),
        images=rng.choice((0.0, 0.3)),
    )
    with engine_of(name, **any_engine(rng, name)) as engine:
        Workload(rng, mix).run(engine, 40)
        assert any(load.end % engine.block_tokens for load in plan.loads)


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("budget", [5, 40, 200])
@pytest.mark.parametrize("name", ["gdn", "gdn-exports", "two-recurrent-kinds", "mamba2-window"])
def test_a_step_of_a_prompt_ends_at_any_token(
    name: str, budget: int, asynchronous: bool, plan: Plan
) -> None:
    length, rng = 3 * N + 7, random.Random(f"{name} {budget} {asynchronous}")
    with engine_of(name, batched_tokens=budget, async_scheduling=asynchronous) as engine:
        ends = step_ends(engine)
        for stop in rng.sample(range(1, length), 8):
            engine.forget_local()
            stopping(plan, lambda request, stop=stop: stop)
            result = engine.generate(tokens(length, stop), 3)
            assert stop in ends[result.request.request_id]
        engine.check_idle()


# vLLM's own fault


def resumed_at(name: str, plan: Plan, start: int, stop: int, **options: Any) -> None:
    """A prompt of three blocks and more, resumed inside its second one."""

    def offer(request: Any, local: int) -> int:
        request.shared_prefix_boundary = stop
        return start

    plan.offer = offer
    with engine_of(name, match_unit=4, **options) as engine:
        engine.generate(tokens(3 * N + 6))
        engine.check_idle()


EXPORTING = ["mamba2", "gdn-exports"]


@pytest.mark.parametrize(("retention", "stop"), [(None, 0), (None, 2 * N), (0, 2 * N)])
@pytest.mark.parametrize("name", EXPORTING)
def test_an_export_past_the_block_of_its_start_leaves_that_start_cached_as_the_blocks_end(
    name: str, retention: int | None, stop: int, plan: Plan
) -> None:
    """A step that starts inside a block stops at its end, but not if kernels export a state from
    inside it, which they do if it starts at a multiple of the hashes' tokens. A stop that is asked
    for at the block's end is rounded to the start, and counts as a state to keep."""
    with pytest.raises(WrongCached, match=f"of {2 * N} tokens of r0, .* the state after {N + 4}"):
        resumed_at(name, plan, N + 4, stop, retention=retention)


@pytest.mark.parametrize("retention", [None, 0])
@pytest.mark.parametrize("name", EXPORTING)
def test_an_exact_stop_at_that_blocks_end_keeps_it_right(
    name: str, retention: int | None, plan: Plan
) -> None:
    resumed_at(name, plan, N + 4, Stop(2 * N), retention=retention)
    resumed_at(name, plan, N + 3, 2 * N, retention=retention)  # no start of a hash


# what the harness itself finds


def other_digest(load: Load, count: int) -> int:
    """What another prompt of as many tokens has there."""
    return advance(Prefix(Origin("another"), load.tokens).after(count), 0)


def spoilt(fault: str, load: Load, column: int, layer: Any, recurrent: bool) -> Any:
    """Wrong bytes for what lies at the end of a load, as a fault would leave them."""
    size, start = layer.token_bytes, column * N
    prefix = Prefix(Origin((None, None, (0, 0))), load.tokens)
    if recurrent:
        if fault == "page":
            return None
        at = {"earlier": load.end - 1, "later": load.end + 1}.get(fault)
        digest = other_digest(load, load.end) if at is None else prefix.after(at)
        data = expand([digest], layer.key, size)[0]
        return np.zeros_like(data) if fault == "zeroed" else data
    if fault != "page" or load.end > start + N:
        return None
    digests = [other_digest(load, count) for count in range(start + 1, load.end + 1)]
    return expand(digests, layer.key, size)


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("fault", ["earlier", "later", "zeroed", "other", "page"])
def test_planted_faults_are_found_at_every_token(
    fault: str, asynchronous: bool, plan: Plan
) -> None:
    for end in (2, N - 1, N, N + 1, 2 * N + 2):
        plan.offer = lambda request, local, end=end: end
        plan.wrong = lambda *load: spoilt(fault, *load)
        with engine_of("gdn-window", async_scheduling=asynchronous) as engine:
            engine.add(tokens(2 * N + 9))
            with pytest.raises(Mismatch):
                engine.run()


def test_a_state_cached_under_another_hash_is_found(plan: Plan) -> None:
    with engine_of("gdn") as engine:
        text = tokens(4 * N + 3)
        engine.generate(text)
        engine.check_idle()
        memory = engine.runners[0].memory
        group = memory.recurrent.index(True)
        (block,) = engine.local_cache.blocks_of(group)
        prefix = Prefix(next(iter(engine.results.values())).origin, text)
        for layer in memory.groups[group]:
            digest = prefix.after(4 * N - 1)
            layer.write_state(block, expand([digest], layer.key, layer.token_bytes)[0])
        with pytest.raises(WrongCached, match=f"but holds the state after {4 * N - 1}"):
            engine.check_idle()
