"""Which ends inside blocks stay: those that a later end of a conversation supersedes go first."""

from __future__ import annotations

from typing import Any

import pytest

from hybrid_pages.vllm.scheduler.checkpoints import Checkpoints
from hybrid_pages.vllm.scheduler.requests.turns import Turns
from simulation.engine import Engine, Result, StartEngine
from simulation.shapes import BLOCK_TOKENS as N
from test_boundaries import tokens
from test_checkpoints import LARGE, counters
from test_tails import BACKGROUND, WAYS, check, key_after, tails


class Heard:
    """A cache, and the tails of which the policy has heard that they were left behind."""

    def __init__(self, cache: Any) -> None:
        self.cache, self.tails = cache, list[bytes]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)

    def supersede(self, namespace: int, keys: Any, tail: bytes, *, limit: int) -> None:
        self.cache.supersede(namespace, keys, tail, limit=limit)
        self.tails.append(tail)


def listen(engine: Engine) -> list[bytes]:
    """The tails of which the policy hears from now on that they were left behind."""
    heard = engine.half.connection.stores.cache = Heard(engine.cache)
    return heard.tails


def crowd(engine: Engine, count: int | None = None) -> list[Result]:
    """One-shot prompts of a tail each: so many, or until something had to leave for one."""
    results = list[Result]()
    evicted = engine.cache.stats()["evicted_checkpoints"]
    while len(results) < (200 if count is None else count):
        seed = 1000 + len(engine.results)
        results.append(engine.generate(tokens(5, seed), max_tokens=2))
        if count is None and engine.cache.stats()["evicted_checkpoints"] > evicted:
            break
    return results


@WAYS
def test_what_a_template_drops_is_left_out_on_the_first_visit(
    extra: Any, ready: StartEngine
) -> None:
    engine = ready(extra=extra)
    think = [498, 499]
    for chat in range(3):
        text, ends, stops = tokens(N, chat), [], list[bytes]()
        heard = listen(engine)
        for turn in range(3):
            text = text + tokens(9, 100 * chat + turn)
            result = engine.generate(text + think, max_tokens=3)
            ends.append((len(text), check(engine, result)[0]))
            stops.append(key_after(engine, result, len(text))[1])
            text = text + tokens(7, 500 + 100 * chat + turn)
        if chat:
            assert all(found[-1] == end for end, found in ends), "nothing goes on from the answer"
            assert heard == stops[:-1], "the next turn's stop supersedes each"
    assert counters(engine)["skipped_tails:dropped"] >= 6


def test_a_full_host_takes_the_end_of_a_turn_alone(ready: StartEngine) -> None:
    for full in (False, True):
        engine = ready(extra=LARGE | ({"host_gb": 0.0003} if full else {}))
        if full:
            crowd(engine)
        first = engine.generate(tokens(3, 1), max_tokens=3)
        assert check(engine, first)[0] == [3, 5][full:]
        following = [*first.request.all_token_ids, *tokens(2 * N, 2)]
        turn = engine.generate(following, max_tokens=3)
        found = check(engine, turn)[0]
        assert (found[-1], len(following) in found) == (len(following) + 2, not full)
        assert (2 in engine.depths(following)) != full


def test_an_answer_s_end_supersedes_that_of_its_prompt_where_turns_go_on_from_answers(
    ready: StartEngine,
) -> None:
    engine = ready(extra=LARGE)
    heard, prompt = listen(engine), tokens(N + 3)
    first = engine.generate(prompt, max_tokens=5)
    assert heard == [], "the next turn may drop the answer"
    engine.forget_local()
    dropped = engine.generate([*prompt, *tokens(6, 1)], max_tokens=5)
    assert dropped.restored_tokens == N + 3
    assert heard == [], "it went on from a prompt"
    engine.forget_local()
    following = [*first.request.all_token_ids, *tokens(4, 2)]
    kept = engine.generate(following, max_tokens=5)
    assert kept.restored_tokens == N + 7
    ends = N + 7, N + 3, len(following)
    assert heard == [key_after(engine, kept, end)[1] for end in ends]
    assert set(ends) <= set(check(engine, kept)[0]), "there is room for all"


def test_the_end_of_the_next_turn_supersedes_the_one_before(start: StartEngine) -> None:
    engine = start(extra=BACKGROUND)
    heard = listen(engine)
    ends, prompt = list[bytes](), tokens(N + 3)
    for seed in range(3):
        engine.forget_local()
        result = engine.generate(prompt, max_tokens=3)
        assert result.restored_tokens == (len(prompt) - 5 if ends else 0)
        of_prompt = key_after(engine, result, len(prompt))[1]
        of_answer = key_after(engine, result, result.request.num_tokens - 1)[1]
        # The ends of prompts go, too: that of the first one with the answer behind it.
        ends += [of_prompt, of_answer] if seed else [of_answer, of_prompt]
        prompt = [*result.request.all_token_ids, *tokens(4, seed + 1)]
    engine.check_idle()
    assert heard == ends[:-1]
    # A request that stores nothing leaves it alone.
    engine.forget_local()
    assert engine.generate(prompt, 3, hints={"store": False}).restored_tokens == len(prompt) - 5
    assert heard == ends[:-1]


