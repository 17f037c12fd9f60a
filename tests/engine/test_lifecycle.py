"""Requests that end, are aborted or preempted while their copies are in flight."""

from contextlib import contextmanager

import pytest

import at_once
from harness import NOISE, Engine, patched, tokens


@pytest.fixture(scope="module", params=["step", "background"])
def engine(request, start):
    return start("qwen3.5", {"store_mode": request.param})


@pytest.fixture(autouse=True)
def left_alone(engine: Engine):
    """One failed test does not fail the next ones."""
    yield
    engine.abandon()


class Held:
    """Copies that, as far as the engine is told, have not ended."""

    def __init__(self, engine: Engine):
        self.engine, self.poll = engine, engine.worker._poll
        self.done, self.tickets = [], None

    def all_so_far(self) -> None:
        """From now on later copies end as they do."""
        self.tickets = {*self.engine.worker._stores, *self.engine.worker._loads}

    def __call__(self):
        done = self.done + self.poll()
        self.done = [each for each in done if self.tickets is None or each.ticket in self.tickets]
        return [each for each in done if each not in self.done]


@contextmanager
def copies_in_flight(engine: Engine):
    """No copy ends, as far as the engine is told, until the block does."""
    held = Held(engine)
    with patched(engine.worker, "_poll", held):
        yield held
    with patched(engine.worker, "_poll", lambda: held.done + held.poll()):
        engine.step()


@pytest.fixture
def prompt(engine: Engine):
    engine.reset_all()
    return tokens("lifecycle", 4 * engine.N + 9)


def all_free(engine: Engine) -> bool:
    return engine.pool.get_num_free_blocks() == engine.pool.num_gpu_blocks - 1


def finished(engine: Engine, name: str) -> bool:
    return name in engine._done


def check_restored(engine: Engine, prompt, n=4):
    """Entries of a prompt hold the bytes that vLLM computes for it."""
    engine.reset_local()
    restored = engine.run(prompt, n)
    engine.reset_local()
    with engine.looking_away():
        engine.run(prompt, n)
        assert restored == engine.local_hit(prompt, restored, n)
    engine.reset_local()
    assert all_free(engine)
    assert engine.stats()["leased_bytes"] == 0
    return restored


def test_source_blocks_stay_pinned_until_their_copy_has_ended(engine: Engine, prompt):
    with copies_in_flight(engine):
        name = engine.submit(prompt, 1)
        engine.steps_until(lambda: finished(engine, name))
        for _ in range(5):
            engine.step()
        assert engine.half.storing
        # Four pages and one state of three groups.
        assert engine.pool.num_gpu_blocks - 1 - engine.pool.get_num_free_blocks() == 7
        assert engine.stats()["resident_entries:pages"] == 0
    engine.finish([name])
    assert all_free(engine)
    assert check_restored(engine, prompt).host == 4 * engine.N


def test_pinned_source_blocks_are_not_given_to_other_requests(engine: Engine, prompt):
    """The request has finished; the next ones take every block that is free."""
    with engine.squeezed(40):
        with copies_in_flight(engine) as held:
            first = engine.submit(prompt, 1)
            engine.steps_until(lambda: finished(engine, first))
            held.all_so_far()
            others = [tokens(("other", i), 4 * engine.N + i) for i in range(6)]
            names = [engine.submit(other, 2) for other in others]
            engine.steps_until(lambda: all(finished(engine, name) for name in names))
            assert engine.half.storing
        engine.finish([first, *names])
    assert check_restored(engine, prompt).host == 4 * engine.N


def test_blocks_freed_and_reused_in_the_step_that_offloads_them_are_stored_right(
    engine: Engine, prompt
):
    """As few blocks as one request needs: each step frees states and takes them again."""
    prompts = [tokens(("tight", i), 3 * engine.N - 4) for i in range(4)]
    with engine.squeezed(16):
        for each in prompts:
            engine.run(each, 10)
    for each in prompts:
        assert check_restored(engine, each).host == 2 * engine.N


def test_a_request_aborted_while_its_store_is_in_flight_leaves_a_right_store(
    engine: Engine, prompt
):
    with copies_in_flight(engine):
        name = engine.submit(prompt, 50)
        for _ in range(4):
            engine.step()
        assert engine.half.storing
        engine.abort(name)
        engine.step()
        assert engine.half.storing
    engine.drain()
    assert not engine.half.storing
    assert check_restored(engine, prompt).host == 4 * engine.N


def test_a_request_aborted_between_its_chunks_leaves_a_right_store(engine: Engine, prompt):
    long = prompt + tokens("chunks", 2048)
    name = engine.submit(long, 4)
    engine.step()
    engine.abort(name)
    engine.drain()
    check_restored(engine, long)


# Known report: LMCache#4938.
def test_a_request_aborted_while_its_load_is_in_flight_frees_everything(engine: Engine, prompt):
    engine.run(prompt)
    engine.reset_local()
    with copies_in_flight(engine):
        name = engine.submit(prompt)
        engine.step()
        engine.step()
        assert engine.stats()["leased_bytes"] > 0
        assert not all_free(engine)
        engine.abort(name)
        for _ in range(3):
            engine.step()
    engine.drain()
    assert check_restored(engine, prompt).host == 4 * engine.N


