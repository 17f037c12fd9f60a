"""After a reset nothing is published that was computed before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request, RequestStatus

import simulation.engine
from hybrid_pages.vllm.scheduler.stale import epochs
from simulation.copies import Script
from simulation.engine import Engine, Result, StartEngine, origin_of
from simulation.function import continuation
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from simulation.speculation import METHODS, Speculation
from test_boundaries import tokens
from test_checkpoints import counters

ROOM = {"host_gb": 0.02}
PROMPT = tokens(9 * N + 5)


def entries(engine: Engine) -> int:
    stats = engine.cache.stats()
    return stats["pages"] + stats["windows"] + stats["checkpoints"]


def run_to(engine: Engine, result: Result) -> None:
    """As a front end does that stops stepping when its last request has ended."""
    while not result.done:
        engine.step()


def load_only(engine: Engine, script: Script, max_tokens: int = 4) -> Result:
    """A request that goes on from the prompt: what it loads is there, and it has not run yet."""
    script.delay = lambda kind: 3 if kind == "load" else 0
    result = engine.add(PROMPT + tokens(3 * N, 1), max_tokens)
    while not engine.scheduler.finished_recving_kv_req_ids:
        engine.step()
    return result


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
    assert loading.restored_tokens == len(PROMPT)
    assert entries(engine) == 0
    engine.check_idle()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("name", ["gdn", "mamba2", "gdn-window", "attention-only"])
def test_a_pause_that_keeps_requests_resets_everything_while_one_is_being_loaded(
    name: str, asynchronous: bool, ranks: int, start: StartEngine, script: Script
) -> None:
    engine = start(SHAPES[name], async_scheduling=asynchronous, ranks=ranks, extra=ROOM)
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    engine.add(tokens(3 * N, 7), max_tokens=60)
    script.delay = lambda kind: 5 if kind == "load" else 0
    loading = engine.add(PROMPT + tokens(3 * N, 1))
    for _ in range(2):
        engine.step()
    assert engine.half.connection.loads.in_flight
    # As `EngineCoreProc.pause_scheduler` does with the mode "keep", once nothing is left to do.
    engine.scheduler.set_pause_state(PauseState.PAUSED_ALL)
    engine.run()
    assert engine.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
    assert entries(engine) == 0
    engine.scheduler.set_pause_state(PauseState.UNPAUSED)
    engine.run()
    assert (loading.local_tokens, loading.restored_tokens) == (0, 0)
    assert "skipped_entries:stale" not in counters(engine)
    assert engine.depths(loading.request.prompt_token_ids)[-1:] == [12]
    engine.check_idle()


@pytest.mark.parametrize("name", ["gdn", "attention-only"])
def test_a_request_that_was_loaded_and_has_not_run_is_computed_anew_after_a_reset(
    name: str, start: StartEngine, script: Script
) -> None:
    engine = start(SHAPES[name], async_scheduling=False, extra=ROOM)
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    loaded = load_only(engine, script)
    for _ in range(2):  # a second reset finds nothing to let go of
        assert engine.reset_prefix_cache(reset_connector=True)
    engine.run()
    loaded.check()
    assert "skipped_entries:stale" not in counters(engine)
    assert engine.depths(loaded.request.prompt_token_ids)[-1:] == [12]
    engine.check_idle()


def test_a_reset_that_vllm_refuses_leaves_what_was_loaded_alone(
    start: StartEngine, script: Script
) -> None:
    engine = start(async_scheduling=False, extra=ROOM)
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    running = engine.add(tokens(3 * N, 7), max_tokens=60)
    engine.step()
    loaded = load_only(engine, script)
    assert not engine.reset_prefix_cache()
    run_to(engine, loaded)
    assert not running.done and loaded.restored_tokens == len(PROMPT)
    engine.run()
    assert counters(engine)["lookups"] == 3
    engine.check_idle()


def test_a_reset_after_the_cache_has_stopped_lets_go_of_what_was_loaded_alone(
    start: StartEngine, script: Script
) -> None:
    engine = start(async_scheduling=False, extra=ROOM)
    engine.generate(PROMPT)
    assert engine.reset_prefix_cache()
    load_only(engine, script, max_tokens=30)
    engine.half._stop(RuntimeError("stopped"))
    assert engine.reset_prefix_cache()
    for _ in range(6):  # what runs keeps its blocks
        engine.step()
    assert engine.scheduler.running and not engine.reset_prefix_cache()
    engine.run()
    for result in engine.results.values():
        result.check()


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


def test_after_a_refused_reset_new_prompts_are_stored_and_loaded(start: StartEngine) -> None:
    engine = start(extra=ROOM)
    engine.generate(tokens(4 * N, 9))
    engine.add(tokens(3 * N, 7), max_tokens=120)
    for _ in range(4):
        engine.step()
    assert not engine.reset_prefix_cache(reset_connector=True)
    said = PROMPT
    for turn in range(3):  # each turn hits what the last one left, all of it new
        first = engine.add(said, 4)
        run_to(engine, first)
        assert engine.depths(said)[-1] == (len(said) - 1) // N
        said = said + first.tokens + tokens(2 * N, turn)
    engine.forget_local()
    again = engine.add(said + tokens(3 * N, 4), 2)
    run_to(engine, again)
    assert (again.local_tokens, again.restored_tokens > 9 * N) == (0, True)
    engine.run()
    assert engine.depths(again.request.prompt_token_ids)[-1] == (len(said) + 3 * N - 1) // N
    engine.check_idle()


# sessions that stream their input: vLLM takes the last token of an answer back


def session(engine: Engine, prompt: list[int], stop: int) -> Request:
    request = Request(
        request_id="session",
        prompt_token_ids=list(prompt),
        sampling_params=SamplingParams(
            temperature=0.0,
            max_tokens=500,
            ignore_eos=True,
            detokenize=False,
            stop_token_ids=[stop],
        ),
        pooling_params=None,
        block_hasher=engine._hasher,
        resumable=True,
    )
    request.sampling_params.update_from_generation_config({}, None)
    return request


@pytest.mark.parametrize("mode", ["all", "adaptive"])
@pytest.mark.parametrize("name", ["attention-only", "gdn", "mamba2"])
def test_a_block_with_a_token_that_was_taken_back_is_not_published(
    name: str, mode: str, start: StartEngine
) -> None:
    engine = start(SHAPES[name], extra=ROOM | {"checkpoint_mode": mode})
    prompt = tokens(2 * N + 3)
    origin = origin_of(engine._request(prompt), {})
    # The answer stops one token before a boundary, and a step beyond it is in flight.
    answer = continuation(origin, prompt, 4 * N - len(prompt))
    assert answer[-1] not in answer[:-1]
    request = session(engine, prompt, answer[-1])
    engine.results["session"] = Result(request, origin, aborted=True)
    engine._origins["session"] = origin
    engine.scheduler.add_request(request)
    while request.status != RequestStatus.WAITING_FOR_STREAMING_REQ:
        engine.step()
    engine.scheduler.add_request(session(engine, tokens(N, 99), answer[-1]))
    assert len(request.block_hashes) == 4, "the block has another key now"
    engine.scheduler.finish_requests("session", RequestStatus.FINISHED_ABORTED)
    engine.run()
    engine.results["session"].tokens = []
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


# engines that do not step while they are idle


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("in_process", [True, False])
def test_an_idle_engine_in_one_process_can_be_reset(
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
        assert engine.half.storing
        assert engine.reset_prefix_cache() is in_process
        if not in_process:
            return
    assert engine.generate(PROMPT[:1]).done
    assert engine.depths(tokens(3 * N, 3 * N))[-1:] == [3]
    script.delay = lambda kind: 0
    engine.run()
    engine.check_idle()


@pytest.mark.parametrize("delay", [0, 1000])
@pytest.mark.parametrize("runner", [1, 2])
@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_an_idle_engine_in_one_process_can_be_reset_behind_drafts(
    method: str,
    asynchronous: bool,
    runner: int,
    delay: int,
    start: StartEngine,
    script: Script,
) -> None:
    script.delay = lambda kind: delay if kind == "store" else 0
    engine = start(
        in_process=True,
        async_scheduling=asynchronous,
        runner_version=runner,
        speculation=Speculation(method, 2),
        extra=ROOM | {"store_mode": "background", "checkpoint_mode": "all"},
    )
    for seed, length in enumerate((9 * N + 5, 3 * N, 5 * N + 1, 2 * N + 9)):
        beside = engine.add(tokens(length, seed + 10), 2 * N + seed)
        run_to(engine, engine.add(tokens(length, seed), 2 * N + seed))
        run_to(engine, beside)
        assert engine.reset_prefix_cache() and not engine.half.storing
    script.delay = lambda kind: 0
    engine.run()
    assert "failures:worker_metadata" not in counters(engine)
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


@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_last_token_of_an_answer_waits_for_no_store(
    asynchronous: bool, start: StartEngine, script: Script
) -> None:
    script.delay = lambda kind: 6
    engine = start(
        in_process=True,
        async_scheduling=asynchronous,
        extra=ROOM | {"store_mode": "background", "checkpoint_mode": "all"},
    )
    wait = mock.Mock(wraps=engine.runners[0].connector.worker.engine.wait)
    with mock.patch.object(engine.runners[0].connector.worker.engine, "wait", wait):
        result = engine.add(tokens(2 * N + 3), 3 * N - 2)
        run_to(engine, result)
        assert engine.half.storing and script.of("store"), "it has begun, and no one waits for it"
        engine.run()  # an engine with a loop of its own steps on while something is stored
    wait.assert_not_called()
    assert engine.depths(result.request.prompt_token_ids + result.tokens)[-1] == 5
    engine.check_idle()


def test_a_request_finds_what_was_stored_while_nothing_stepped(
    start: StartEngine, script: Script
) -> None:
    script.delay = lambda kind: 1
    extra = ROOM | {"checkpoint_mode": "all", "store_mode": "background"}
    engine = start(in_process=True, requests=1, extra=extra)
    for seed in range(3):
        first = engine.add(tokens(2 * N + 3, seed), 3 * N - 2)
        run_to(engine, first)
        said = first.request.prompt_token_ids + first.tokens
        engine.forget_local()
        again = engine.add(said + tokens(N, 9), 1)
        run_to(engine, again)
        assert again.restored_tokens >= 5 * N
    engine.run()
    assert "failures:worker_metadata" not in counters(engine)
    engine.check_idle()


def test_two_engines_of_one_name_in_one_process_end_their_own_stores(
    start: StartEngine, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(simulation.engine.CONNECTOR, "engine_id", "one name")
    script.delay = lambda kind: 1000 if kind == "store" else 0
    options: dict[str, Any] = {
        "in_process": True,
        "extra": ROOM | {"store_mode": "background", "checkpoint_mode": "all"},
    }
    one, other = start(**options), start(**options)
    other.add(tokens(9 * N + 5, 2), 2 * N)
    for _ in range(8):
        other.step()
    run_to(one, one.add(PROMPT, 2))
    script.delay = lambda kind: 0
    for engine in (one, other):
        engine.run()
        engine.check_idle()


def test_an_error_while_stores_are_ended_does_not_reach_vllm(
    start: StartEngine, script: Script
) -> None:
    script.delay = lambda kind: 1000 if kind == "store" else 0
    engine = start(in_process=True, extra=ROOM | {"store_mode": "background"})
    engine.add(PROMPT, 3)
    for _ in range(3):
        engine.step()
    with mock.patch.object(engine.runners[0].connector.worker.engine, "wait", side_effect=OSError):
        assert not engine.reset_prefix_cache()
    assert counters(engine)["failures:settle"] == 1
    script.delay = lambda kind: 0
    engine.run()
    engine.check_idle()


# adapters


def adapter(path: Path | str, **more: Any) -> LoRARequest:
    return LoRARequest("a", 1, str(path), **more)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """The file of an adapter in ``tmp_path``, with its first weights."""
    file = tmp_path / "adapter_model.safetensors"
    file.write_bytes(b"first")
    return file


def visit(engine: Engine, lora: LoRARequest) -> int:
    assert engine.reset_prefix_cache()
    return engine.generate(PROMPT, lora=lora).restored_tokens


def test_an_adapter_reloaded_in_place_starts_a_new_namespace(
    start: StartEngine, tmp_path: Path, weights: Path
) -> None:
    engine = start(extra=ROOM)
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
    start: StartEngine, tmp_path: Path, weights: Path
) -> None:
    engine = start(extra=ROOM)
    engine.generate(PROMPT, lora=adapter(tmp_path))
    weights.write_bytes(b"other")
    # vLLM does not drop the blocks of the earlier weights (it logs that).
    stale = engine.generate(PROMPT + tokens(3 * N), lora=adapter(tmp_path, load_inplace=True))
    assert stale.local_tokens == 9 * N
    assert counters(engine)["skipped_entries:stale"] > 0
    engine.update_weights("a")
    assert visit(engine, adapter(tmp_path)) == 0
    engine.check_idle()


def test_a_server_that_keeps_the_flag_still_stores(
    start: StartEngine, tmp_path: Path, weights: Path
) -> None:
    engine = start(extra=ROOM)
    said, lora = tokens(3 * N + 5), adapter(tmp_path, load_inplace=True)
    for turn in range(3):
        result = engine.generate(said, 2 * N + 3, lora=lora)
        said = said + result.tokens + tokens(7, turn)
    assert "skipped_entries:stale" not in counters(engine)
    assert engine.reset_prefix_cache()
    assert engine.generate(said, lora=lora).restored_tokens >= 7 * N
    engine.check_idle()


def test_a_forgotten_adapter_loses_its_hits_and_finds_no_earlier_weights(
    start: StartEngine, tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochs, "_MOST_LORAS", 1)
    engine = start(extra=ROOM)
    assert [visit(engine, adapter(tmp_path)) for _ in range(2)] == [0, 9 * N]
    weights.write_bytes(b"other")
    engine.update_weights("a")
    reload = adapter(tmp_path, load_inplace=True)
    assert [visit(engine, reload) for _ in range(2)] == [0, 9 * N]
    engine.generate(PROMPT, lora=LoRARequest("b", 2, str(tmp_path), load_inplace=True))
    assert [visit(engine, adapter(tmp_path)) for _ in range(2)] == [0, 9 * N]
    assert len(engine.half.epochs._reloaded) == 1
    engine.check_idle()


def test_vllms_hits_on_a_forgotten_adapters_earlier_weights_are_not_published(
    start: StartEngine, tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochs, "_MOST_LORAS", 1)
    engine = start(extra=ROOM)
    engine.generate(PROMPT, lora=adapter(tmp_path))
    engine.generate(PROMPT, lora=LoRARequest("b", 2, str(tmp_path)))  # more than are remembered
    weights.write_bytes(b"other")
    engine.generate(tokens(N + 1, 4), lora=adapter(tmp_path, load_inplace=True))
    engine.generate(PROMPT, lora=LoRARequest("b", 2, str(tmp_path), load_inplace=True))
    before = counters(engine).get("skipped_entries:stale", 0)
    stale = engine.generate(PROMPT + tokens(3 * N), lora=adapter(tmp_path))
    assert stale.local_tokens == 9 * N
    assert counters(engine)["skipped_entries:stale"] > before
    engine.update_weights("a")
    assert visit(engine, adapter(tmp_path)) == 0
    engine.check_idle()


@pytest.fixture
def crowded(start: StartEngine, tmp_path: Path, weights: Path) -> Any:
    """An adapter in use, its files changed, and a request to reload it that gets no blocks."""
    engine = start(extra=ROOM, async_scheduling=False)
    running = engine.add(PROMPT, 30, lora=adapter(tmp_path))
    for _ in range(3):
        engine.step()
    weights.write_bytes(b"other")
    pool = engine.scheduler.kv_cache_manager.block_pool
    held = pool.get_new_blocks(pool.get_num_free_blocks())
    waiting = engine.add(tokens(5 * N, 8), 2, lora=adapter(tmp_path, load_inplace=True))
    engine.step()
    return engine, running, waiting, lambda: pool.free_blocks(held)


@pytest.mark.parametrize("preempted", [False, True])
def test_weights_that_were_not_reloaded_yet_do_not_count_as_reloaded(
    preempted: bool, crowded: Any, tmp_path: Path
) -> None:
    """The worker loads an adapter for the step that needs it, not when a request asks for it."""
    engine, running, waiting, release = crowded
    while preempted and engine.scheduler.running:
        engine.step()
    release()
    engine.abort(waiting)
    engine.forget_local()
    run_to(engine, running)
    engine.generate(tokens(6 * N + 5, 3), lora=adapter(tmp_path))
    engine.update_weights("a")
    for prompt in (PROMPT, tokens(6 * N + 5, 3)):
        assert engine.reset_prefix_cache()
        reloaded = engine.generate(prompt, lora=adapter(tmp_path, load_inplace=True))
        assert reloaded.restored_tokens == 0
    engine.check_idle()
