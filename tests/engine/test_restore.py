"""Restored text is that of vLLM's own prefix hit at the same boundary, bit for bit."""

import pytest

import at_once
from harness import Engine, tokens

MODELS = ["qwen3.5", pytest.param("qwen3-next", marks=pytest.mark.long), "lfm2", "gemma3"]


@pytest.fixture(scope="module", params=MODELS)
def engine(request, start):
    # Of sliding windows vLLM by default keeps few boundaries; the cache keeps all. For a reference
    # at every boundary vLLM is told to keep them as well.
    dense = {"prefix_cache_retention_interval": 32} if request.param == "gemma3" else {}
    return start(request.param, **dense)


@pytest.fixture
def recurrent(engine):
    if not any(group.kind == "recurrent" for group in engine.half.connection.geometry.groups):
        pytest.skip("this model has no recurrent layers")


def test_a_resent_prompt_resumes_from_its_last_boundary(engine: Engine):
    prompt = tokens("resend", 5 * engine.N + 17)
    assert engine.restored([prompt], prompt).host == 5 * engine.N


def test_a_restored_prefix_serves_every_later_resend(engine: Engine):
    prompt = tokens("again", 3 * engine.N + 2)
    engine.reset_all()
    first = engine.run(prompt, 8)
    for _ in range(3):
        engine.reset_local()
        assert engine.run(prompt, 8).host == 3 * engine.N
    engine.reset_local()
    restored = engine.run(prompt, 8)
    engine.reset_all()
    with engine.looking_away():
        assert engine.run(prompt, 8) == first
    assert restored == engine.local_hit(prompt, restored, 8)


def test_a_longer_prompt_resumes_where_the_shorter_one_ended(engine: Engine):
    prompt = tokens("longer", 5 * engine.N + 17)
    longer = prompt + tokens("more", 2 * engine.N + 3)
    assert engine.restored([prompt], longer).host == 5 * engine.N


def test_a_prompt_longer_by_one_token_resumes(engine: Engine):
    prompt = tokens("one more", 4 * engine.N)
    assert engine.restored([prompt], (*prompt, 7)).host in (3 * engine.N, 4 * engine.N)


