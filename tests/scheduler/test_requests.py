"""Requests and transfers that end in every order: nothing leaks, nothing stale is read."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorProm
from vllm.lora.request import LoRARequest
from vllm.v1.core.block_pool import BlockPool

from hybrid_pages import BudgetError
from simulation.copies import Script
from simulation.engine import Engine, StartEngine
from simulation.shapes import BLOCK_TOKENS as N
from simulation.workload import Workload

BACKGROUND = {"store_mode": "background"}


def tokens(count: int, seed: int = 0) -> list[int]:
    return Workload(random.Random(seed)).fresh(count)


def counters(engine: Engine) -> dict[str, float]:
    return engine.connector.scheduler.stats()["counters"]


def steps(engine: Engine, count: int) -> None:
    for _ in range(count):
        engine.step()


def late(script: Script, kind: str, polls: int) -> None:
    """Copies of this kind move their bytes so many polls after they were asked for."""
    script.delay = lambda wanted: polls if wanted == kind else 0


def test_eight_concurrent_requests_that_share_a_prefix(start: StartEngine) -> None:
    engine = start(blocks=200)
    shared = tokens(5 * N + 2)
    engine.generate(shared + tokens(3, 1))
    assert engine.reset_prefix_cache()
    results = [engine.add(shared + tokens(10 + i, 10 + i)) for i in range(8)]
    engine.run()
    engine.check_idle()
    assert sum(result.restored_tokens for result in results) >= 5 * N


def crowd_out(engine: Engine, script: Script, prompt: list[int]) -> None:
    """Lets a prompt's source blocks be wanted by other requests before they are copied."""
    late(script, "store", 12)
    first = engine.add(prompt, max_tokens=1)
    while not first.done:
        engine.step()
    for seed in range(3):
        engine.add(tokens(12 * N, 100 + seed), max_tokens=2)
    engine.run()
    late(script, "store", 0)
    assert engine.reset_prefix_cache()


def test_source_blocks_reallocated_while_they_are_stored_hold_what_was_stored(
    start: StartEngine, script: Script
) -> None:
    engine = start(blocks=40, extra=BACKGROUND)
    prompt = tokens(6 * N + 1)
    crowd_out(engine, script, prompt)
    assert engine.generate(prompt).restored_tokens == 6 * N
    engine.check_idle()


