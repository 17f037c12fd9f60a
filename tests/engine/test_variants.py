"""Engines configured otherwise: the same equality."""

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

import at_once
from harness import Engine, tokens

# Short steps end on every boundary. So that vLLM's own hits can be compared with, both keep all of
# those states.
SHORT = {"max_num_seqs": 8, "prefix_cache_retention_interval": 64}
VARIANTS = {
    "steps of little more than a block": {"max_num_batched_tokens": 80, **SHORT},
    "steps shorter than a block": {"max_num_batched_tokens": 48, **SHORT},
    "synchronous scheduling": {"async_scheduling": False},
    "a state kept at every boundary": {"prefix_cache_retention_interval": 64},
    "larger blocks": {"block_size": 96},
    "hashes finer than blocks": {"prefix_match_unit": 32},
}


@pytest.fixture(scope="module", params=VARIANTS)
def engine(request, start):
    mode = "all" if request.param.startswith("steps") else "adaptive"
    settings = {"verify_on_load": True, "checkpoint_mode": mode}
    engine = start("qwen3.5", settings, **VARIANTS[request.param])
    synchronous = request.param == "synchronous scheduling"
    assert type(engine.scheduler) is (Scheduler if synchronous else AsyncScheduler)
    return engine


def test_a_resend_an_extension_and_a_fork_are_restored(engine: Engine):
    n = engine.N
    prompt = tokens("variant", 4 * n + 9)
    assert engine.restored([prompt], prompt, 8).host == 4 * n
    assert engine.restored([prompt], prompt + tokens("more", 2 * n), 8).host == 4 * n
    shared = prompt[: 2 * n + 3]
    first, second, third = (shared + tokens(("branch", i), 2 * n) for i in range(3))
    assert engine.restored([first, second], third).host == 2 * n
    exact = prompt[: 3 * n]
    assert engine.restored([exact], exact).host == 2 * n


def retention(engine: Engine) -> int | None:
    return engine.scheduler.cache_config.prefix_cache_retention_interval


def test_decode_across_boundaries_is_restored_or_counted(engine: Engine):
    prompt = tokens("decode", 2 * engine.N - 5)
    engine.reset_all()
    answer = engine.run(prompt, engine.N + 10).tokens
    follow_up = (*prompt, *answer, *tokens("next", 9))
    engine.reset_local()
    with engine.counting() as counted:
        restored = engine.run(follow_up)
    kept = engine.half.connection.settings.checkpoint_mode == "all" or retention(engine) != 0
    assert restored.host == (3 * engine.N if kept else engine.N)
    assert counted.get("missing_answer_tokens", 0) == (0 if kept else 2 * engine.N)
    engine.reset_all()
    with engine.looking_away():
        engine.run(prompt, engine.N + 10)
    assert restored == engine.local_hit(follow_up, restored)


def test_eight_at_once_are_what_local_hits_in_the_same_batches_give(engine: Engine):
    shared = tokens("together", 3 * engine.N)
    prompts = [
        shared[: (1 + i % 3) * engine.N] + tokens(("each", i), engine.N + 7 * i) for i in range(8)
    ]
    engine.reset_all()
    alone = []
    for prompt in prompts:
        engine.reset_local()
        alone.append(engine.run(prompt))
    engine.reset_local()
    batch = at_once.restored(engine, prompts)
    assert sum(batch.loaded) > 4
    engine.reset_all()
    for prompt, result in zip(prompts, alone, strict=True):
        assert engine.local_hit(prompt, result) == result
    assert at_once.local_hits(engine, prompts, batch).results == batch.results
    assert not any(key.startswith("failures") for key in engine.stats())
