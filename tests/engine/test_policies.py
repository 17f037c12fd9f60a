"""Policies live: one workload, a budget far too small for it, and what each of them finds.

A system prompt that all share, one-shot prompts, conversations that come back; vLLM's own cache
forgets everything before each request.
"""

import random

from harness import NOISE, Engine, Prompt, tokens
from test_budget import budget

REQUESTS, TALKS, TURNS = 60, 3, 6


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


def serve(engine: Engine) -> list:
    results = []
    for prompt in requests(engine.N):
        engine.reset_local()
        results.append(engine.run(prompt))
    return results


def test_reuse_finds_more_than_states_at_every_boundary_and_texts_are_equal(start):
    small = budget(20, 8)
    engine = start("qwen3.5", small)
    ours = serve(engine)
    cold = [engine.cold(prompt) for prompt in requests(engine.N)]
    others = {"policy": "page-lru", "checkpoint_mode": "all", "checkpoint_interval": engine.N}
    theirs = serve(start("qwen3.5", small | others))
    for one, result, other in zip(cold, ours, theirs, strict=True):
        assert one.distance(result) < NOISE
        assert one.distance(other) < NOISE
    found, found_by_others = (sum(each.host for each in results) for results in (ours, theirs))
    print(f"restored: reuse {found}, page-lru {found_by_others} of {sum(map(len, requests(64)))}")
    assert found > found_by_others > 0
