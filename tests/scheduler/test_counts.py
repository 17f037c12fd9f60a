"""Figures: every request is counted once, by how it ended."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import pytest
from vllm.lora.request import LoRARequest
from vllm.v1.request import Request

from hybrid_pages.vllm import versions
from hybrid_pages.vllm.scheduler import half
from hybrid_pages.vllm.scheduler.requests.tracked import Lookup, Tracked, namespace_identity
from simulation.copies import Script
from simulation.engine import Engine, StartEngine
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from test_boundaries import tokens
from test_requests import run_until_after_a_preemption


def counters(engine: Engine) -> dict[str, float]:
    return engine.half.stats()["counters"]


def hits(engine: Engine) -> dict[str, float]:
    """Tokens not recomputed, by source."""
    found = counters(engine).items()
    return {key.split(":")[1]: count for key, count in found if key.startswith("hit_tokens:")}


def hits_that_vllm_counts(engine: Engine) -> Counter[str]:
    """Tokens that were loaded, by source, as vLLM's own metrics say it."""
    found = Counter[str]()
    for stats in engine.statistics:
        for source, count in stats.connector_prefix_cache_stats.hits_by_source.items():
            found[source.value] += count
    return found


def test_a_failed_load_is_a_miss(start: StartEngine, script: Script) -> None:
    engine = start()
    prompt = tokens(4 * N + 3)
    engine.generate(prompt)
    engine.forget_local()
    script.fault = lambda kind: "torn" if kind == "load" else None
    engine.generate(prompt)
    assert hits(engine) == {}
    assert counters(engine)["lookups"] == 2
    assert counters(engine)["failures:load"] == 1
    engine.check_idle()


def test_a_load_that_vllm_turns_down_is_counted(start: StartEngine) -> None:
    """As vLLM 0.33 does with ``--enable-return-routed-experts``, if it lacks their experts."""
    engine = start()
    prompt = tokens(4 * N + 3)
    engine.generate(prompt)
    engine.forget_local()
    offer = engine.connector.get_num_new_matched_tokens

    def turned_down(request: Request, local_tokens: int) -> tuple[int, bool]:
        assert offer(request, local_tokens) == (4 * N, True)
        return 0, False

    with mock.patch.object(engine.connector, "get_num_new_matched_tokens", turned_down):
        assert engine.generate(prompt).restored_tokens == 0
    assert counters(engine)["skipped_loads:turned_down"] == 1
    engine.forget_local()
    assert engine.generate(prompt).restored_tokens == 4 * N
    assert counters(engine)["skipped_loads:turned_down"] == 1
    engine.check_idle()


def test_a_failed_load_beside_a_local_hit_counts_that_hit_alone(
    start: StartEngine, script: Script
) -> None:
    engine = start(SHAPES["attention-only"])
    prompt = tokens(4 * N + 3)
    engine.generate(prompt)
    engine.forget_local()
    engine.generate(prompt[: 2 * N + 1])  # from the host; vLLM's own cache has two blocks again
    before = hits(engine)
    # As a worker says whose connector is the engine's own.
    engine.half.connection.agreement.reports[0].alone = True
    script.fault = lambda kind: "before" if kind == "load" else None
    engine.generate(prompt)
    assert hits(engine) == {**before, "local": 2 * N}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_preempted_request_counts_once(asynchronous: bool, start: StartEngine) -> None:
    engine = start(blocks=36, async_scheduling=asynchronous)
    run_until_after_a_preemption(engine)
    assert counters(engine)["lookups"] == 4
    assert counters(engine)["lookup_tokens"] == sum(5 * N + i for i in range(4))
    assert counters(engine)["preempted_hit_tokens:host"]
    assert hits(engine) == {}


def test_a_request_that_never_ran_is_not_counted(start: StartEngine) -> None:
    engine = start(requests=1)
    running = engine.add(tokens(2 * N + 1), max_tokens=20)
    waiting = engine.add(tokens(2 * N + 1, 1))
    for _ in range(4):
        engine.step()
    engine.abort(waiting)
    engine.run()
    assert running.done
    assert counters(engine)["lookups"] == 1


