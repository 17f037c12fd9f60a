"""A store that engines share: several engines at once, with the real scheduler."""

from __future__ import annotations

import hashlib
import math
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.lora.request import LoRARequest
from vllm.v1.request import RequestStatus

from hybrid_pages import HybridPagesError
from hybrid_pages.vllm.metrics import Figures
from hybrid_pages.vllm.scheduler.loads.pace import Pace
from hybrid_pages.vllm.scheduler.loads.restores import Asking
from simulation.config import SimulatedHybridForCausalLM, save_model
from simulation.copies import Script
from simulation.engine import Engine, connector
from simulation.shapes import BLOCK_TOKENS as N
from simulation.speculation import Speculation
from test_boundaries import tokens
from test_counts import counters, hits
from test_identity import adapter, safetensors  # noqa: F401 (adapter is a fixture)

PROMPT = tokens(4 * N + 3)
Start = Callable[..., Engine]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    save_model(folder, SimulatedHybridForCausalLM.__name__)
    safetensors(folder / "model.safetensors", bytes(1000))
    return folder


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return tmp_path / "shared"


@pytest.fixture
def start(script: Script, model: Path, shared: Path) -> Iterator[Start]:
    """Starts engines on one store; those before go on."""
    engines: list[Engine] = []

    def start(*, extra: dict[str, Any] | None = None, role: str = "kv_both", **options: Any):
        settings = {"remote_url": shared.as_uri(), "remote_admit": "all"} | (extra or {})
        transfer = connector(**settings) | {"kv_role": role}
        engines.append(Engine(transfer=transfer, **{"model": model, **options}))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def shares(engine: Engine) -> Engine:
    """Others find what it has published."""
    assert engine.half.connection.remote.settle(60)
    engine.cache.poll()
    return engine


def gauges(engine: Engine) -> dict[str, float]:
    return engine.half.stats()["gauges"]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_one_engine_restores_what_another_has_computed(
    start: Start, ranks: int, asynchronous: bool
) -> None:
    options = dict(ranks=ranks, async_scheduling=asynchronous)
    first, second = start(**options), start(**options)
    first.generate(PROMPT)
    shares(first)
    result = second.generate(PROMPT)
    assert result.restored_tokens == 4 * N
    assert hits(second) == {"remote": 4 * N}
    found = counters(second)
    assert found["remote_entries:found"] == found["remote_entries:read"] > 0
    assert found["remote_bytes:read"] > 0 and found["remote_seconds:read"] > 0
    assert found["remote_requests:list"] and found["remote_requests:get"]
    written = counters(first)
    assert written["remote_entries:written"] and written["remote_requests:put"]
    assert gauges(second)["remote_known_entries"] >= found["remote_entries:read"]
    assert gauges(second)["remote_known_packs"] > 0
    assert gauges(second)["remote_sharing"] == 1
    first.check_idle()
    second.check_idle()
    # From now on the host has it.
    second.forget_local()
    assert second.generate(PROMPT).restored_tokens == 4 * N
    assert hits(second)["host"] == 4 * N
    second.check_idle()


def test_what_two_engines_compute_is_written_once(start: Start) -> None:
    engines = [start(), start()]
    engines[0].generate(PROMPT)
    shares(engines[0])
    time.sleep(1.1)  # what the other knows gets old
    engines[1].generate(PROMPT)
    engines[1].forget_local()
    engines[1].generate(PROMPT)
    shares(engines[1])
    assert not counters(engines[1]).get("remote_entries:written")


def test_an_engine_goes_on_where_another_has_stopped(start: Start) -> None:
    first, second = start(), start()
    first.generate(PROMPT[: 2 * N + 3])
    shares(first)
    assert second.generate(PROMPT).restored_tokens == 2 * N + 3
    shares(second)
    time.sleep(1.1)
    first.forget_local()
    assert first.generate(PROMPT).restored_tokens == 4 * N
    assert hits(first) == {"host": 2 * N, "remote": 2 * N}
    first.check_idle()
    second.check_idle()


