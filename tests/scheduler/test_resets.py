"""A reset means it: what was computed before is not published afterwards, by nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm.lora.request import LoRARequest

from simulation.copies import Script
from simulation.engine import Engine, Result, StartEngine
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from test_boundaries import tokens

ROOM = {"host_gb": 0.02}
PROMPT = tokens(9 * N + 5)


def counters(engine: Engine) -> dict[str, float]:
    return engine.connector.scheduler.stats()["counters"]


def entries(engine: Engine) -> int:
    stats = engine.cache.stats()
    return stats["pages"] + stats["windows"] + stats["checkpoints"]


def run_to(engine: Engine, result: Result) -> None:
    """As a front end does that stops stepping when its last request has ended."""
    while not result.done:
        engine.step()


# resets of everything


@pytest.mark.parametrize("mode", ["align", "all", "adaptive"])
@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("name", ["gdn", "mamba2", "gdn-window", "attention-only"])
def test_a_request_that_runs_through_a_reset_publishes_nothing(
    name: str, asynchronous: bool, mode: str, start: StartEngine
) -> None:
    for steps in (1, 2, 3, 6, 12):
        engine = start(
            SHAPES[name],
            async_scheduling=asynchronous,
            batched_tokens=2 * N,
            extra=ROOM | {"checkpoint_mode": mode},
        )
        engine.add(PROMPT, 2 * N)
        for _ in range(steps):
            engine.step()
        # vLLM cannot empty its own cache now, and says so.
        assert not engine.reset_prefix_cache(reset_connector=True)
        engine.update_weights()
        engine.run()
        assert entries(engine) == 0
        # Later the policy may want nothing more of this request.
        assert counters(engine).get("skipped_entries:stale", 0) > 0 or steps > 3
        assert engine.reset_prefix_cache()
        assert engine.generate(PROMPT).restored_tokens == 0
        assert engine.reset_prefix_cache()
        assert engine.generate(PROMPT).restored_tokens == 9 * N
        engine.check_idle()


def test_a_request_that_is_being_loaded_through_a_reset_publishes_nothing(
    start: StartEngine, script: Script
) -> None:
    engine = start(extra=ROOM)
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    script.delay = lambda kind: 5 if kind == "load" else 0
    loading = engine.add(PROMPT + tokens(3 * N, 1))
    engine.step()
    assert not engine.reset_prefix_cache(reset_connector=True)
    engine.run()
    loading.check()
    assert loading.restored_tokens == 9 * N
    assert entries(engine) == 0
    engine.check_idle()


def test_what_vllm_still_holds_from_before_a_reset_is_not_published(start: StartEngine) -> None:
    engine = start(extra=ROOM)
    engine.generate(PROMPT)
    running = engine.add(tokens(3 * N, 7), max_tokens=40)
    for _ in range(4):
        engine.step()
    assert not engine.reset_prefix_cache(reset_connector=True)
    # A local hit on old bytes, and what is computed behind it.
    late = engine.generate(PROMPT + tokens(3 * N, 1))
    assert late.local_tokens == 9 * N and running.done
    assert entries(engine) == 0
    # Computed from its first token on: new.
    fresh = tokens(4 * N + 3, 8)
    engine.generate(fresh)
    assert engine.depths(fresh)[-1:] == [4]
    assert engine.reset_prefix_cache()
    engine.generate(PROMPT)
    assert engine.depths(PROMPT)[-1:] == [9]
    engine.check_idle()


def test_a_preempted_request_publishes_what_it_computes_anew(start: StartEngine) -> None:
    engine = start(batched_tokens=2 * N, async_scheduling=False, extra=ROOM)
    engine.add(PROMPT)
    for _ in range(3):
        engine.step()
    assert engine.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    engine.run()
    assert engine.depths(PROMPT)[-1:] == [9]
    assert "skipped_entries:stale" not in counters(engine)
    engine.check_idle()


def test_stores_in_flight_at_a_reset_are_not_published(start: StartEngine, script: Script) -> None:
    script.delay = lambda kind: 8
    engine = start(extra=ROOM | {"store_mode": "background"})
    run_to(engine, engine.add(PROMPT))
    assert not engine.reset_prefix_cache(reset_connector=True)
    engine.run()
    assert entries(engine) == 0
    engine.check_idle()


# resets of vLLM's own cache alone


@pytest.mark.parametrize("follow", [False, True])
def test_a_plain_reset_leaves_the_store_alone_unless_told_otherwise(
    follow: bool, start: StartEngine
) -> None:
    engine = start(extra=ROOM | {"follow_engine_resets": follow})
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    if follow:
        engine.update_weights()
    assert engine.generate(PROMPT).restored_tokens == (0 if follow else 9 * N)
    assert engine.reset_prefix_cache()
    assert engine.generate(PROMPT).restored_tokens == (0 if follow else 9 * N)
    engine.check_idle()


def test_a_plain_reset_that_vllm_refuses_is_not_followed(start: StartEngine) -> None:
    engine = start(extra=ROOM | {"follow_engine_resets": True})
    engine.generate(PROMPT)
    engine.add(tokens(N, 3), max_tokens=20)
    for _ in range(3):
        engine.step()
    assert not engine.reset_prefix_cache()
    engine.run()
    assert engine.depths(PROMPT)[-1:] == [9]
    engine.check_idle()


# engines that nobody steps while they are idle


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("in_process", [True, False])
def test_an_idle_engine_in_one_process_has_no_stores_in_flight(
    in_process: bool, asynchronous: bool, start: StartEngine, script: Script
) -> None:
    script.delay = lambda kind: 1000 if kind == "store" else 0
    engine = start(
        in_process=in_process,
        async_scheduling=asynchronous,
        extra=ROOM | {"store_mode": "background", "checkpoint_mode": "all"},
    )
    for length in (9 * N + 5, 3 * N):
        run_to(engine, engine.add(tokens(length, length), 2 * N))
        # With stores in flight vLLM's pool is not free, and it can neither be reset nor sleep.
        assert engine.reset_prefix_cache() is in_process
        if not in_process:
            return
    assert engine.generate(PROMPT[:1]).done
    assert engine.depths(tokens(3 * N, 3 * N))[-1:] == [3]
    script.delay = lambda kind: 0
    engine.run()
    engine.check_idle()


def test_requests_that_others_wait_for_do_not_wait_for_stores(
    start: StartEngine, script: Script
) -> None:
    script.delay = lambda kind: 10 if kind == "store" else 0
    engine = start(in_process=True, extra=ROOM | {"store_mode": "background"})
    first = engine.add(PROMPT)
    engine.add(tokens(2 * N, 5), max_tokens=30)
    run_to(engine, first)
    assert engine.connector.scheduler.storing
    engine.run()
    engine.check_idle()


# adapters


def adapter(path: Path | str, **more: Any) -> LoRARequest:
    return LoRARequest("a", 1, str(path), **more)


def visit(engine: Engine, lora: LoRARequest) -> int:
    assert engine.reset_prefix_cache()
    return engine.generate(PROMPT, lora=lora).restored_tokens


def test_an_adapter_reloaded_in_place_starts_a_new_namespace(
    start: StartEngine, tmp_path: Path
) -> None:
    engine = start(extra=ROOM)
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(b"first")
    assert [visit(engine, adapter(tmp_path)) for _ in range(2)] == [0, 9 * N]
    weights.write_bytes(b"other")
    engine.update_weights("a")
    reload = adapter(tmp_path, load_inplace=True)
    assert [visit(engine, reload) for _ in range(2)] == [0, 9 * N]  # servers keep the flag
    assert visit(engine, adapter(tmp_path)) == 9 * N
    weights.write_bytes(b"third")
    engine.update_weights("a")
    assert visit(engine, reload) == 0
    assert visit(engine, adapter(tmp_path)) == 9 * N
    engine.check_idle()


def test_without_files_to_look_at_every_reload_is_another_adapter(start: StartEngine) -> None:
    engine = start(extra=ROOM)
    for _ in range(3):
        assert visit(engine, adapter("/hub/a", load_inplace=True)) == 0
        engine.update_weights("a")
    engine.check_idle()


def test_vllms_hits_on_an_adapters_earlier_weights_are_not_published(
    start: StartEngine, tmp_path: Path
) -> None:
    engine = start(extra=ROOM)
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(b"first")
    engine.generate(PROMPT, lora=adapter(tmp_path))
    weights.write_bytes(b"other")
    # vLLM does not drop the blocks of the earlier weights (it logs that).
    stale = engine.generate(PROMPT + tokens(3 * N), lora=adapter(tmp_path, load_inplace=True))
    assert stale.local_tokens == 9 * N
    assert counters(engine)["skipped_entries:stale"] > 0
    engine.update_weights("a")
    assert visit(engine, adapter(tmp_path)) == 0
    engine.check_idle()
