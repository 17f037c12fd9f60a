"""Answers that a next turn leaves in their middle: restored, or counted and said."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hybrid_pages._core import PrefixKeys
from hybrid_pages.vllm.scheduler.answers import Answers
from simulation.engine import Engine, StartEngine
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from simulation.speculation import Speculation

PROMPT, ANSWER = 2 * N + 3, 3 * N + 2


def tokens(count: int, seed: object) -> list[int]:
    rng = random.Random(f"{seed}")
    return [rng.randrange(500) for _ in range(count)]


def counters(engine: Engine) -> dict[str, float]:
    return dict(engine.half.stats()["counters"])


def next_turn(engine: Engine, prompt: list[int], answer: int) -> tuple[list[int], dict[str, float]]:
    """Answers a prompt. The next turn's prompt, which leaves the answer before the state at its
    end, and what is counted of it with vLLM's own cache empty."""
    request = engine.add(prompt, answer)
    engine.run()
    assert engine.scheduler.reset_prefix_cache()
    follow_up = prompt + list(request.tokens)[:-2] + tokens(7, ("user", len(prompt)))
    before = counters(engine)
    engine.add(follow_up, 1)
    engine.run()
    after = counters(engine)
    return follow_up, {name: after[name] - before.get(name, 0) for name in after}


@pytest.mark.parametrize("mode", ["adaptive", "align", "all", "none"])
@pytest.mark.parametrize("shape", ["gdn", "mamba2", "gdn-window", "gdn-window-unequal"])
def test_an_answer_is_restored_or_counted(start: StartEngine, shape: str, mode: str) -> None:
    engine = start(SHAPES[shape], extra={"checkpoint_mode": mode, "host_gb": 0.01})
    n = engine.block_tokens
    prompt = tokens(2 * n + 3, mode)
    _, found = next_turn(engine, prompt, 3 * n + 2)
    restored = {"all": 5 * n, "adaptive": len(prompt), "align": 2 * n, "none": 0}[mode]
    assert found.get("hit_tokens:host", 0) == restored
    left = 5 * n - restored if mode in ("adaptive", "align") else 0
    assert found.get("missing_answer_tokens", 0) == left
    assert found.get("missing_states:answer", 0) == bool(left)


def test_what_vllm_keeps_itself_is_restored_and_not_counted(start: StartEngine) -> None:
    engine = start(extra={"host_gb": 0.01}, retention=None)
    _, found = next_turn(engine, tokens(PROMPT, "kept"), ANSWER)
    assert found["hit_tokens:host"] == 5 * N
    assert not found.get("missing_answer_tokens") and not found.get("missing_states:answer")


def test_every_turn_of_a_conversation_counts_its_own_answer(start: StartEngine) -> None:
    engine = start(extra={"host_gb": 0.01})
    prompt, answers = tokens(PROMPT, "turns"), 2 * N
    for _ in range(3):
        start_of_answer = len(prompt)
        prompt, found = next_turn(engine, prompt, answers)
        end = (len(prompt) - 7) // N * N
        assert found["missing_states:answer"] == 1
        assert found["missing_answer_tokens"] == end - start_of_answer
        assert engine.scheduler.reset_prefix_cache()


@pytest.mark.parametrize(("cut", "end"), [(2, 5), (N, 4), (2 * N + 5, 3), (3 * N, 0)])
def test_a_turn_counts_as_far_as_it_sends_the_answer_again(
    start: StartEngine, cut: int, end: int
) -> None:
    engine = start(extra={"host_gb": 0.01})
    prompt = tokens(PROMPT, "cut")
    request = engine.add(prompt, ANSWER)
    engine.run()
    assert engine.scheduler.reset_prefix_cache()
    answer = list(request.tokens)
    engine.add(prompt + answer[: len(answer) - cut] + tokens(2 * N, "other"), 1)
    engine.run()
    left = end * N - len(prompt) if end else 0
    assert counters(engine).get("missing_answer_tokens", 0) == left


