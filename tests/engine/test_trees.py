"""Random trees of prompts: forks, extensions, repeats, exact multiples, short ones.

`HYBRID_PAGES_TREES=50` runs more of them.
"""

import os
import random

import pytest

from harness import NOISE, Engine, tokens

SEEDS = range(int(os.environ.get("HYBRID_PAGES_TREES", "2")))
PROMPTS = 14


# Not LFM2: with vLLM alone its log-probabilities move by 0.5 and more when a prefill is split
# elsewhere or batched otherwise, which hides what is looked for here (see test_restore.py for it).
@pytest.fixture(scope="module", params=["qwen3.5", "qwen3-next", "gemma3"])
def engine(request, start):
    dense = {"prefix_cache_retention_interval": 32} if request.param == "gemma3" else {}
    return start(request.param, **dense)


def tree(seed: int, n: int):
    """Prompts that share prefixes in every way that matters."""
    rng = random.Random(seed)
    prompts = [tokens((seed, "root"), rng.randrange(2 * n, 6 * n))]
    while len(prompts) < PROMPTS:
        parent = rng.choice(prompts)
        new = tokens((seed, len(prompts)), rng.randrange(1, 3 * n))
        prompts.append(
            rng.choice(
                [
                    parent,
                    parent + new,
                    parent + new[: -(len(parent) + len(new)) % n],
                    parent[: rng.randrange(len(parent))] + new,
                    parent[: len(parent) // n * n] or new,
                    parent[: rng.randrange(1, len(parent) + 1)],
                    parent[: len(parent) // n * n] + new,
                    new[: n - 1],
                ]
            )
        )
    return prompts


@pytest.mark.parametrize("seed", SEEDS)
def test_one_by_one_every_prompt_is_what_a_local_hit_gives(engine: Engine, seed):
    prompts, rng = tree(seed, engine.N), random.Random(seed)
    engine.reset_all()
    results = []
    for prompt in prompts:
        if rng.random() < 0.7:
            engine.reset_local()
        results.append(engine.run(prompt, rng.randrange(1, 6)))
    assert sum(result.host for result in results) > 0

    engine.reset_all()
    for prompt, result in zip(prompts, results, strict=True):
        reference = engine.local_hit(prompt, result, len(result.tokens))
        assert result == reference, (len(prompt), result.local, result.host)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_at_once_every_prompt_is_right(engine: Engine, seed):
    prompts = tree(seed + 1000, engine.N)
    engine.reset_all()
    with engine.looking_away():
        alone = [engine.run(prompt) for prompt in prompts]
    engine.reset_all()
    engine.run_all(prompts)
    engine.reset_local()
    results = engine.run_all(prompts)
    assert sum(result.host for result in results) > 0
    far = max(a.distance(b) for a, b in zip(alone, results, strict=True))
    assert far < NOISE
    assert not any(key.startswith("failures") for key in engine.stats())