def test_without_pins_the_simulation_sees_wrong_bytes(
    start: StartEngine, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(blocks=40, extra=BACKGROUND)
    stores = engine.connector.scheduler.connection.stores
    blocks = [SimpleNamespace(ref_cnt=1) for _ in stores.pool.blocks]  # of no use to vLLM
    monkeypatch.setattr(stores, "pool", SimpleNamespace(blocks=blocks))
    prompt = tokens(6 * N + 1)
    crowd_out(engine, script, prompt)
    with pytest.raises(AssertionError, match="layer"):
        engine.generate(prompt)


def test_pins_hold_blocks_only_while_a_store_runs(start: StartEngine, script: Script) -> None:
    late(script, "store", 6)
    engine = start(extra=BACKGROUND)
    pool: BlockPool = engine.scheduler.kv_cache_manager.block_pool
    request = engine.add(tokens(4 * N + 1), max_tokens=1)
    while not request.done:
        engine.step()
    pinned = engine.plan.num_blocks - 1 - pool.get_num_free_blocks()
    # Four pages, and three groups' state at the last boundary; the page and state behind it.
    assert pinned == (4 + 3) + (1 + 3)
    assert engine.connector.has_pending_push_work()
    assert engine.connector.has_pending_block_frees()
    engine.run()
    engine.check_idle()


def test_slots_being_loaded_are_not_given_to_stores(start: StartEngine, script: Script) -> None:
    engine = start(blocks=96, extra=BACKGROUND | {"host_gb": 0.00004})
    prompt = tokens(5 * N + 1)
    engine.generate(prompt, max_tokens=1)
    assert engine.reset_prefix_cache()
    late(script, "load", 20)
    restored = engine.add(prompt)
    for seed in range(1, 8):  # far more than the budget holds
        engine.add(tokens(6 * N, seed), max_tokens=2)
    engine.run()
    engine.check_idle()
    assert restored.restored_tokens == 5 * N
    assert counters(engine)["evicted_entries:pages"] > 0


@pytest.mark.parametrize("wait", [0, 1, 2, 5, 9])
def test_a_request_aborted_while_its_load_is_in_flight(
    wait: int, start: StartEngine, script: Script
) -> None:
    engine = start(blocks=40)
    prompt = tokens(6 * N + 1)
    engine.generate(prompt)
    assert engine.reset_prefix_cache()
    late(script, "load", 8)
    doomed = engine.add(prompt)
    others = [engine.add(tokens(4 * N, seed), max_tokens=6) for seed in (1, 2)]
    steps(engine, wait)
    engine.abort(doomed)
    engine.run()
    engine.check_idle()
    assert all(other.finish == "length" for other in others)
    assert engine.reset_prefix_cache()
    assert engine.generate(prompt).restored_tokens == 6 * N


@pytest.mark.parametrize("wait", range(1, 6))
def test_a_request_aborted_while_its_store_is_in_flight(
    wait: int, start: StartEngine, script: Script
) -> None:
    late(script, "store", 4)
    engine = start(blocks=40, batched_tokens=2 * N, extra=BACKGROUND)
    prompt = tokens(6 * N + 1)
    doomed = engine.add(prompt)
    steps(engine, wait)
    engine.abort(doomed)
    engine.add(tokens(8 * N, 1), max_tokens=8)
    engine.run()
    engine.check_idle()
    assert engine.reset_prefix_cache()
    engine.generate(prompt)
    engine.check_idle()


def run_until_after_a_preemption(engine: Engine) -> None:
    """Four requests in a pool too small for them; vLLM's own cache keeps nothing meanwhile."""
    results = [engine.add(tokens(5 * N + i, i), max_tokens=40) for i in range(4)]
    while not any(result.request.num_preemptions for result in results):
        assert engine.step(), "expected a preemption"
        engine.forget_local()
    engine.run()
    engine.check_idle()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_preempted_request_resumes_from_what_it_stored(
    asynchronous: bool, start: StartEngine
) -> None:
    engine = start(blocks=36, async_scheduling=asynchronous)
    run_until_after_a_preemption(engine)
    assert counters(engine).get("preempted_hit_tokens:host", 0) > 0


@pytest.mark.parametrize("reset_all", [False, True])
def test_reset_clears_the_connector_only_when_asked(reset_all: bool, start: StartEngine) -> None:
    engine = start()
    prompt = tokens(4 * N + 1)
    engine.generate(prompt)
    assert engine.reset_prefix_cache(reset_connector=reset_all)
    assert engine.generate(prompt).restored_tokens == (0 if reset_all else 4 * N)


def test_reset_while_a_load_is_in_flight(start: StartEngine, script: Script) -> None:
    engine = start()
    prompt = tokens(6 * N + 1)
    engine.generate(prompt)
    assert engine.reset_prefix_cache()
    late(script, "load", 5)
    engine.add(prompt)
    engine.step()
    assert engine.connector.reset_cache()
    for seed in range(1, 5):
        engine.add(tokens(5 * N, seed))
    engine.run()
    engine.check_idle()


def test_reset_while_a_store_is_in_flight_leaves_it_unpublished(
    start: StartEngine, script: Script
) -> None:
    late(script, "store", 5)
    engine = start(extra=BACKGROUND)
    prompt = tokens(3 * N + 1)
    request = engine.add(prompt, max_tokens=1)
    while not request.done:
        engine.step()
    assert engine.connector.reset_cache()
    engine.run()
    engine.check_idle()
    stats = engine.cache.stats()
    assert (stats["pages"], stats["checkpoints"]) == (0, 0)
    assert stats["free_slots"] == stats["slots"]


def test_a_running_request_is_preempted_by_reset_and_stays_right(start: StartEngine) -> None:
    engine = start(async_scheduling=False)  # vLLM does not while a step is in flight
    request = engine.add(tokens(5 * N + 1), max_tokens=30)
    for _ in range(4):
        steps(engine, 6)
        assert engine.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    engine.run()
    engine.check_idle()
    assert request.request.num_preemptions == 4


# Known report: LMCache#4825.
def test_salts_do_not_share(start: StartEngine) -> None:
    engine = start()
    prompt = tokens(4 * N + 1)
    engine.generate(prompt, salt="one")
    assert engine.reset_prefix_cache()
    assert engine.generate(prompt, salt="two").restored_tokens == 0
    assert engine.generate(prompt).restored_tokens == 0
    assert engine.reset_prefix_cache()
    assert engine.generate(prompt, salt="one").restored_tokens == 4 * N


def test_adapters_of_one_name_and_other_ids_do_not_share(start: StartEngine) -> None:
    engine = start()
    prompt = tokens(4 * N + 1)
    first, second = (LoRARequest("adapter", number, "/adapters/one") for number in (1, 2))
    engine.generate(prompt, lora=first)
    assert engine.reset_prefix_cache()
    assert engine.generate(prompt, lora=second).restored_tokens == 0
    assert engine.reset_prefix_cache()
    assert engine.generate(prompt).restored_tokens == 0
    assert engine.reset_prefix_cache()
    assert engine.generate(prompt, lora=first).restored_tokens == 4 * N


def test_a_budget_too_small_for_one_prompt_keeps_what_it_can(start: StartEngine) -> None:
    engine = start(extra={"host_gb": 0.00002})
    prompt = tokens(12 * N + 1)
    for _ in range(3):
        engine.generate(prompt)
        assert engine.reset_prefix_cache()
    short = tokens(2 * N + 1, 1)
    engine.generate(short)
    assert engine.reset_prefix_cache()
    assert engine.generate(short).restored_tokens == 2 * N
    engine.check_idle()


def test_a_budget_below_one_entry_of_each_kind_is_refused(start: StartEngine) -> None:
    with pytest.raises(BudgetError):
        start(extra={"host_gb": 0.000001})


def test_sleep_and_wake_up_keep_what_was_stored(start: StartEngine) -> None:
    engine = start(extra=BACKGROUND)
    prompt = tokens(5 * N + 1)
    engine.generate(prompt)
    assert engine.reset_prefix_cache()
    for runner in engine.runners:
        runner.connector.unregister_kv_caches()
        runner.connector.unregister_kv_caches()
        runner.memory.forget()
        runner.connector.restore_kv_caches()
        runner.connector.restore_kv_caches()
    assert engine.generate(prompt).restored_tokens == 5 * N
    engine.check_idle()


def test_a_name_used_again_while_its_store_is_in_flight(start: StartEngine, script: Script) -> None:
    late(script, "store", 8)
    engine = start(extra=BACKGROUND)
    first, second = tokens(5 * N + 1), tokens(7 * N + 1, 1)
    engine.add(first, max_tokens=1, name="same")
    while not engine.results["same"].done:
        engine.step()
    again = engine.add(second, name="same")
    engine.run()
    again.check()
    engine.forget_local()  # whose blocks of the first one have no text any more
    engine.check_idle()
    for prompt in (first, second):
        assert engine.reset_prefix_cache()
        assert engine.generate(prompt).restored_tokens == len(prompt) - 1


def test_a_restored_request_goes_on_and_stores_what_it_adds(start: StartEngine) -> None:
    engine = start()
    conversation = tokens(3 * N + 5)
    for turn in range(1, 5):
        assert engine.reset_prefix_cache()
        answer = engine.generate(conversation, max_tokens=20)
        assert (answer.restored_tokens > 0) == (turn > 1)
        conversation += answer.tokens + tokens(N, turn)
    engine.check_idle()


def test_prometheus_shows_what_was_counted(start: StartEngine) -> None:
    engine = start()
    prompt = tokens(4 * N + 1)
    engine.generate(prompt)
    assert engine.reset_prefix_cache()
    engine.generate(prompt)
    prometheus = KVConnectorProm(engine.config, ["engine"], {0: ["0"]})
    for statistics in engine.statistics:
        if statistics.kv_connector_stats:
            prometheus.observe(statistics.kv_connector_stats, 0)
    host = {"engine": "0", "source": "host"}
    assert REGISTRY.get_sample_value("vllm:hybrid_pages_hit_tokens_total", host) == 4 * N
    pages = {"engine": "0", "kind": "pages"}
    ends = 2  # inside blocks: of the answer, and of the second prompt
    assert REGISTRY.get_sample_value("vllm:hybrid_pages_resident_entries", pages) == 4 + ends


def test_what_vllm_is_told_adds_up(start: StartEngine) -> None:
    engine = start(blocks=48)
    results = Workload(random.Random(3)).run(engine, 30)
    told: dict[str, float] = {}
    for statistics in engine.statistics:
        for key, amount in (statistics.kv_connector_stats or {}).get("counters", {}).items():
            told[key] = told.get(key, 0) + amount
    counted = counters(engine)
    assert {key: told[key] for key in told} == {key: counted[key] for key in told}
    scheduled = [result for result in results if result.tokens or not result.aborted]
    assert len(scheduled) <= told["lookups"] <= len(results)
    assert told["hit_tokens:host"] >= sum(result.restored_tokens for result in scheduled)