@pytest.mark.parametrize("cancelled", [False, True])
def test_the_store_is_asked_while_a_request_waits_for_its_turn(
    start: Start, cancelled: bool
) -> None:
    first, second = start(), start(requests=1)
    first.generate(PROMPT)
    shares(first)
    running = second.add(tokens(3 * N + 1, 9), 60)
    while not running.tokens:
        second.step()
    waiting = second.add(PROMPT)
    while "early_restores" not in counters(second):
        assert not running.done, "it was asked for too late"
        second.step()
        time.sleep(0.01)
    assert not waiting.tokens and waiting.request.request_id not in second.half._requests
    if cancelled:
        second.abort(waiting)
    second.run()
    assert waiting.restored_tokens == (0 if cancelled else 4 * N)
    assert hits(second) == ({} if cancelled else {"remote": 4 * N})
    assert counters(second)["early_restores"] == 1
    first.check_idle()
    second.check_idle()


def test_producers_only_store_and_consumers_only_load(start: Start) -> None:
    producer, consumer = start(role="kv_producer"), start(role="kv_consumer")
    producer.generate(PROMPT)
    shares(producer)
    assert consumer.generate(PROMPT).restored_tokens == 4 * N
    consumer.generate(tokens(4 * N + 3, 7))
    shares(consumer)
    assert not counters(consumer).get("remote_entries:written")
    producer.forget_local()
    assert producer.generate(PROMPT).restored_tokens == 0
    assert not counters(producer).get("remote_entries:read")
    producer.check_idle()
    consumer.check_idle()


def test_a_consumer_writes_nothing_at_all(start: Start, shared: Path) -> None:
    producer = start(role="kv_producer")
    producer.generate(PROMPT)
    shares(producer).close()
    before = {path: path.stat().st_mtime_ns for path in shared.rglob("*")}
    consumer = start(role="kv_consumer")
    consumer.generate(PROMPT)
    shares(consumer)
    assert consumer.reset_prefix_cache(reset_connector=True)
    shares(consumer)
    assert {path: path.stat().st_mtime_ns for path in shared.rglob("*")} == before
    consumer.check_idle()


def test_with_a_disk_between_hits_are_counted_by_place(start: Start, tmp_path: Path) -> None:
    extra = {"disk_path": str(tmp_path / "disk"), "disk_gb": 0.05}
    first = start(extra=extra)
    first.generate(PROMPT[: 2 * N + 3])
    shares(first)
    first.close()
    other = start()
    other.generate(PROMPT)
    shares(other)
    again = start(extra=extra)
    assert again.generate(PROMPT).restored_tokens == 4 * N
    assert hits(again) == {"disk": 2 * N, "remote": 2 * N}
    again.check_idle()


def test_engine_cores_share_without_lanes(start: Start) -> None:
    engines = [start(data_parallel=(rank, 2)) for rank in range(2)]
    engines[0].generate(PROMPT)
    shares(engines[0])
    assert engines[1].generate(PROMPT).restored_tokens == 4 * N
    engines[1].check_idle()


