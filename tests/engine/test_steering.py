"""The engine is steered to make states where prompts fork: at the second visit, for the third.

The workload of vllm-project/vllm#45238: a shared prefix, and suffixes of their own in which the
last boundary of each prompt lies.
"""

import pytest

from harness import Engine, tokens
from test_trees import SEEDS, tree


@pytest.fixture(scope="module", params=["qwen3.5", "lfm2"])
def engine(request, start):
    return start(request.param)


def visitors(engine: Engine, count: int) -> list:
    shared = tokens("shared", 7 * engine.N + 5)
    return [shared + tokens(("visitor", i), 3 * engine.N) for i in range(count)]


def visit(engine: Engine, prompt):
    """Runs a prompt after vLLM's own cache has forgotten everything."""
    engine.reset_local()
    return engine.run(prompt)


# Known report: vLLM#45238.
def test_the_third_visitor_resumes_where_the_second_one_made_the_state(engine: Engine):
    prompts = visitors(engine, 4)
    engine.reset_all()
    with engine.counting() as counted:
        results = [visit(engine, prompt) for prompt in prompts]
    assert [result.host for result in results] == [0, 0, 7 * engine.N, 7 * engine.N]
    assert counted["steered_steps"] == 1
    assert counted["missing_state_tokens"] == 7 * engine.N  # the second visitor's
    engine.reset_all()
    with engine.looking_away():
        for prompt in prompts[:2]:
            engine.run(prompt)
    assert engine.local_hit(prompts[2], results[2]) == results[2]


def test_a_hinted_fork_serves_the_second_visitor(engine: Engine):
    first, second = visitors(engine, 2)
    engine.reset_all()
    hints = {"kv_transfer_params": {"hybrid_pages": {"checkpoint_at": [7 * engine.N + 5]}}}
    hinted = engine.run(first, extra_args=hints)
    result = visit(engine, second)
    assert result.host == 7 * engine.N
    engine.reset_all()
    assert engine.local_hit(first, hinted) == hinted  # vLLM itself makes the state at a fork
    assert engine.local_hit(second, result) == result


def test_of_a_prompt_that_is_not_to_be_stored_nothing_is(engine: Engine):
    prompt, _ = visitors(engine, 2)
    engine.reset_all()
    with engine.counting() as counted:
        engine.run(prompt, extra_args={"kv_transfer_params": {"hybrid_pages": {"store": False}}})
    assert not [name for name in counted if name.startswith("stored_entries")]
    assert [visit(engine, prompt).host for _ in range(2)] == [0, len(prompt) // engine.N * engine.N]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tree_restores_no_less_than_vllm_keeps_itself(engine: Engine, seed):
    prompts = tree(seed + 2000, engine.N)
    engine.reset_all()
    with engine.looking_away():
        local = [engine.run(prompt).local for prompt in prompts]
    engine.reset_all()
    restored = [visit(engine, prompt).host for prompt in prompts]
    assert sum(restored) >= sum(local) > 0


def test_without_steering_no_visitor_resumes(start):
    engine = start("qwen3.5", {"policy": "junction-lru", "checkpoint_mode": "align"})
    with engine.counting() as counted:
        results = [visit(engine, prompt) for prompt in visitors(engine, 4)]
    assert [result.host for result in results] == [0] * 4
    assert counted["missing_state_tokens"] == 3 * 7 * engine.N


def test_states_made_while_decoding_are_right(start):
    """In mode `all` a conversation resumes inside the answer of its last turn."""
    # So that vLLM's own hits can be compared with, it keeps the states, too.
    engine = start("qwen3.5", {"checkpoint_mode": "all"}, prefix_cache_retention_interval=64)
    prompt = tokens("talk", 3 * engine.N + 5)
    first = engine.run(prompt, 3 * engine.N)
    talk = prompt + first.tokens + tokens("next turn", engine.N)
    second = visit(engine, talk)
    assert second.host == 6 * engine.N
    engine.reset_all()
    with engine.looking_away():
        assert engine.run(prompt, 3 * engine.N) == first
    assert engine.local_hit(talk, second) == second
