"""Every state that the engine makes is found, wherever it is made, and none that is not proven."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from hybrid_pages.vllm import versions
from simulation.engine import Engine, StartEngine
from simulation.function import Image
from simulation.local_cache import WrongCached
from simulation.runner import Mismatch, Runner
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from test_boundaries import tokens
from test_checkpoints import visit

MODES = ("align", "all", "adaptive")
LENGTHS = (9 * N + 6, 9 * N, 5 * N + 1, 4 * N - 1)
ROOM = {"host_gb": 0.02}
# Hybrid, exporting, with windows, of two kinds, without states at all.
SOME = ["gdn", "mamba2", "mamba2-window", "two-exporting-kinds", "attention-only"]


def every_full_block_comes_back(engine: Engine) -> None:
    """When a prompt is sent again, all its full blocks before the last token are restored, and what
    vLLM keeps behind them."""
    n, grid = engine.block_tokens, engine.half.connection.grid
    has_tails = engine.shape.has_tails and not grid.no_tails
    for seed, length in enumerate(LENGTHS):
        prompt = tokens(length, seed)
        assert visit(engine, prompt) == 0
        whole = (length - 1) // n * n
        kept = grid.kept_inside(length) if has_tails else 0
        assert visit(engine, prompt) in (whole, max(whole, kept)), length
    engine.check_idle()


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("runner", [1, 2])
def test_the_second_send_restores_every_full_block_before_the_last_token(
    name: str, asynchronous: bool, runner: int, start: StartEngine
) -> None:
    for mode in MODES:
        engine = start(
            SHAPES[name],
            async_scheduling=asynchronous,
            runner_version=runner,
            extra=ROOM | {"checkpoint_mode": mode},
        )
        every_full_block_comes_back(engine)


@pytest.mark.parametrize("budget", [12, 40, 200])
@pytest.mark.parametrize("match_unit", [None, 4])
@pytest.mark.parametrize("name", SOME)
def test_so_does_it_for_any_step_budget_and_finer_hashes(
    name: str, match_unit: int | None, budget: int, start: StartEngine
) -> None:
    for mode in MODES:
        engine = start(
            SHAPES[name],
            batched_tokens=budget,
            match_unit=match_unit,
            extra=ROOM | {"checkpoint_mode": mode},
        )
        every_full_block_comes_back(engine)


def talk(engine: Engine, turns: int, forget: bool) -> list[int]:
    """A conversation; the tokens that each turn did not compute."""
    said, found = tokens(3 * N + 5), []
    for turn in range(turns):
        if forget:
            assert engine.reset_prefix_cache()
        result = engine.generate(said, 2 * N + 3)
        found.append(result.local_tokens + result.restored_tokens)
        said = said + result.tokens + tokens(7, turn)
    return found


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("retention", [0, None])
def test_a_next_turn_restores_at_least_what_vllm_would_have_kept(
    name: str, asynchronous: bool, retention: int | None, start: StartEngine
) -> None:
    options: dict[str, Any] = {"async_scheduling": asynchronous, "retention": retention}
    with Engine(SHAPES[name], **options) as alone:
        turns = 3 if alone.block_tokens < 3 * N else 4
        kept = talk(alone, turns, forget=False)
    assert kept[0] == 0 < kept[-1]
    for mode in MODES:
        engine = start(SHAPES[name], extra=ROOM | {"checkpoint_mode": mode}, **options)
        restored = talk(engine, turns, forget=True)
        assert all(ours >= theirs for ours, theirs in zip(restored, kept, strict=True)), (
            mode,
            restored,
            kept,
        )
        engine.check_idle()


@pytest.mark.parametrize("runner", [1, 2])
@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("name", ["gdn", "mamba2", "two-recurrent-kinds", "attention-only"])
def test_mode_all_keeps_every_boundary_of_an_answer(
    name: str, asynchronous: bool, runner: int, start: StartEngine
) -> None:
    engine = start(
        SHAPES[name],
        async_scheduling=asynchronous,
        runner_version=runner,
        extra=ROOM | {"checkpoint_mode": "all"},
    )
    prompt = tokens(2 * N + 3)
    # The last computed token ends a block: only the end of the request makes its key known.
    result = engine.generate(prompt, 3 * N - 2)
    assert (len(prompt) + 3 * N - 2 - 1) % N == 0
    told = engine.depths(prompt + result.tokens)
    assert told == ([1, 2, 3, 4, 5] if name == "attention-only" else [2, 3, 4, 5])
    engine.check_idle()


def test_a_state_at_the_end_of_an_aborted_answer_is_right(start: StartEngine) -> None:
    engine = start(extra=ROOM | {"checkpoint_mode": "all"})
    for steps in range(2 * N, 3 * N):
        request = engine.add(tokens(N + 3, steps), max_tokens=50)
        for _ in range(steps):
            engine.step()
        engine.abort(request)
        engine.run()
    engine.check_idle()
    assert engine.cache.stats()["checkpoints"] > N


# what vLLM offers and what is proven


def offers_of(engine: Engine, change: Any = lambda offer: offer) -> list[tuple[int, int, int]]:
    """Notes every (group, block, tokens) that vLLM hands over, and may change it on its way."""
    manager, noted = engine.scheduler.kv_cache_manager, []
    take = manager.take_boundary_state_offloads

    def watched() -> dict[str, list[tuple[int, int, int]]]:
        offers = {name: [change(each) for each in given] for name, given in take().items()}
        noted.extend(itertools.chain.from_iterable(offers.values()))
        return offers

    manager.take_boundary_state_offloads = watched
    return noted


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["gdn", "mamba2"])
def test_an_offered_block_that_lost_its_hash_is_refused(
    name: str, mode: str, start: StartEngine
) -> None:
    """vLLM may offer a block that the same step has freed and given to another request."""
    engine = start(SHAPES[name], retention=None, extra=ROOM | {"checkpoint_mode": mode})
    blocks = engine.plan.num_blocks
    offers = offers_of(engine, lambda offer: (offer[0], blocks - 1 - offer[1], offer[2]))
    for seed in range(6):
        engine.generate(tokens(3 * N + seed, seed), 2 * N)
    assert offers
    engine.check_idle()


def test_a_hash_alone_proves_nothing(start: StartEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler that splits at multiples of another size hashes states that are not there."""
    engine = start(retention=None, batched_tokens=5 * N, extra=ROOM | {"checkpoint_mode": "all"})
    monkeypatch.setattr(versions, "restore_block_size", lambda *_: None)
    engine.config.cache_config.block_size = 24
    offers = offers_of(engine)
    prompt = tokens(9 * N + 5)
    engine.generate(prompt, 1)
    assert 5 * N in {count for _, _, count in offers}, "its block holds the state after 72 tokens"
    assert engine.depths(prompt) == [9]
    with pytest.raises(WrongCached, match=r"that of 80 tokens .* holds the state after 72"):
        engine.local_cache.check(anew=True)
    engine.forget_local()  # vLLM's own cache is as wrong as its hashes
    engine.check_idle()


