"""A failure anywhere on a transfer's path costs a recompute and nothing else."""

from contextlib import contextmanager

import pytest

from faults import LOAD, LOOKUP, STORE, Breaking, bad, fail
from harness import NOISE, Engine, patched, tokens


@pytest.fixture(scope="module")
def engine(start):
    return start("qwen3.5")


@pytest.fixture(scope="module")
def prompt(engine: Engine):
    return tokens("fails", 4 * engine.N + 9)


@pytest.fixture
def stored(engine: Engine, prompt):
    """The prompt's text, computed; it is stored, and not in vLLM's own cache."""
    engine.reset_all()
    result = engine.run(prompt)
    engine.reset_local()
    return result


def still_works(engine: Engine):
    """The engine is alive, leaks nothing, and stores and restores as ever."""
    assert not engine.half.storing
    assert engine.stats()["leased_bytes"] == 0
    prompt = tokens("alive", 3 * engine.N + 2)
    assert engine.restored([prompt], prompt).host == 3 * engine.N
    engine.reset_local()
    # Every block but vLLM's null block is free again.
    assert engine.pool.get_num_free_blocks() == engine.pool.num_gpu_blocks - 1


@pytest.mark.parametrize("fault", LOOKUP)
def test_a_lookup_that_fails_is_a_miss(engine: Engine, prompt, stored, fault):
    inject, reason = LOOKUP[fault]
    with engine.counting() as counted, inject(engine):
        result = engine.run(prompt)
    assert result.resumed == 0
    assert result == stored
    assert counted[f"failures:{reason}"] >= 1
    still_works(engine)


@pytest.mark.parametrize("fault", STORE)
def test_a_store_that_fails_costs_nothing_but_the_store(engine: Engine, prompt, fault):
    inject, reason = STORE[fault]
    engine.reset_all()
    cold = engine.cold(prompt)
    engine.reset_all()
    with engine.counting() as counted, inject(engine):
        result = engine.run(prompt)
    assert result == cold
    assert counted[f"failures:{reason}"] >= 1
    engine.reset_local()
    again = engine.run(prompt)
    assert again.host == (4 * engine.N if reason == "worker_metadata" else 0)
    assert again == cold
    still_works(engine)


@pytest.mark.parametrize("fault", LOAD)
def test_a_load_that_fails_is_recomputed(engine: Engine, prompt, stored, fault):
    inject, reason = LOAD[fault]
    with engine.counting() as counted, inject(engine):
        result = engine.run(prompt)
    assert result.host == 4 * engine.N  # found and tried
    assert result == stored
    assert counted[f"failures:{reason}"] == 1
    still_works(engine)


def test_a_load_that_cannot_be_planned_is_recomputed(engine: Engine, prompt, stored):
    with engine.counting() as counted, patched(engine.half.connection.loads, "_entries", fail):
        result = engine.run(prompt)
    assert result == stored
    assert counted["failures:load_plan"] == 1
    still_works(engine)


def test_entries_of_a_failed_load_are_dropped(engine: Engine, prompt, stored):
    assert engine.stats()["resident_entries:pages"] == 4
    inject, _ = LOAD["the copy fails"]
    with inject(engine):
        assert engine.run(prompt) == stored
    # Nothing can be stored anew while copies fail, so what is gone was dropped.
    assert engine.stats()["resident_entries:pages"] == 0
    engine.reset_local()
    assert engine.run(prompt).resumed == 0
    still_works(engine)


def test_a_failed_load_whose_entries_cannot_be_dropped_is_recomputed(
    engine: Engine, prompt, stored
):
    inject, _ = LOAD["the copy fails"]
    loads = engine.half.connection.loads
    with (
        engine.counting() as counted,
        inject(engine),
        patched(loads, "cache", Breaking(loads.cache, "invalidate")),
    ):
        assert engine.run(prompt) == stored
    assert counted["failures:invalidate"] == 1
    still_works(engine)


def test_one_failed_load_among_eight_leaves_the_others_alone(engine: Engine):
    shared = tokens("one of eight", 2 * engine.N)
    prompts = [shared + tokens(("eight", i), engine.N + 3 * i + 1) for i in range(8)]
    engine.reset_all()
    cold = [engine.run(prompt) for prompt in prompts]
    engine.reset_local()
    with engine.counting() as counted, every_second_load_fails(engine):
        restored = engine.run_all(prompts)
    assert 0 < counted["failures:load"] < counted["lookups"]
    assert max(a.distance(b) for a, b in zip(cold, restored, strict=True)) < NOISE
    still_works(engine)


@contextmanager
def every_second_load_fails(engine: Engine):
    poll, seen = engine.worker._poll, []

    def some():
        for done in poll():
            if done.ticket in engine.worker._loads:
                seen.append(done)
                if len(seen) % 2:
                    done = bad(done)
            yield done

    with patched(engine.worker, "_poll", lambda: list(some())):
        yield


def test_a_load_that_fails_after_a_local_hit_keeps_the_local_hit_right(engine: Engine):
    short = tokens("local part", 2 * engine.N + 5)
    prompt = short + tokens("failing tail", 2 * engine.N)
    engine.reset_all()
    engine.run(short)
    cold = engine.run(prompt)
    engine.reset_local()
    with engine.looking_away():
        engine.run(short)
    inject, _ = LOAD["the copy fails"]
    with inject(engine):
        result = engine.run(prompt)
    assert (result.local, result.host) == (2 * engine.N, 2 * engine.N)
    assert result == cold
    still_works(engine)