def test_the_same_prompt_waits_for_its_own_load_only(engine: Engine, prompt):
    cold = engine.run(prompt)
    engine.reset_local()
    with copies_in_flight(engine):
        names = [engine.submit(prompt) for _ in range(3)]
        names.append(engine.submit(tokens("unrelated", 2 * engine.N + 1)))
        engine.steps_until(lambda: finished(engine, names[-1]))
        assert not any(finished(engine, name) for name in names[:3])
    results = engine.finish(names)
    assert max(result.distance(cold) for result in results[:3]) < NOISE
    assert [result.host for result in results[:3]] == [4 * engine.N] * 3
    at_once.check_loaded_blocks(engine, prompt, results[0])


def test_entries_being_loaded_are_not_evicted_by_a_reset(engine: Engine, prompt):
    cold = engine.run(prompt)
    engine.reset_local()
    with copies_in_flight(engine):
        name = engine.submit(prompt)
        engine.step()
        engine.half.reset()
    assert engine.finish([name]) == [cold]
    assert check_restored(engine, prompt).resumed in (0, 4 * engine.N)


def test_stores_in_flight_at_a_reset_end_unpublished(engine: Engine, prompt):
    with copies_in_flight(engine):
        name = engine.submit(prompt, 1)
        engine.steps_until(lambda: finished(engine, name))
        # vLLM cannot clear its own cache while blocks are pinned, and says so.
        assert not engine.vllm.reset_prefix_cache(reset_connector=True)
    engine.finish([name])
    assert engine.stats()["resident_entries:pages"] == 0
    engine.reset_local()
    assert engine.run(prompt).resumed == 0


def test_a_boundary_offered_again_while_it_is_in_writing_is_stored_once(engine: Engine, prompt):
    with engine.counting() as counted:
        with copies_in_flight(engine):
            names = [engine.submit(prompt, 1) for _ in range(2)]
            engine.steps_until(lambda: all(finished(engine, name) for name in names))
        engine.finish(names)
    assert counted["stored_entries:checkpoints"] == 1
    assert counted["stored_entries:pages"] == 4
    assert check_restored(engine, prompt).host == 4 * engine.N


def crowd(engine: Engine, seed: str):
    """Prompts that fill a block, and so need new ones, soon after they have all been admitted."""
    return [tokens((seed, i), 3 * engine.N - 4 - i) for i in range(6)]


def test_preempted_requests_end_right_and_leave_a_right_store(engine: Engine):
    prompts = crowd(engine, "preempted")
    cold = [engine.cold(prompt, 16) for prompt in prompts]
    engine.reset_all()
    with engine.squeezed(46):
        results = engine.run_all(prompts, 16)
    if (
        engine.half.connection.settings.store_mode == "step"
    ):  # else vLLM may wait for pins to go instead
        assert sum(result.preemptions for result in results) > 0
    for alone, together in zip(cold, results, strict=True):
        assert alone.distance(together) < NOISE
    for prompt in prompts:
        assert check_restored(engine, prompt).host > 0


def test_blocks_that_come_free_soon_are_waited_for_rather_than_preempting(engine: Engine):
    prompts = crowd(engine, "waiting")
    cold = [engine.cold(prompt, 16) for prompt in prompts]
    engine.reset_all()
    with engine.squeezed(64):
        with copies_in_flight(engine):
            names = [engine.submit(prompt, 16) for prompt in prompts]
            for _ in range(25):
                engine.step()
            assert engine.half.storing
        results = engine.finish(names)
    for alone, together in zip(cold, results, strict=True):
        assert alone.distance(together) < NOISE
    for prompt in prompts:
        check_restored(engine, prompt)


# Known report: LMCache#4822.
def test_a_request_preempted_while_its_store_is_in_flight_ends_right(engine: Engine, prompt):
    cold = engine.cold(prompt, 12)
    engine.reset_all()
    with copies_in_flight(engine):
        name = engine.submit(prompt, 12)
        for _ in range(4):
            engine.step()
        assert engine.half.storing
        engine.preempt_last()
        # Other requests want its blocks at once.
        others = [engine.submit(tokens(("rush", i), 2 * engine.N + 1), 1) for i in range(3)]
        engine.steps_until(lambda: all(finished(engine, other) for other in others))
    result = engine.finish([name, *others])[0]
    assert result.preemptions == 1
    assert result.distance(cold) < NOISE
    assert check_restored(engine, prompt).host == 4 * engine.N


def test_a_restored_request_that_is_preempted_ends_right(engine: Engine, prompt):
    cold = engine.run(prompt, 12)
    engine.reset_local()
    name = engine.submit(prompt, 12)
    engine.steps_until(lambda: engine.scheduler.running, "the end of its load")
    for _ in range(2):
        engine.step()
    engine.preempt_last()
    result = engine.finish([name])[0]
    assert (result.host, result.preemptions) == (4 * engine.N, 1)
    assert result.distance(cold) < NOISE
    at_once.check_loaded_blocks(engine, prompt, result)
    engine.run(prompt)
    assert check_restored(engine, prompt).host == 4 * engine.N