@pytest.mark.parametrize("extra", [0, 1, "half", "all but one"])
def test_forks_inside_the_shared_prefix_resume_at_the_fork(engine: Engine, extra):
    into = {"half": engine.N // 2, "all but one": engine.N - 1}.get(extra, extra)
    shared = tokens("shared", 3 * engine.N + into)
    first, second, third = (
        shared + tokens((extra, branch), 2 * engine.N + 5) for branch in range(3)
    )
    # The second prompt makes vLLM keep the state at the fork; the third one resumes there.
    assert engine.restored([first, second], third).host == 3 * engine.N


def test_a_fork_with_no_state_is_computed_and_counted(engine: Engine, recurrent):
    shared = tokens("uncounted", 3 * engine.N)
    engine.reset_all()
    engine.run(shared + tokens("left", 2 * engine.N + 5))
    engine.reset_local()
    right = shared + tokens("right", 2 * engine.N + 5)
    with engine.counting() as counted:
        result = engine.run(right)
    assert result.resumed == 0
    assert counted["missing_state_tokens"] == 3 * engine.N
    engine.reset_all()
    assert engine.local_hit(right, result) == result


# Known report: LMCache#5249.
@pytest.mark.parametrize("blocks", [2, 3, 5])
def test_an_exact_multiple_recomputes_its_last_token_once(engine: Engine, blocks):
    prompt = tokens(("exact", blocks), blocks * engine.N)
    assert engine.restored([prompt], prompt, 8).host == (blocks - 1) * engine.N


@pytest.mark.parametrize("extra", [1, "all but one", "all"])
def test_an_extension_of_an_exact_multiple_is_right(engine: Engine, extra):
    more = {"all but one": engine.N - 1, "all": engine.N}.get(extra, extra)
    prompt = tokens("multiple", 4 * engine.N)
    longer = prompt + tokens(("extended", extra), more)
    assert engine.restored([prompt], longer, 8).host in (3 * engine.N, 4 * engine.N)


@pytest.mark.parametrize("length", [1, 2, "N-1", "N"])
def test_a_prompt_with_no_boundary_before_its_last_token_is_computed(engine: Engine, length):
    count = {"N-1": engine.N - 1, "N": engine.N}.get(length, length)
    prompt = tokens(("short", length), count)
    engine.reset_all()
    first = engine.run(prompt)
    engine.reset_local()
    again = engine.run(prompt)
    assert again.resumed == 0
    assert again == first


def test_nothing_is_stored_of_a_prompt_that_fills_no_block(engine: Engine):
    engine.reset_all()
    with engine.counting() as counted:
        engine.run(tokens("unfilled", engine.N - 8), 4)
    assert not any(key.startswith("stored") for key in counted)


def test_the_blocks_of_an_answer_are_restored_or_counted(engine: Engine):
    prompt = tokens("turn", 2 * engine.N + 3)
    engine.reset_all()
    answer = engine.run(prompt, engine.N + 10).tokens
    follow_up = (*prompt, *answer, *tokens("next turn", 20))
    engine.reset_local()
    with engine.counting() as counted:
        restored = engine.run(follow_up)
    # By default no state of an answer is kept.
    recurrent = any(group.kind == "recurrent" for group in engine.half.connection.geometry.groups)
    left = engine.N if recurrent else 0
    assert restored.host == 3 * engine.N - left
    assert counted.get("missing_answer_tokens", 0) == left
    assert counted.get("missing_states:answer", 0) == bool(left)
    engine.reset_all()
    with engine.looking_away():
        engine.run(prompt, engine.N + 10)
    assert restored == engine.local_hit(follow_up, restored)


# Known report: LMCache#4843.
def test_a_local_hit_is_extended_by_a_deeper_tail_from_the_store(engine: Engine):
    short = tokens("tail", 2 * engine.N + 5)
    prompt = short + tokens("deeper", 3 * engine.N + 7)
    engine.reset_all()
    engine.run(short)
    engine.run(prompt)
    engine.reset_local()
    with engine.looking_away():
        engine.run(short)
    restored = engine.run(prompt)
    assert (restored.local, restored.host) == (2 * engine.N, 3 * engine.N)
    engine.reset_all()
    with engine.looking_away():
        engine.run(short)
        engine.run(prompt)
    assert restored == engine.local_hit(prompt, restored)


def test_no_state_is_stored_for_a_boundary_inside_a_step(engine: Engine, recurrent):
    engine.reset_all()
    with engine.counting() as counted:
        engine.run(tokens("many boundaries", 9 * engine.N + 1))
    assert counted["stored_entries:pages"] == 9
    assert counted["stored_entries:checkpoints"] == 1


def test_a_prefill_of_several_steps_is_restored(engine: Engine):
    prompt = tokens("chunks", 2048 + 3 * engine.N + 5)
    assert engine.restored([prompt], prompt).host == len(prompt) // engine.N * engine.N


def test_a_state_that_was_loaded_is_not_stored_again(engine: Engine):
    prompt = tokens("twice", 3 * engine.N + 1)
    engine.reset_all()
    engine.run(prompt)
    engine.reset_local()
    with engine.counting() as counted:
        assert engine.run(prompt).host == 3 * engine.N
    assert not any(key.startswith("stored") for key in counted)
    assert counted["loaded_bytes:pages"] > 0


def test_resetting_the_prefix_cache_keeps_the_store(engine: Engine):
    prompt = tokens("keep", 2 * engine.N + 1)
    engine.reset_all()
    engine.run(prompt)
    engine.reset_local()
    assert engine.run(prompt).host == 2 * engine.N


def test_resetting_the_connector_too_forgets_the_store(engine: Engine):
    prompt = tokens("forget", 2 * engine.N + 1)
    engine.run(prompt)
    engine.reset_all()
    assert engine.run(prompt).resumed == 0


def test_sleep_at_level_0_keeps_both_caches(engine: Engine):
    prompt = tokens("nap", 2 * engine.N + 1)
    engine.reset_all()
    engine.run(prompt)
    engine.vllm.sleep(level=0)
    engine.vllm.wake_up(tags=["scheduling"])
    result = engine.run(prompt)
    assert (result.local, result.host) == (2 * engine.N, 0)
    engine.reset_local()
    assert engine.run(prompt).host == 2 * engine.N


def test_after_sleep_and_wake_up_prompts_are_stored_and_restored_again(engine: Engine):
    prompt = tokens("sleep", 2 * engine.N + 1)
    engine.run(prompt)
    engine.vllm.sleep(level=1)
    engine.vllm.wake_up()
    assert engine.run(prompt).resumed == 0  # vLLM clears its caches and the connector's
    engine.reset_local()
    assert engine.run(prompt).host == 2 * engine.N
    assert engine.restored([prompt], prompt).host == 2 * engine.N


def test_prompts_of_different_cache_salts_share_nothing(engine: Engine):
    prompt = tokens("salt", 2 * engine.N + 1)
    engine.reset_all()
    engine.run(prompt, salt="one")
    engine.reset_local()
    assert engine.run(prompt, salt="two").resumed == 0
    assert engine.run(prompt).resumed == 0
    engine.reset_local()
    assert engine.run(prompt, salt="one").host == 2 * engine.N


def test_a_request_that_skips_the_prefix_cache_skips_the_store(engine: Engine):
    prompt = tokens("skip", 2 * engine.N + 1)
    engine.reset_all()
    engine.run(prompt)
    engine.reset_local()
    assert engine.cold(prompt).resumed == 0


def test_eight_at_once_are_stored_right(engine: Engine):
    prompts = eight(engine)
    engine.reset_all()
    engine.run_all(prompts)
    restored = []
    for prompt in prompts:
        engine.reset_local()
        restored.append(engine.run(prompt))
        assert restored[-1].host > 0
    engine.reset_all()
    with engine.looking_away():
        engine.run_all(prompts)
    for prompt, result in zip(prompts, restored, strict=True):
        assert result == engine.local_hit(prompt, result)


def test_eight_at_once_are_restored_right(engine: Engine):
    prompts = eight(engine)
    engine.reset_all()
    engine.run_all(prompts)
    engine.reset_local()
    with engine.counting() as counted:
        batch = at_once.restored(engine, prompts)
    restored = batch.results
    assert all(result.resumed > 0 for result in restored)
    assert counted["hit_tokens:host"] == sum(result.host for result in restored) > 0
    engine.own_blocks_agree(prompts, restored)
    assert at_once.local_hits(engine, prompts, batch).results == restored


def eight(engine: Engine):
    shared = [tokens(("trunk", i), 4 * engine.N) for i in range(2)]
    return [
        shared[i % 2][: (1 + i // 2) * engine.N] + tokens(("leaf", i), 2 * engine.N + 5 * i + 1)
        for i in range(8)
    ]
