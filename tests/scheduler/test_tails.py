"""States inside blocks: where requests leave them, and that they hold what their tokens say."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.lora.request import LoRARequest
from vllm.v1.kv_cache_interface import MambaSpec

from hybrid_pages.vllm import versions
from hybrid_pages.vllm.scheduler import checkpoints, store
from hybrid_pages.vllm.scheduler.requests.tails import tail_keys
from hybrid_pages.vllm.scheduler.requests.turns import Turns
from simulation.audit import Audit, WrongEntry
from simulation.copies import Copies, Script
from simulation.engine import Engine, Result, StartEngine
from simulation.function import Image, Prefix, expand
from simulation.memory import Memory
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from simulation.speculation import Speculation
from test_boundaries import tokens
from test_checkpoints import LARGE, counters
from test_disk import model, settled  # noqa: F401 (model is a fixture)

BACKGROUND = LARGE | {"store_mode": "background"}
"""As on a GPU: stores outlast their step, and states that the next step overwrites are copied
first."""
WAYS = pytest.mark.parametrize("extra", [LARGE, BACKGROUND], ids=["in-steps", "copied"])
STATES = [
    name
    for name, shape in SHAPES.items()
    if any(isinstance(make(), MambaSpec) for make in shape.layers)
]


def key_after(engine: Engine, result: Result, end: int) -> tuple[Any, bytes, int]:
    """The keys of the whole blocks before `end` tokens, and that of the tail up to there."""
    keys, n = engine.keys_of(result.request), engine.half.connection.grid.block_tokens
    blocks = end // n
    parent = keys[blocks - 1] if blocks else None
    return keys, tail_keys(result.request, parent, blocks * n, [end % n])[0], blocks


def tails(engine: Engine, result: Result) -> list[int]:
    """After how many tokens of a request a tail in the host ends, from which it can resume."""
    n = engine.half.connection.grid.block_tokens
    namespace = engine.cache.namespace(engine.half.epochs.identity(result.request))
    found = []
    for end in range(1, result.request.num_tokens + 1):
        if end % n:
            keys, tail, blocks = key_after(engine, result, end)
            hit = engine.cache.lookup(namespace, keys, limit=blocks, tail=tail)
            if hit.host == blocks + 1:
                found.append(end)
    engine.cache.release_namespace(namespace)
    return found


@pytest.fixture
def ready(start: StartEngine) -> StartEngine:
    """Starts engines whose ranks have reported: then the first request may have tails, too."""

    def ready(*given: Any, **options: Any) -> Engine:
        engine = start(*given, **options)
        engine.generate(tokens(2, 999), max_tokens=1, hints={"store": False})
        return engine

    return ready


def check(engine: Engine, *results: Result) -> list[list[int]]:
    """The tails of these requests, after all that must hold when nothing runs was checked."""
    engine.check_idle()  # which compares them with the function
    return [tails(engine, result) for result in results]


# ---- the end of an answer


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name", STATES)
def test_the_end_of_an_answer_is_a_place_to_resume_from(
    name: str, asynchronous: bool, start: StartEngine
) -> None:
    engine = start(SHAPES[name], async_scheduling=asynchronous, extra=BACKGROUND)
    n = engine.half.connection.grid.block_tokens
    results = []
    for seed, (prompt, answer) in enumerate(
        [(3, 2), (n - 1, 1), (n - 1, 2), (2 * n + 3, n), (n + 1, n - 1), (2 * n, 3)]
    ):
        results.append(engine.generate(tokens(prompt, seed), max_tokens=answer))
    found = check(engine, *results)
    reason = engine.half.connection.stores.no_tails
    if reason:
        assert found == [[]] * len(results)
        assert counters(engine)[f"skipped_tails:{reason}"] >= len(results) - 1
        return
    for result, ends in zip(results, found, strict=True):
        prompt, last = result.request.num_prompt_tokens, result.request.num_tokens - 1
        places = {last}
        if result is not results[0]:  # with which the ranks report
            places |= {prompt, engine.half.connection.grid.kept_inside(prompt)}
        assert ends == sorted(end for end in places if end % n)
        if last % n == 0:
            assert engine.depths(result.request.all_token_ids)[-1] == last // n
    assert not [key for key in counters(engine) if key.startswith("skipped_tails")]


@pytest.mark.parametrize("reason", ["", "layout", "unconfirmed", "embeddings"])
def test_a_tail_that_is_refused_brings_no_pages(
    reason: str, ready: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ready(extra=LARGE if reason == "embeddings" else BACKGROUND)
    if reason == "embeddings":
        for module in (store, checkpoints):
            monkeypatch.setattr(module, "can_have_tails", lambda request: False)
    elif reason:
        engine.half.connection.stores.no_tails = reason
    result = engine.generate(tokens(N + 3), max_tokens=6 * N)
    engine.check_idle()
    if reason:
        # Those of its prompt and of its answer; a prompt with embeddings asks for none.
        ends = 1 if reason == "embeddings" else 2
        assert counters(engine)[f"skipped_tails:{reason}"] == ends
    namespace = engine.cache.namespace(engine.half.epochs.identity(result.request))
    hit = engine.cache.lookup(namespace, engine.keys_of(result.request))
    engine.cache.release_namespace(namespace)
    # Without a state at its end, no state follows the pages of the answer.
    assert (hit.blocks, hit.pages) == ((1, 1) if reason else (1, 7))


@pytest.mark.parametrize("in_process", [True, False])
def test_the_first_request_leaves_its_end_if_its_worker_can_be_asked(
    in_process: bool, start: StartEngine
) -> None:
    """Beside other connectors, a worker's report comes with the step that ends the request."""
    engine = start(extra=LARGE, in_process=in_process)
    result = engine.generate(tokens(N - 5), max_tokens=1)
    assert check(engine, result) == [[N - 5] if in_process else []]
    skipped = counters(engine).get("skipped_tails:unconfirmed", 0)
    assert skipped == (0 if in_process else 1)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_wherever_a_request_is_aborted_its_state_is_one_that_is_known(
    asynchronous: bool, start: StartEngine
) -> None:
    engine = start(async_scheduling=asynchronous, batched_tokens=12, extra=BACKGROUND)
    results = []
    for steps in range(1, 16):
        result = engine.add(tokens(2 * N + 5, steps), max_tokens=30)
        for _ in range(steps):
            engine.step()
        engine.abort(result)
        engine.run()
        results.append(result)
    found = check(engine, *results)
    assert sum(map(len, found)) > len(results) / 2