@pytest.mark.parametrize("unit", [4, 8])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_local_hit_that_ends_inside_a_block_leaves_the_deeper_one_on_the_host(
    start: StartEngine, unit: int, asynchronous: bool
) -> None:
    engine = start(match_unit=unit, async_scheduling=asynchronous)
    deep = tokens(4 * N + 3)
    short = deep[: 2 * N + 9]
    engine.generate(deep)
    engine.forget_local()
    engine.generate(short)
    again = engine.generate(deep[: 2 * N + 11])  # the host has the end of the short one
    assert (again.local_tokens, again.restored_tokens) == (2 * N, 9)
    result = engine.generate(deep)
    assert (result.local_tokens, result.restored_tokens) == (2 * N, 2 * N)
    assert hits(engine) == {"local": 4 * N, "host": 9 + 2 * N}
    engine.check_idle()


def test_steering_keeps_a_fork_of_vllm_inside_a_block(start: StartEngine) -> None:
    engine = start(match_unit=4)
    request = engine._request(tokens(8 * N))
    inside = 3 * N + 8
    versions.end_step_at(request, inside)
    tracked = Tracked.of(
        request, engine.cache.namespace(b""), engine.half.connection.keys.none_yet()
    )
    tracked.lookup = Lookup(local=0, hit=0, restorable=0, paged=5 * N)
    tracked.steer({2})
    visited = []
    engine.half.connection.checkpoints.looked_up(tracked)
    for _ in range(3):
        visited.append(versions.fork_of(request))
        engine.half.connection.checkpoints.stepped(tracked, versions.fork_of(request))
    assert visited == [2 * N, inside, 5 * N]


# ---- namespaces


def adapter(number: int) -> LoRARequest:
    return LoRARequest(f"adapter-{number}", number, f"/adapters/{number}")


def test_a_namespace_goes_with_its_last_entry_and_request(start: StartEngine) -> None:
    engine = start()
    prompt = tokens(3 * N + 1)
    numbers = set()
    for number in range(1, 60):
        result = engine.generate(prompt, lora=adapter(number))
        identity = namespace_identity(result.request)
        numbers.add(engine.cache.namespace(identity))
        engine.cache.release_namespace(max(numbers))
        assert engine.connector.reset_cache()
        engine.reset_prefix_cache()
        with pytest.raises(ValueError, match="namespace"):
            engine.cache.lookup(max(numbers), result.request.block_hashes)
    assert len(numbers) == 59, "a number was used again"


def test_a_namespace_stays_while_a_request_uses_it(start: StartEngine) -> None:
    engine = start()
    result = engine.add(tokens(3 * N + 1), 3 * N, lora=adapter(1))
    for _ in range(6):
        engine.step()
    assert engine.connector.reset_cache()
    number = engine.half._requests[result.request.request_id].run.namespace
    assert engine.cache.lookup(number, result.request.block_hashes).blocks == 0
    engine.run()
    result.check()


# ---- pages without a state


def test_prompts_that_found_pages_and_no_state_are_counted_by_reason(start: StartEngine) -> None:
    engine = start(extra={"checkpoint_mode": "align"}, batched_tokens=400)
    shared = tokens(5 * N + 2)
    for visitor in range(3):
        engine.generate(shared + tokens(2 * N, 10 + visitor))
        engine.forget_local()
    assert counters(engine)["missing_states:never_made"] == 2
    assert counters(engine)["missing_state_tokens"] == 2 * 5 * N
    engine.check_idle()


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_figures_go_out_now_and_then_and_when_the_engine_comes_to_rest(
    seconds: float, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half, "_STATS_SECONDS", seconds)
    engine = start(extra={"checkpoint_mode": "all"})
    engine.add(tokens(N + 3), 5 * N)
    told: list[dict[str, dict[str, float]]] = []
    while engine.step():
        reports = (each.kv_connector_stats for each in engine.statistics)
        told += [report for report in reports if report]
        engine.statistics.clear()
    engine.check_idle()
    busy = told[:-1]
    assert len(busy) == 1 if seconds else len(busy) > 2
    whole: Counter[str] = Counter()
    for figures in told:
        whole.update(figures["counters"])
    assert whole == counters(engine)
    assert told[-1]["gauges"]["leased_bytes"] == 0
