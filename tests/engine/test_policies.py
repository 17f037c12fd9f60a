"""Policies live: one workload, a budget far too small for it, and what each of them finds.

A system prompt that all share, one-shot prompts, conversations that come back; vLLM's own cache
forgets everything before each request.
"""

import random
from collections.abc import Sequence

import pytest

from harness import Engine, Prompt, Result, patched, tokens
from test_budget import budget

REQUESTS, TALKS, TURNS = 60, 3, 6
N = 64  # tokens per block of this model


def requests(n: int) -> list[Prompt]:
    """Prompts in order; answers are made up, so that every engine gets the same."""
    rng = random.Random(3)
    system = tokens("system", 4 * n + 5)
    talks: list[tuple[int, Prompt]] = []
    prompts = []
    for i in range(REQUESTS):
        talks += [(0, system)] * (TALKS - len(talks))
        if rng.random() < 0.5:
            prompts.append(system + tokens(("one shot", i), rng.randint(3, 6) * n))
            continue
        turn, talk = talks.pop(rng.randrange(TALKS))
        prompts.append(talk + tokens(("turn", i), n + 7))
        if turn + 1 < TURNS:
            talks.append((turn + 1, prompts[-1] + tokens(("answer", i), 4)))
    return prompts


def serve(engine: Engine, prompts: Sequence[Prompt]) -> list[Result]:
    results = []
    for prompt in prompts:
        engine.reset_local()
        results.append(engine.run(prompt))
    return results


def one_block_steps(engine: Engine):
    """vLLM computes the same bytes then, wherever a prompt resumes: results compare bit for bit."""
    return patched(engine.scheduler, "max_num_scheduled_tokens", engine.N)


def check_results(engine: Engine) -> None:
    """Restored prompts give the same text as cold ones."""
    prompts = requests(engine.N)[: REQUESTS // 3]
    engine.reset_all()
    with one_block_steps(engine), engine.counting() as counted:
        results = serve(engine, prompts)
        assert results == [engine.cold(prompt) for prompt in prompts]
    assert sum(result.host > 0 for result in results) > len(prompts) // 2
    assert counted["evicted_entries:pages"] > 0


def check_that_wrong_entries_show(engine: Engine) -> None:
    """The comparison above can fail: whichever page or state is zeroed, the result differs."""
    prompt, arena = requests(engine.N)[0], engine.half.connection.arena
    engine.reset_all()
    with one_block_steps(engine):
        cold = engine.run(prompt)
        entries = engine.slots_of_last("attention") + engine.slots_of_last("recurrent")
        for slots in entries:
            whole = [arena.read(slot) for slot in slots]
            for slot in slots:
                arena.write(slot, bytes(arena.slot_bytes))
            engine.reset_local()
            assert engine.run(prompt) != cold
            for slot, data in zip(slots, whole, strict=True):
                arena.write(slot, data)
        engine.reset_local()
        assert engine.run(prompt) == cold
    assert len(entries) > 5


@pytest.mark.long
def test_reuse_finds_more_than_states_at_every_boundary_and_both_give_what_is_computed_cold(start):
    small = budget(20, 8)
    others = {"policy": "page-lru", "checkpoint_mode": "all", "checkpoint_interval": N}
    found = []
    for settings in (small, small | others):
        engine = start("qwen3.5", settings)
        assert engine.N == N
        found.append(sum(result.host for result in serve(engine, requests(N))))
        check_results(engine)
        check_that_wrong_entries_show(engine)
    print(f"restored: reuse {found[0]}, page-lru {found[1]} of {sum(map(len, requests(N)))}")
    assert found[0] > found[1] > 0