def test_a_token_that_was_thrown_away_is_in_no_tail(start: StartEngine) -> None:
    """Aborted between the plan of a step and the report of the one before."""
    engine = start(async_scheduling=True, extra=BACKGROUND)
    result = engine.add(tokens(N + 3), max_tokens=20)
    for _ in range(4):
        engine.step()
    output = engine.scheduler.schedule()
    engine._queue.append((output, engine._execute(output)))
    assert result.request.num_computed_tokens > result.request.num_tokens
    engine.abort(result)
    engine.run()
    assert check(engine, result) == [[]]
    assert counters(engine)["skipped_tails:unknown_token"] == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_stop_token_ends_in_the_state_that_has_consumed_what_is_known(
    asynchronous: bool, start: StartEngine
) -> None:
    engine = start(async_scheduling=asynchronous, extra=BACKGROUND)
    prompt = tokens(N + 3)
    told = engine.generate(prompt, max_tokens=6).tokens
    engine.half.reset()
    assert engine.reset_prefix_cache()
    request = engine._request(prompt, 20)
    request.sampling_params.stop_token_ids = [told[3]]
    request.sampling_params._all_stop_token_ids = {told[3]}
    result = Result(request, engine.results["r0"].origin)
    engine.results[request.request_id] = result
    engine._origins[request.request_id] = result.origin
    engine._submit(request)
    engine.run()
    stopped = told.index(told[3]) + 1
    assert result.tokens == told[:stopped]
    # The step in flight had consumed the stop token, too.
    assert tails(engine, result) == [N + 3, N + 3 + stopped - (not asynchronous)]
    audit = Audit(engine)
    audit.run()
    assert len(audit.tails) == 2


def test_preempted_requests_leave_the_tails_of_their_ends_alone(start: StartEngine) -> None:
    engine = start(async_scheduling=False, batched_tokens=N, extra=BACKGROUND)
    result = engine.add(tokens(3 * N + 1), max_tokens=2 * N + 3)
    for _ in range(7):
        engine.step()
    assert engine.reset_prefix_cache(reset_running_requests=True)
    engine.run()
    assert check(engine, result) == [[result.request.num_tokens - 1]]
    waits = engine.add(tokens(3 * N + 1, 1), max_tokens=4)
    for _ in range(4):
        engine.step()
    assert engine.reset_prefix_cache(reset_running_requests=True)
    engine.abort(waits)
    engine.run()
    assert check(engine, waits) == [[3 * N + 1]]