def test_a_block_size_that_vllm_has_lost_is_put_back(start: StartEngine) -> None:
    """As the engine core's handshake does on a CPU: half a block, or blocks of another model."""
    for lost in (N // 2, 12, 128):
        engine = start(batched_tokens=5 * N)
        engine.config.cache_config.block_size = lost
        every_full_block_comes_back(engine)
        assert engine.config.cache_config.block_size == N


# images


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_same_tokens_with_another_image_restore_nothing(
    name: str, asynchronous: bool, start: StartEngine
) -> None:
    engine = start(SHAPES[name], async_scheduling=asynchronous, extra=ROOM)
    prompt = tokens(6 * N + 5)
    first, second = Image("cat", 3, 2 * N), Image("dog", 3, 2 * N)
    assert visit(engine, prompt, images=[first]) == 0
    assert visit(engine, prompt, images=[first]) == 6 * N
    assert visit(engine, prompt, images=[second]) == 0
    assert visit(engine, prompt) == 0
    assert visit(engine, prompt, images=[second]) == 6 * N
    engine.check_idle()


def test_what_lies_before_another_image_is_shared(start: StartEngine) -> None:
    engine = start(extra=ROOM | {"checkpoint_mode": "all"}, batched_tokens=N)
    prompt = tokens(6 * N + 5)
    assert visit(engine, prompt, images=[Image("cat", 3 * N, N)]) == 0
    assert visit(engine, prompt, images=[Image("dog", 3 * N, N)]) == 3 * N
    engine.check_idle()


def test_the_simulation_sees_an_image_mixed_up(start: StartEngine) -> None:
    """A comparison that could not fail would prove nothing."""
    engine = start(SHAPES["gdn"], extra=ROOM)
    prompt = tokens(6 * N + 5)
    visit(engine, prompt, images=[Image("cat", 3, N)])
    assert engine.reset_prefix_cache()
    result = engine.add(prompt, 2, images=[Image("dog", 3, N)])
    first = next(iter(engine.results.values())).request
    result.request.block_hashes = list(first.block_hashes[: len(result.request.block_hashes)])
    with pytest.raises(AssertionError, match="layer"):
        engine.run()


def test_the_simulation_sees_a_state_that_was_not_exported(
    start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "_export", lambda *step: None)
    engine = start(SHAPES["mamba2"], extra=ROOM)
    prompt = tokens(6 * N + 5)
    engine.generate(prompt)
    engine.add(prompt)  # a local hit
    with pytest.raises(Mismatch, match="the state after 96 tokens"):
        engine.run()


# the start line


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gdn", "states: at step ends, ranks"),
        ("mamba2", "states: at step ends and exported from inside a prefill's last step, ranks"),
        ("two-recurrent-kinds", "states: at step ends, ranks"),
        ("attention-only", "1 attention, ranks"),
        ("gemma4-31b", "1 attention + 3 window (engine blocks of 16 and 32 tokens), ranks"),
    ],
)
def test_the_start_line_says_how_states_are_made(name: str, said: str, start: StartEngine) -> None:
    assert said in start(SHAPES[name]).connector.scheduler.connection.describe()
