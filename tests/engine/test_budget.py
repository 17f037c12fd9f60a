"""Budgets too small for what is asked: fewer hits, never wrong ones."""

import random

import pytest

import at_once
from harness import NOISE, Engine, tokens

GIB = 1 << 30
# A page of this model takes 64 KiB and a checkpoint 104 KiB.
PAGE, CHECKPOINT = 64 << 10, 104 << 10


def budget(pages: int, checkpoints: int) -> dict:
    return {"host_gb": (pages * PAGE + checkpoints * CHECKPOINT) / GIB}


@pytest.fixture(scope="module")
def engine(start):
    """Room for three pages and one checkpoint."""
    return start("qwen3.5", budget(3, 1))


def occupied(engine: Engine) -> float:
    stats = engine.stats()
    return sum(value for key, value in stats.items() if key.startswith("resident_bytes"))


def test_a_prompt_larger_than_the_budget_is_right_and_stays_within_it(engine: Engine):
    prompt = tokens("too large", 9 * engine.N + 5)
    engine.reset_all()
    cold = engine.run(prompt)
    assert occupied(engine) <= engine.half.connection.arena.nbytes
    engine.reset_local()
    again = engine.run(prompt)
    assert again.resumed == 0
    assert again == cold
    assert engine.stats()["skipped_entries:no_room"] > 0


def test_a_prompt_that_fits_is_restored_after_one_that_does_not(engine: Engine):
    large, small = tokens("large", 9 * engine.N + 5), tokens("small", engine.N + 5)
    assert engine.restored([large, small], small).host == engine.N


def test_the_prompt_used_last_stays(engine: Engine):
    engine.reset_all()
    prompts = [tokens(("one of many", i), engine.N + 3) for i in range(12)]
    for prompt in prompts:
        engine.run(prompt)
    engine.reset_local()
    assert engine.run(prompts[-1]).host == engine.N
    engine.reset_local()
    assert engine.run(prompts[0]).resumed == 0
    assert engine.stats()["evicted_entries:pages"] > 0


def test_eight_at_once_under_a_tiny_budget_are_right(engine: Engine):
    rng = random.Random(0)
    trunk = tokens("trunk", 2 * engine.N)
    prompts = [trunk[: rng.randrange(len(trunk))] + tokens(i, rng.randrange(80)) for i in range(8)]
    prompts = [prompt or (5,) for prompt in prompts]
    cold = [engine.cold(prompt) for prompt in prompts]
    engine.reset_all()
    for _ in range(4):
        engine.reset_local()
        results = engine.run_all(prompts)
        for alone, together in zip(cold, results, strict=True):
            assert alone.distance(together) < NOISE
        assert occupied(engine) <= engine.half.connection.arena.nbytes
        assert engine.stats()["leased_bytes"] == 0


def test_entries_under_a_load_are_not_overwritten(engine: Engine):
    """While a load is in flight other prompts want its slots."""
    from harness import patched

    prompt = tokens("held", engine.N + 5)
    engine.reset_all()
    cold = engine.run(prompt)
    engine.reset_local()
    poll = engine.worker._poll
    held = []

    def hold_loads():
        done = poll()
        held.extend(each for each in done if each.ticket in engine.worker._loads)
        return [each for each in done if each not in held]

    with patched(engine.worker, "_poll", hold_loads):
        name = engine.submit(prompt)
        engine.step()
        others = [engine.submit(tokens(("wants", i), 2 * engine.N + 5)) for i in range(4)]
        engine.steps_until(lambda: all(other in engine._done for other in others))
        lease_slots = engine.stats()["leased_bytes"]
    with patched(engine.worker, "_poll", lambda: [held.pop() for _ in list(held)] + poll()):
        result = engine.finish([name, *others])[0]
    assert lease_slots >= PAGE + CHECKPOINT
    assert result.host == engine.N
    assert result.distance(cold) < NOISE
    at_once.check_loaded_blocks(engine, prompt, result)


def test_a_budget_below_one_entry_of_each_kind_is_refused_at_start(start):
    with pytest.raises(Exception, match="host_gb: expected at least"):
        start("qwen3.5", budget(0, 1))