def test_answers_to_one_prompt_leave_a_tail_each(ready: StartEngine) -> None:
    engine = ready(extra=BACKGROUND)
    prompt = tokens(N + 2)
    results = [engine.add(prompt, max_tokens=count) for count in (2, 5, 9)]
    engine.run()
    found = check(engine, *results)
    assert found[-1] == [N + 2, *(N + 2 + count - 1 for count in (2, 5, 9))]


@pytest.mark.parametrize("fault", [False, True])
def test_another_request_s_bytes_never_leave_the_engine(
    fault: bool,
    start: StartEngine,
    tmp_path: Path,
    model: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tail's block may hold what another request had there before: it is not on the disk, as it
    would be if whole pages were copied."""
    monkeypatch.setattr(Memory, "zero", lambda self, blocks: None)  # vLLM may leave blocks as found
    if fault:
        monkeypatch.setattr(Copies, "store", store_whole_pages)
    disk = tmp_path / "disk"
    extra = BACKGROUND | {"disk_path": str(disk), "disk_gb": 0.05}
    engine = start(blocks=0, extra=extra, model=model)
    hidden = engine.generate(tokens(8 * N + 1, 99), max_tokens=2, hints={"store": False})
    assert engine.reset_prefix_cache()
    # Together they take all blocks.
    results = [engine.add(tokens(3 + seed, seed), max_tokens=2) for seed in range(8)]
    engine.run()
    if not fault:
        assert all(check(engine, *results))
    settled(engine)
    prefix = Prefix(engine.origin(hidden.request), hidden.request.all_token_ids)
    written = b"".join(path.read_bytes() for path in disk.rglob("*") if path.is_file())
    found = [each for each in _patterns(engine, prefix, range(8 * N)) if each in written]
    assert bool(found) is fault


def store_whole_pages(copies: Copies, entries: Any) -> int:
    """What a copy engine would do that does not know how many tokens a page has."""
    whole = [(item, slots, [block or 0 for block in ids], None) for item, slots, ids, _ in entries]
    return copies._submit("store", whole)


def _patterns(engine: Engine, prefix: Prefix, of: range) -> Iterator[bytes]:
    """The bytes of single tokens of a request in the pages of each layer."""
    memory = engine.runners[0].memory
    for group, layers in enumerate(memory.groups):
        for layer in () if memory.recurrent[group] else layers:
            rows = expand(prefix.of_tokens(of.start, of.stop), layer.key, layer.token_bytes)
            yield from (row.tobytes()[:16] for row in rows)


# ---- the end of a prompt, and any other token


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name", STATES)
def test_the_end_of_a_prompt_is_a_place_to_resume_from(
    name: str, asynchronous: bool, ready: StartEngine
) -> None:
    engine = ready(SHAPES[name], async_scheduling=asynchronous, extra=LARGE)
    n = engine.half.connection.grid.block_tokens
    if engine.half.connection.stores.no_tails:
        pytest.skip("it has no tails")
    result = engine.generate(tokens(2 * n + 3), max_tokens=5)
    assert check(engine, result) == [[2 * n + 3, 2 * n + 7]]
    result = engine.generate(tokens(n - 2, 1), max_tokens=1)
    kept = {engine.half.connection.grid.kept_inside(n - 2)} - {0}  # by vLLM itself
    assert check(engine, result) == [sorted({*kept, n - 2})]


@WAYS
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name", ["gdn", "mamba2", "gdn-window", "two-recurrent-kinds"])
def test_the_second_prompt_leaves_a_tail_where_it_leaves_the_first(
    name: str, asynchronous: bool, extra: Any, ready: StartEngine
) -> None:
    engine = ready(SHAPES[name], async_scheduling=asynchronous, batched_tokens=400, extra=extra)
    for shared in (N + 3, 2 * N + 5, 19):
        first = tokens(shared, shared)
        engine.generate(first + tokens(2 * N, 1), max_tokens=2)
        second = engine.generate(first + tokens(2 * N, 2), max_tokens=2)
        ends = check(engine, second)[0]
        assert shared in ends or name == "mamba2"


@WAYS
def test_a_hint_asks_for_a_tail(extra: Any, ready: StartEngine) -> None:
    engine = ready(extra=extra)
    hinted = engine.generate(tokens(3 * N), max_tokens=2, hints={"checkpoint_at": [N + 5]})
    assert N + 5 in check(engine, hinted)[0]


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


@pytest.mark.parametrize("end", range(1, 3 * N))
def test_a_step_can_end_at_any_token(end: int, ready: StartEngine) -> None:
    engine = ready(async_scheduling=False, batched_tokens=400, extra=LARGE)
    result = engine.add(tokens(3 * N + 1), max_tokens=2, hints={"checkpoint_at": [end]})
    visited = []
    while not result.done:
        engine.step()
        visited.append(result.request.num_computed_tokens)
    engine.run()
    assert end in visited
    found = check(engine, result)[0]
    assert end in found or not end % N


@pytest.mark.parametrize("mode", ["adaptive", "all"])
@pytest.mark.parametrize("count", [N - 2, 3 * N])
def test_several_steps_end_inside_one_block(count: int, mode: str, ready: StartEngine) -> None:
    engine = ready(
        async_scheduling=False, batched_tokens=400, extra=LARGE | {"checkpoint_mode": mode}
    )
    hints = {"checkpoint_at": [3, 8]}
    found = check(engine, engine.generate(tokens(count, 8), max_tokens=2, hints=hints))[0]
    assert {3, 8} <= set(found)


@pytest.mark.parametrize("mode", ["adaptive", "all"])
def test_a_fork_of_vllm_survives_a_stop_inside_a_block(mode: str, ready: StartEngine) -> None:
    engine = ready(
        async_scheduling=False, batched_tokens=400, extra=LARGE | {"checkpoint_mode": mode}
    )
    shared = tokens(2 * N, 50)
    engine.generate(shared + tokens(2 * N, 1), max_tokens=1, hints={"store": False})
    hints = {"checkpoint_at": [3]}
    result = engine.add(shared + tokens(2 * N, 2), max_tokens=2, hints=hints)
    visited = set[int]()
    while not result.done:
        engine.step()
        visited.add(result.request.num_computed_tokens)
    engine.run()
    engine.check_idle()
    assert {3, 2 * N} <= visited


@pytest.mark.parametrize("retention", [None, 0])
@pytest.mark.parametrize("name", ["mamba2", "gdn-exports", "kda-exports", "two-exporting-kinds"])
def test_no_step_ends_where_vllm_goes_on_with_wrong_states(
    name: str, retention: int | None, ready: StartEngine
) -> None:
    engine = ready(SHAPES[name], match_unit=4, retention=retention, batched_tokens=400, extra=LARGE)
    engine.watches_local_cache = True
    for shared in (N + 4, 2 * N + 8):
        first = tokens(shared, shared)
        for last in (1, 2, 2):
            engine.generate(first + tokens(3 * N + 3, last), max_tokens=2)
    engine.generate(tokens(4 * N + 3, 7), max_tokens=2, hints={"checkpoint_at": [N + 4]})
    engine.check_idle()


@pytest.mark.parametrize("name", ["mamba2", "gdn-exports", "gdn"])
def test_a_stop_behind_the_last_boundary_does_not_cost_its_state(
    name: str, ready: StartEngine
) -> None:
    engine = ready(SHAPES[name], batched_tokens=400, extra=LARGE)
    prompt = tokens(2 * N + 13, 3)
    hinted = engine.generate(prompt, max_tokens=2, hints={"checkpoint_at": [2 * N + 3]})
    assert 2 * N + 3 in check(engine, hinted)[0]
    assert 2 in engine.depths(prompt)


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
        if seed:  # its own prompt's end goes, too
            ends.append(key_after(engine, result, len(prompt))[1])
        ends.append(key_after(engine, result, result.request.num_tokens - 1)[1])
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
def test_a_warmed_beginning_stays_while_its_users_come(policy: str, ready: StartEngine) -> None:
    engine = ready(extra=TIGHT | {"policy": policy})
    assert len(crowd(engine)) > 6
    system = tokens(5, 1)
    engine.generate(system, max_tokens=1)
    for user in range(3):
        result = engine.generate([*system, *tokens(3, 10 + user)], max_tokens=3)
        assert result.restored_tokens == len(system)
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


# ---- what has none


@pytest.mark.parametrize("mode", ["none", "align"])
def test_modes_without_tails(mode: str, start: StartEngine) -> None:
    engine = start(extra=LARGE | {"checkpoint_mode": mode})
    result = engine.generate(tokens(2 * N + 3), max_tokens=5)
    assert check(engine, result) == [[]]
    assert not [key for key in counters(engine) if key.startswith("skipped_tails")]


def test_engines_that_speculate_count_why_they_have_none(start: StartEngine) -> None:
    engine = start(speculation=Speculation("ngram", 2), extra=LARGE)
    for seed in range(3):
        engine.generate(tokens(2 * N + 3, seed), max_tokens=5)
    engine.check_idle()
    assert counters(engine)["skipped_tails:drafts"] == 3


def test_a_request_that_is_not_stored_leaves_none(start: StartEngine) -> None:
    engine = start(extra=BACKGROUND)
    result = engine.generate(tokens(N + 3), max_tokens=5, hints={"store": False})
    assert check(engine, result) == [[]]
    assert counters(engine)["skipped_tails:hint"] == 1


def test_a_request_that_ran_through_a_reset_leaves_none(start: StartEngine) -> None:
    engine = start(extra=BACKGROUND)
    result = engine.add(tokens(N + 3), max_tokens=12)
    for _ in range(4):
        engine.step()
    engine.half.reset()
    engine.run()
    assert check(engine, result) == [[]]
    assert counters(engine)["skipped_tails:stale"] == 1


def test_models_of_attention_alone_need_none(start: StartEngine) -> None:
    engine = start(SHAPES["attention-only"], extra=LARGE)
    result = engine.generate(tokens(N + 3), max_tokens=5)
    assert check(engine, result) == [[]]
    assert not [key for key in counters(engine) if key.startswith("skipped_tails")]


# ---- whose tails they are


def test_salts_adapters_and_images_have_tails_of_their_own(start: StartEngine) -> None:
    engine = start(extra=BACKGROUND)
    prompt = tokens(N + 7)
    identities: list[dict[str, Any]] = [
        {},
        {"salt": "a"},
        {"salt": "b"},
        {"lora": LoRARequest("a", 1, "/a")},
        {"images": [Image("one", N + 2, 4)]},
        {"images": [Image("two", N + 2, 4)]},
        {"images": [Image("three", N - 3, 6)]},
    ]
    short = [engine.generate(prompt[:9], 3, **each) for each in identities[:4]]
    results = [engine.generate(prompt, 3, **each) for each in identities]
    found = check(engine, *short, *results)
    assert all(
        ends[-1] == result.request.num_tokens - 1
        for ends, result in zip(found, [*short, *results], strict=True)
    )
    keys = {key_after(engine, each, 11)[1] for each in short}
    assert len(keys) == len(short)


# ---- the audit can fail


@pytest.mark.parametrize("fault", ["state", "page", "behind"])
def test_the_audit_sees_a_wrong_byte(fault: str, start: StartEngine) -> None:
    engine = start(extra=BACKGROUND)
    result = engine.generate(tokens(N + 3), max_tokens=5)
    end = check(engine, result)[0][0]
    keys, tail, blocks = key_after(engine, result, end)
    arena = engine.half.connection.arena
    with engine.cache.acquire(0, keys, limit=blocks, tail=tail) as lease:
        kind = "recurrent" if fault == "state" else "attention"
        classes = engine.half.connection.geometry.classes
        entry = next(
            each
            for each in lease.entries
            if each.block_index == blocks and classes[each.class_index].kind == kind
        )
        size = classes[entry.class_index].rank_bytes
        at = size - 1 if fault == "behind" else 0
        slot = entry.slots[at // arena.slot_bytes]
        held = bytearray(arena.read(slot))
        held[at % arena.slot_bytes] ^= 1
        arena.write(slot, bytes(held))
    with pytest.raises(WrongEntry):
        Audit(engine).run()


def test_random_requests_leave_tails_that_are_right(start: StartEngine, script: Script) -> None:
    for seed in range(4):
        rng = random.Random(seed)
        engine = start(
            SHAPES[rng.choice(["gdn", "gdn-window", "two-recurrent-kinds"])],
            async_scheduling=rng.random() < 0.5,
            batched_tokens=rng.choice((12, 40, 200)),
            blocks=rng.choice((48, 96)),
            extra=rng.choice((LARGE, BACKGROUND)),
        )
        script.delay = lambda wanted, rng=rng: rng.choice((0, 0, 3))
        results = []
        for _ in range(24):
            results.append(engine.add(tokens(rng.randint(1, 4 * N), rng.randint(0, 5)), 9))
            for _ in range(rng.randint(0, 6)):
                engine.step()
            if rng.random() < 0.2:
                engine.abort(rng.choice(results))
        engine.run()
        assert sum(map(len, check(engine, *results)))


def test_exact_stops_are_ordinary_numbers_to_everybody_else() -> None:
    class Asked:
        shared_prefix_boundary = 0

    asked: Any = Asked()
    versions.end_step_at(asked, 37, inside=True)
    stop = asked.shared_prefix_boundary
    assert (stop, versions.fork_of(asked), stop // 16, stop % 16, stop * 2) == (37, 37, 2, 5, 74)
    assert 36 < stop < 38 and hash(stop) == hash(37) and stop + 1 == 38 and stop - 5 == 32
    assert 5 + (stop - 5) // 16 * 16 == 37, "as the scheduler cuts"
    assert type(5 + (stop - 5) // 16 * 16) is int
