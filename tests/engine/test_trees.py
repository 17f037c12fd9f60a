"""Random trees of prompts: forks, extensions, repeats, exact multiples, short ones.

`HYBRID_PAGES_TREES=50` runs more of them.
"""

import os
import random
from collections.abc import Sequence

import pytest

import at_once
from harness import NOISE, Engine, Prompt, Result, patched, tokens

SEEDS = range(int(os.environ.get("HYBRID_PAGES_TREES", "1")))
PROMPTS = 14


@pytest.fixture(
    scope="module",
    params=["qwen3.5", pytest.param("qwen3-next", marks=pytest.mark.long), "lfm2", "gemma3"],
)
def engine(request, start):
    dense = {"prefix_cache_retention_interval": 32} if request.param == "gemma3" else {}
    return start(request.param, **dense)


def tree(seed: int, n: int):
    """Prompts that share prefixes in every way that matters; the first one is also the last."""
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
    return [*prompts, prompts[0]]


def one_by_one(engine: Engine, prompts: Sequence[Prompt], seed: int, forgets: float = 1):
    """Results; before each, vLLM's own cache is emptied with the probability `forgets`."""
    rng = random.Random(seed)
    engine.reset_all()
    results = []
    for prompt in prompts:
        if rng.random() < forgets:
            engine.reset_local()
        results.append(engine.run(prompt, rng.randrange(1, 6)))
    return results


def references(engine: Engine, prompts: Sequence[Prompt], results: Sequence[Result]):
    """Results of vLLM's own hits at the same boundaries; empties the cache."""
    engine.reset_all()
    return [
        engine.local_hit(prompt, result, len(result.tokens))
        for prompt, result in zip(prompts, results, strict=True)
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_one_by_one_every_prompt_is_what_a_local_hit_gives(engine: Engine, seed):
    prompts = tree(seed, engine.N)
    results = one_by_one(engine, prompts, seed)
    assert results == references(engine, prompts, results)
    assert results[-1].host > 0


# In steps of one block vLLM computes the same bytes wherever a prompt resumes. In longer ones a
# block that was computed twice would have two roundings, one in vLLM's cache and one in ours.
@pytest.mark.parametrize("seed", SEEDS)
def test_local_hits_and_restored_tails_in_any_mixture_give_what_is_computed_cold(
    engine: Engine, seed
):
    prompts = tree(seed + 500, engine.N)
    with patched(engine.scheduler, "max_num_scheduled_tokens", engine.N):
        results = one_by_one(engine, prompts, seed, forgets=0.35)
        assert results == [
            engine.cold(prompt, len(result.tokens))
            for prompt, result in zip(prompts, results, strict=True)
        ]
    assert any(result.local for result in results)
    assert any(result.host for result in results)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_at_once_every_prompt_is_what_local_hits_in_the_same_batches_give(engine: Engine, seed):
    prompts = tree(seed + 1000, engine.N)
    alone = one_by_one(engine, prompts, seed)
    engine.reset_local()
    batch = at_once.restored(engine, prompts)
    assert sum(batch.loaded) > 1
    assert references(engine, prompts, alone) == alone
    hits = at_once.local_hits(engine, prompts, batch).results
    for prompt, found, hit in zip(prompts, batch.results, hits, strict=True):
        # Blocks that the batch itself computed, and others hit, are rounded as the batch rounds.
        assert found.distance(hit) <= (NOISE if found.local else 0), len(prompt)
        assert found.local or found == hit
    assert sum(not found.local for found in batch.results) > PROMPTS / 2
    assert not any(key.startswith("failures") for key in engine.stats())


def test_each_wrong_entry_among_all_that_are_loaded_at_once_shows(engine: Engine):
    """Zeroed, and the bytes of another: a page, a window page, a state."""
    prompts, arena = tree(1000, engine.N), engine.half.connection.arena
    one_by_one(engine, prompts, 0)
    engine.reset_local()
    with at_once.loads(engine) as loaded:
        batch = at_once.restored(engine, prompts)
    whole = {slot: arena.read(slot) for _, slots in loaded for slot in slots}
    rng = random.Random(0)
    for item in {item for item, _ in loaded}:
        entries = sorted({slots for each, slots in loaded if each == item})
        assert len(entries) > 1
        for one, other in (rng.sample(entries, 2) for _ in range(2)):
            for wrong in [bytes(arena.slot_bytes)] * len(one), [whole[slot] for slot in other]:
                for slot, data in zip(one, wrong, strict=True):
                    arena.write(slot, data)
                engine.reset_local()
                spoilt = at_once.restored(engine, prompts)
                assert spoilt.steps == batch.steps
                assert spoilt.results != batch.results
                for slot in one:
                    arena.write(slot, whole[slot])
    engine.reset_local()
    assert at_once.restored(engine, prompts).results == batch.results