@WAYS
def test_what_was_warmed_is_not_superseded(extra: Any, ready: StartEngine) -> None:
    engine = ready(extra=extra)
    heard, system = listen(engine), tokens(N + 3)
    engine.generate(system, max_tokens=1)
    engine.forget_local()
    engine.generate(system, max_tokens=4)  # a prompt that is just that
    for user in range(3):
        engine.forget_local()
        result = engine.generate([*system, *tokens(4, 10 + user)], max_tokens=3)
        assert result.restored_tokens == N + 3
        assert heard == []


def test_an_end_that_two_requests_have_had_is_not_superseded(ready: StartEngine) -> None:
    engine = ready(extra=BACKGROUND)
    heard, prompt = listen(engine), tokens(N + 3)
    said = [engine.generate(prompt, max_tokens=4).request.all_token_ids for _ in range(2)]
    assert list(said[0]) == list(said[1])
    for user in range(2):
        engine.forget_local()
        result = engine.generate([*said[user], *tokens(4, 10 + user)], max_tokens=3)
        assert result.restored_tokens == N + 6
    assert heard == []


def test_an_end_that_was_warmed_is_not_superseded(ready: StartEngine) -> None:
    engine = ready(extra=BACKGROUND)
    heard = listen(engine)
    said = engine.generate(tokens(N + 3), max_tokens=4).request.all_token_ids
    engine.forget_local()
    engine.generate(said[: N + 6], max_tokens=1)
    engine.forget_local()
    result = engine.generate([*said, *tokens(4, 1)], max_tokens=3)
    assert result.restored_tokens == N + 6
    assert heard == []


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_turn_that_was_aborted_supersedes_nothing(asynchronous: bool, ready: StartEngine) -> None:
    engine = ready(async_scheduling=asynchronous, extra=BACKGROUND)
    heard = listen(engine)
    first = engine.generate(tokens(N + 3), max_tokens=4)
    following = [*first.request.all_token_ids, *tokens(4, 1)]
    engine.forget_local()
    result = engine.add(following, max_tokens=12)
    while result.request.num_output_tokens < 3:
        engine.step()
    engine.abort(result)
    engine.run()
    assert result.restored_tokens == N + 6
    assert check(engine, result)[0][-1] > len(following), "its end is stored"
    assert heard == []


def test_of_very_many_ends_the_oldest_are_forgotten() -> None:
    turns = Turns(most=2)
    for tail in (b"a", b"b", b"c"):
        turns.ended(tail, answered=True)
    found = [turns.supersede(tail) for tail in (b"a", b"b", b"c", b"c")]
    assert [end is not None for end in found] == [False, True, True, False]
    turns.forget()
    assert turns.supersede(b"b") is None


TIGHT = BACKGROUND | {"host_gb": 0.0001}


@pytest.mark.parametrize("policy", ["lru", "reuse"])
@pytest.mark.parametrize("in_pool", [False, True])
def test_a_warmed_beginning_stays_while_its_users_come(
    in_pool: bool, policy: str, ready: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_pool:
        monkeypatch.setattr(Checkpoints, "keeps_tails", False)
    engine = ready(extra=TIGHT | {"policy": policy})
    assert len(crowd(engine)) > 6
    system = tokens(5, 1)
    engine.generate(system, max_tokens=1)
    for user in range(3):
        result = engine.generate([*system, *tokens(3, 10 + user)], max_tokens=3)
        found = result.local_tokens, result.restored_tokens
        assert found == ((len(system), 0) if in_pool else (0, len(system)))
        crowd(engine, 2)
    engine.check_idle()


@pytest.mark.parametrize("policy", ["lru", "reuse"])
def test_the_earlier_end_of_a_conversation_goes_first(policy: str, ready: StartEngine) -> None:
    engine = ready(extra=TIGHT | {"policy": policy})
    engine.half.connection.checkpoints.inside = False  # ends of answers alone
    others = crowd(engine)
    first = engine.generate(tokens(5, 1), max_tokens=3)
    second = engine.generate([*first.request.all_token_ids, *tokens(2, 2)], max_tokens=3)
    assert second.restored_tokens == 7
    assert tails(engine, second) == [7, 12]
    there = [tails(engine, other) for other in others]
    crowd(engine, 1)
    assert tails(engine, second) == [12]
    assert [tails(engine, other) for other in others] == there, "older ones stay"
    engine.check_idle()