def test_the_third_visitor_resumes_and_is_not_counted(start: StartEngine) -> None:
    engine = start(extra={"host_gb": 0.01})
    follow_up, found = next_turn(engine, tokens(PROMPT, "third"), ANSWER)
    assert found["missing_states:answer"] == 1
    assert engine.scheduler.reset_prefix_cache()
    before = counters(engine)
    engine.add(follow_up, 1)
    engine.run()
    after = counters(engine)
    assert after["hit_tokens:host"] - before["hit_tokens:host"] == 5 * N
    assert after["missing_states:answer"] == before["missing_states:answer"]


def test_vllms_own_hit_leaves_nothing_to_count(start: StartEngine) -> None:
    engine = start(extra={"checkpoint_mode": "align", "host_gb": 0.01}, retention=None)
    request = engine.add(tokens(PROMPT, "local"), ANSWER)
    engine.run()
    engine.add(tokens(PROMPT, "local") + list(request.tokens) + [1], 1)
    engine.run()
    assert not counters(engine).get("missing_answer_tokens")


@pytest.mark.parametrize("what", ["reset", "another prompt", "not stored"])
def test_what_no_later_prompt_could_have_resumed_from_is_not_counted(
    start: StartEngine, what: str
) -> None:
    engine = start(extra={"host_gb": 0.01})
    prompt = tokens(PROMPT, what)
    hints: Any = {"store": False} if what == "not stored" else None
    request = engine.add(prompt, ANSWER, hints=hints)
    engine.run()
    assert engine.scheduler.reset_prefix_cache(reset_connector=what == "reset")
    sent = tokens(PROMPT, "another") if what == "another prompt" else prompt
    engine.add(sent + list(request.tokens) + [1], 1)
    engine.run()
    assert not counters(engine).get("missing_answer_tokens")


@pytest.mark.parametrize("method", ["ngram", "mtp"])
def test_with_drafts_at_most_what_all_would_have_restored_is_counted(
    start: StartEngine, method: str
) -> None:
    restored = {}
    for mode in ("adaptive", "all"):
        engine = start(
            extra={"checkpoint_mode": mode, "host_gb": 0.01}, speculation=Speculation(method, 2)
        )
        _, found = next_turn(engine, tokens(PROMPT, "drafts"), 6 * N)
        hit = found["hit_tokens:host"]
        restored[mode] = hit + found.get("missing_answer_tokens", 0)
    assert restored["adaptive"] == restored["all"]


def keys(*names: int) -> PrefixKeys:
    found = PrefixKeys(1)
    for name in names:
        found.append(name.to_bytes(32, "little"))
    return found


def test_what_is_remembered_is_bounded_and_the_oldest_goes() -> None:
    answers = Answers(most=3)
    answers.ended(0, keys(1, 2, 3, 4), [2, 3, 4], [])
    assert answers.depth(0, keys(1, 2, 3, 4, 5), 4) == 4
    assert answers.depth(0, keys(1, 2, 3, 4, 5), 3) == 3
    assert answers.depth(0, keys(1, 2, 3, 4, 5), None) == 0
    assert answers.depth(1, keys(1, 2, 3, 4, 5), 4) == 0, "another namespace"
    answers.ended(0, keys(7, 8), [2], [])
    assert answers.depth(0, keys(1, 2), 2) == 0
    assert answers.depth(0, keys(7, 8), 2) == 2
    answers.ended(0, keys(7, 8), [], [2])
    assert answers.depth(0, keys(7, 8), 2) == 0, "it has a checkpoint now"
    answers.ended(0, keys(9), [1, 2], [])
    assert answers.depth(0, keys(9, 10), 2) == 1, "the second had no key"


def test_answers_of_thousands_of_blocks_are_remembered() -> None:
    answers = Answers()
    long = keys(*range(8192))
    answers.ended(0, long, range(2, 8193), [])
    assert answers.depth(0, long, 8192) == 8192
    answers.forget()
    assert answers.depth(0, long, 8192) == 0