def test_salts_and_tenants_stay_apart(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    main, own = "12" * 32, f"tenant {hashlib.sha256(b'a').hexdigest()} {'34' * 32}"
    monkeypatch.setenv("KEYS", f"{main}\n{own}")
    key = {"encrypt_key": "env:KEYS"}
    for extra in ({}, {"tenant_share": 0.5}, key):
        first, second = start(extra=extra), start(extra=extra)
        first.generate(PROMPT, salt="a")
        shares(first)
        assert second.generate(PROMPT, salt="b").restored_tokens == 0
        assert second.generate(PROMPT, salt="a").restored_tokens == 4 * N
        second.check_idle()
    monkeypatch.setenv("KEYS", main)  # which destroys the tenant
    third = start(extra=key)
    assert third.generate(PROMPT, salt="a").restored_tokens == 0
    third.check_idle()


def test_an_adapter_is_found_by_its_files(start: Start, adapter: Path, tmp_path: Path) -> None:  # noqa: F811
    elsewhere = Path(shutil.copytree(adapter, tmp_path / "elsewhere"))
    first, second = start(), start()
    first.generate(PROMPT, lora=LoRARequest("a", 1, str(adapter)))
    shares(first)
    assert second.generate(PROMPT).restored_tokens == 0
    assert second.generate(PROMPT, lora=LoRARequest("a", 1, str(adapter))).restored_tokens == 4 * N
    # vLLM's hashes have the path: the same files elsewhere are another adapter.
    lora = LoRARequest("a", 1, str(elsewhere))
    assert second.generate(PROMPT, lora=lora).restored_tokens == 0
    second.check_idle()


def test_draft_layers_are_shared_too(start: Start) -> None:
    def speculation() -> Speculation:
        return Speculation("mtp", 1)

    first, second = start(speculation=speculation()), start(speculation=speculation())
    first.generate(PROMPT)
    shares(first)
    assert second.generate(PROMPT).restored_tokens >= 3 * N
    second.check_idle()


def test_other_weights_find_nothing(start: Start, model: Path, tmp_path: Path) -> None:
    first = start()
    first.generate(PROMPT)
    shares(first)
    # The same weights at another path are the same; other weights at the same path are not.
    elsewhere = Path(shutil.copytree(model, tmp_path / "elsewhere"))
    assert start(model=elsewhere).generate(PROMPT).restored_tokens == 4 * N
    safetensors(model / "model.safetensors", bytes(999) + b"\1")
    engine = start()
    engine.update_weights()  # as the function sees them
    assert engine.generate(PROMPT).restored_tokens == 0
    engine.check_idle()


def test_entries_of_other_weights_under_one_name_would_be_seen(start: Start) -> None:
    """The files are those of before, the weights are not: what the tests above would see."""
    first, second = start(), start()
    first.generate(PROMPT)
    shares(first)
    second.update_weights()
    with pytest.raises(AssertionError):
        second.generate(PROMPT)
        second.check_idle()
    second.results.clear()


def packs(shared: Path) -> list[Path]:
    return list(shared.rglob("*.pack"))


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.01)


def test_a_reset_ends_the_sharing_of_that_engine(start: Start, shared: Path, caplog: Any) -> None:
    first, second = start(), start()
    first.generate(PROMPT)
    shares(first)
    with caplog.at_level("WARNING", logger="vllm.hybrid_pages"):
        assert first.reset_prefix_cache(reset_connector=True)
        first.update_weights()
        assert first.generate(PROMPT).restored_tokens == 0
        shares(first)
        assert gauges(first)["remote_sharing"] == 0
    assert "after a reset nothing is shared" in caplog.text
    until(lambda: not packs(shared), "its packs to be removed")
    time.sleep(1.1)  # what the other knows gets old
    assert second.generate(PROMPT).restored_tokens == 0
    first.check_idle()
    second.check_idle()


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_idle_engine_completes_its_uploads(start: Start, shared: Path, ranks: int) -> None:
    engine = start(ranks=ranks)
    engine.generate(PROMPT)
    # From now on nobody steps it, or asks its store.
    until(lambda: bool(packs(shared)), "a pack")
    assert start(ranks=ranks).generate(PROMPT).restored_tokens == 4 * N


