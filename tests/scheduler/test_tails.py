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
        places = {last, prompt, engine.half.connection.grid.kept_inside(prompt)}
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
    in_process: bool, not_alone: None, start: StartEngine
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
    assert check(engine, result) == [[N + 3]], "the prompt's end alone"
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
    assert check(engine, result) == [[3 * N + 1, result.request.num_tokens - 1]]
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


# Known report: SGLang#22935.
@pytest.mark.parametrize("blocks", [0, 2])
@pytest.mark.parametrize("name", ["gdn", "mamba2"])
def test_a_prompt_that_comes_again_resumes_before_its_last_token_from_the_third_time_on(
    name: str, blocks: int, ready: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last token is computed each time, so the state behind that one is not for it."""
    # A block has 16 tokens here: with the real bound, no place in it is worth a step.
    monkeypatch.setattr(checkpoints, "_LEAST_GAIN", 1)
    engine, prompt = ready(SHAPES[name], extra=BACKGROUND), tokens(blocks * N + 7)
    restored = []
    for _ in range(4):
        restored.append(engine.generate(prompt, max_tokens=1).restored_tokens)
        engine.forget_local()
    assert restored == [0, blocks * N, len(prompt) - 1, len(prompt) - 1]
    longer = engine.generate([*prompt, 1, 2], max_tokens=1)
    assert longer.restored_tokens == len(prompt), "lookups that ended before it took nothing away"
    check(engine, longer)


@WAYS
def test_a_hint_asks_for_a_tail(extra: Any, ready: StartEngine) -> None:
    engine = ready(extra=extra)
    hinted = engine.generate(tokens(3 * N), max_tokens=2, hints={"checkpoint_at": [N + 5]})
    assert N + 5 in check(engine, hinted)[0]


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