def test_what_a_shutdown_cuts_off_is_told(
    start: Start, shared: Path, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start()
    remote = engine.half.connection.remote
    closing = SimpleNamespace(
        settle=lambda seconds: False, close=remote.close, notes=lambda: ["3 entries"]
    )
    monkeypatch.setattr(engine.half.connection, "remote", closing)
    with caplog.at_level("WARNING", logger="vllm.hybrid_pages"):
        engine.half.shutdown()
    assert "3 entries" in caplog.text
    monkeypatch.undo()


def test_a_store_that_vanishes_costs_recomputes(start: Start, shared: Path) -> None:
    first, second = start(), start()
    first.generate(PROMPT)
    shares(first)
    second.generate(PROMPT[: N + 3])
    shutil.rmtree(shared)
    result = second.generate(PROMPT)
    assert result.restored_tokens <= 4 * N
    second.generate(tokens(3 * N + 1, 4))
    first.generate(tokens(3 * N + 1, 5))
    first.check_idle()
    second.check_idle()


def test_a_damaged_store_costs_recomputes(start: Start, shared: Path) -> None:
    first = start()
    first.generate(PROMPT)
    shares(first)
    assert packs(shared)
    for path in packs(shared):
        data = bytearray(path.read_bytes())
        for at in range(len(data) // 2, len(data), 64):
            data[at] ^= 1
        path.write_bytes(data)
    second = start()
    assert second.generate(PROMPT).restored_tokens < 4 * N
    found = counters(second)
    assert sum(count for name, count in found.items() if name.startswith("remote_failures")) > 0
    second.check_idle()


# ---- what only one request has used


def test_one_shot_prompts_are_not_written_until_they_are_used_again(start: Start) -> None:
    engine = start(extra={"remote_admit": "auto"})
    engine.generate(PROMPT)
    shares(engine)
    found = counters(engine)
    assert not found.get("remote_entries:written")
    assert found["remote_entries:unproven"] > 0
    assert not found.get("remote_entries:declined")
    # Another request with the same beginning: what they share is written.
    engine.generate(PROMPT[: 3 * N] + tokens(N, 8))
    shares(engine)
    assert counters(engine)["remote_entries:written"] >= 3
    other = start()
    assert other.generate(PROMPT[: 3 * N] + tokens(N, 9)).restored_tokens == 3 * N
    other.check_idle()
    engine.check_idle()


def test_a_retained_prompt_is_written_at_once(start: Start) -> None:
    engine = start(extra={"remote_admit": "auto"})
    engine.generate(PROMPT, hints={"retain": 60})
    shares(engine)
    assert start().generate(PROMPT).restored_tokens == 4 * N


def test_what_is_faster_to_compute_is_computed(start: Start) -> None:
    first = start()
    first.generate(PROMPT)
    shares(first)
    second = start(extra={"remote_admit": "auto"})
    second.generate(tokens(N + 1, 3))
    second.half.connection.pace = None  # no step of it counts
    second.cache.set_compute_rate(1e12)
    assert second.generate(PROMPT).restored_tokens == 0
    assert counters(second)["remote_not_worth"] == 1
    second.check_idle()
    third = start(extra={"remote_admit": "auto"})
    third.half.connection.pace = None
    third.cache.set_compute_rate(1e-6)
    assert third.generate(PROMPT).restored_tokens == 4 * N
    assert not counters(third).get("remote_not_worth")


# ---- waiting for answers


class Mute:
    """A cache whose tier asks and is never answered."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def lookup(self, *args: Any, **kwargs: Any) -> Any:
        hit = self._cache.lookup(*args, **kwargs)
        fields = {
            name: getattr(hit, name) for name in ("blocks", "host", "pages", "missing", "coming")
        }
        return SimpleNamespace(**fields, asking=True)


def test_a_request_waits_for_an_answer_no_longer_than_the_deadline(start: Start) -> None:
    engine = start(extra={"remote_deadline_ms": 50})
    engine.generate(tokens(N + 1, 3))
    before = counters(engine).get("remote_unanswered", 0)  # the store may be slow, too
    engine.find_in(Mute(engine.cache))
    begun, result = time.monotonic(), engine.add(PROMPT)
    engine.step()
    assert result.request.status == RequestStatus.WAITING
    engine.run()
    result.check()
    assert time.monotonic() - begun >= 0.05
    assert counters(engine)["remote_unanswered"] == before + 1
    engine.check_idle()


def test_a_producer_waits_for_no_answer(start: Start) -> None:
    engine = start(role="kv_producer", extra={"remote_deadline_ms": 3_600_000})
    engine.find_in(Mute(engine.cache))
    engine.generate(PROMPT)
    assert not counters(engine).get("remote_unanswered")


def waiting(seconds: float, pace: float | None, missing: int) -> tuple[float, Figures]:
    """How long a request waits."""
    figures = Figures()
    known = None if pace is None else SimpleNamespace(seconds=lambda tokens: tokens / pace)
    asking = Asking(seconds, known, figures)
    tracked = SimpleNamespace(asks_until=math.inf)
    begun = time.monotonic()
    while asking.waits(tracked, missing):
        time.sleep(0.001)
    waited = time.monotonic() - begun
    assert not asking.waits(tracked, missing), "once"
    return waited, figures


def test_an_answer_is_waited_for_as_long_as_it_is_worth() -> None:
    for seconds, pace, missing, least in [
        (0.05, None, 1000, 0.05),
        (0.05, 1.0, 1000, 0.05),
        (3600, 10_000.0, 500, 0.05),
    ]:
        waited, figures = waiting(seconds, pace, missing)
        assert waited >= least
        assert figures.snapshot()["counters"] == {"remote_unanswered": 1}
    waited, figures = waiting(3600, None, 0)
    assert not figures.snapshot()["counters"]


# ---- how fast prompts are computed


def paced(ahead: int, steps: list[tuple[float, int]], least: int = 16) -> Pace:
    """Steps of one request after so many seconds each, of so many tokens."""
    now = [0.0]
    pace = Pace(ahead, least, clock=lambda: now[0])
    for seconds, count in steps:
        now[0] += seconds
        pace.planned(count, 1)
    return pace


def test_the_pace_is_that_of_steps_that_compute_prompts() -> None:
    # Each step is planned when the one before has ended.
    steps = [(0.0, 1000)] + [(0.5, 1000)] * 8
    assert paced(1, steps).tokens_per_second == 2000
    # Two are planned at first: from then on one when the one before the last has ended.
    assert paced(2, [(0.0, 1000), *steps]).tokens_per_second == 2000
    # Decoding, and steps of few tokens, say nothing.
    slow = [(9.0, 1)] * 20
    assert paced(1, [*steps, (0.5, 1), *slow]).tokens_per_second == 2000
    assert paced(1, slow).tokens_per_second is None
    assert paced(1, [(0.0, 10)] + [(1.0, 10)] * 20).tokens_per_second is None


def test_the_pace_is_known_after_some_steps_and_follows_the_last_ones() -> None:
    assert paced(1, [(0.0, 1000)] + [(0.5, 1000)] * 3).tokens_per_second is None
    steps = [(0.0, 1000)] + [(0.5, 1000)] * 100 + [(0.1, 1000)] * 64
    assert paced(1, steps).tokens_per_second == pytest.approx(10_000)
    # One that hangs, or many small ones beside large ones, do not decide.
    steps = [(0.0, 1000)] + [(0.5, 1000)] * 9 + [(60.0, 1000), (0.1, 16)] * 2
    assert paced(1, steps).tokens_per_second == 2000


def test_times_of_rest_do_not_count() -> None:
    now = [0.0]
    pace = Pace(1, 16, clock=lambda: now[0])
    for _ in range(20):
        pace.planned(1000, 1)
        now[0] += 0.5
        pace.planned(1, 1)
        pace.rested()
        now[0] += 60
    assert pace.tokens_per_second == 2000


def test_an_engine_measures_its_pace(start: Start) -> None:
    engine = start(extra={"remote_admit": "auto"})
    for seed in range(8):
        engine.generate(tokens(8 * N + 3, seed))
    assert engine.half.connection.pace.tokens_per_second > 0
    assert gauges(engine)["prompt_tokens_per_second"] > 0
    assert start().half.connection.pace is None


# ---- settings


def test_a_directory_that_cannot_be_used_is_refused_at_start(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "no" / "where"):
        with pytest.raises(HybridPagesError, match="expected a directory"):
            start(extra={"remote_url": path.as_uri()})
