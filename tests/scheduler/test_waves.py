"""Prompts larger than the host, and many at once: they come back from the disk in waves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from hybrid_pages.vllm.scheduler.loads import load
from simulation.copies import Script
from simulation.engine import Engine
from simulation.shapes import BLOCK_TOKENS as N
from test_boundaries import tokens
from test_counts import counters, hits
from test_disk import Start, model, settled, start  # noqa: F401 (fixtures)
from test_faulty_copies import fail

LONG = tokens(20 * N + 3)
SMALL = {"host_gb": 0.00005}


def on_disk(start: Start, *prompts: list[int], **options: Any) -> Engine:  # noqa: F811
    """An engine with a small host, after one with a large host has stored the prompts."""
    options = {"blocks": 200} | options
    engine = start(**options)
    for prompt in prompts:
        engine.generate(prompt)
    settled(engine)
    return start(extra=SMALL, **options)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_prompt_larger_than_the_host_is_restored(
    start: Start,  # noqa: F811
    ranks: int,
    asynchronous: bool,
) -> None:
    engine = on_disk(start, LONG, ranks=ranks, async_scheduling=asynchronous)
    result = engine.generate(LONG)
    assert result.restored_tokens == 20 * N
    assert engine.cache.restores()["waves"] > 2
    assert hits(engine) == {"disk": 20 * N}
    assert not any(key.startswith("failures") for key in counters(engine))
    engine.check_idle()
    assert engine.cache.restores()["in_waves"] == 0


def test_what_vllm_has_is_not_read(start: Start) -> None:  # noqa: F811
    engine = on_disk(start, LONG)
    engine.generate(LONG[: 12 * N + 1])
    before = counters(engine).get("disk_entries:read", 0)
    result = engine.generate(LONG)
    assert (result.local_tokens, result.restored_tokens) == (12 * N, 8 * N)
    assert 0 < counters(engine)["disk_entries:read"] - before <= 8 + 1
    engine.check_idle()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_wave_that_fails_costs_a_recompute(
    start: Start,  # noqa: F811
    script: Script,
    ranks: int,
    failing: int,
) -> None:
    engine = on_disk(start, LONG, ranks=ranks)
    fail(script, "load", "torn", first=failing * ranks)
    result = engine.generate(LONG)
    assert result.done
    found = counters(engine)
    assert sum(count for key, count in found.items() if key.startswith("failures")) == 1
    engine.check_idle()
    fail(script, "load", None)
    engine.forget_local()
    assert engine.generate(LONG).restored_tokens == 20 * N
    engine.check_idle()


def test_a_wave_that_never_comes_costs_a_recompute(
    start: Start,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = on_disk(start, LONG)
    engine.generate(tokens(N + 1, 9))  # the ranks have reported
    result = engine.add(LONG)
    while not engine.half.connection.loads._in_waves:
        engine.step()
    (waves,) = engine.half.connection.loads.in_flight.values()
    waves.restore.end()
    waves.restore = SimpleNamespace(progress=lambda: "waiting", end=lambda: None)
    now = 0.0
    monkeypatch.setattr(load, "time", SimpleNamespace(monotonic=lambda: now))
    for _ in range(5):
        engine.step()
    assert result.request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
    now = 1e9
    engine.run()
    assert result.tokens
    assert counters(engine)["failures:promotion"] == 1
    engine.check_idle()


def test_a_request_that_is_aborted_between_waves_gives_all_back(start: Start) -> None:  # noqa: F811
    engine = on_disk(start, LONG)
    engine.generate(tokens(N + 1, 9))
    result = engine.add(LONG)
    while not engine.half.connection.loads._in_waves:
        engine.step()
    engine.abort(result)
    engine.generate(tokens(2 * N + 1, 8))
    engine.run()
    engine.check_idle()
    assert engine.generate(LONG).restored_tokens == 20 * N
    engine.check_idle()


def test_a_reset_between_waves_restores_nothing_old(start: Start) -> None:  # noqa: F811
    engine = on_disk(start, LONG)
    engine.generate(tokens(N + 1, 9))
    result = engine.add(LONG)
    while not engine.half.connection.loads._in_waves:
        engine.step()
    engine.half.reset()
    engine.run()
    assert result.tokens
    engine.check_idle()


def test_a_damaged_entry_costs_a_shallower_resume(start: Start, tmp_path: Path) -> None:  # noqa: F811
    prompt = tokens(8 * N + 3)
    whole = {"checkpoint_mode": "align"}  # no ends inside blocks
    engine = start(extra=whole)
    for blocks in (2, 4, 6, 8):
        engine.generate(prompt[: blocks * N + 3])
    settled(engine)
    start(extra=whole).close()
    slab = max((tmp_path / "disk").rglob("*slab*"), key=lambda path: path.stat().st_size)
    data = bytearray(slab.read_bytes())
    engine = start(extra=whole)
    # The last entry of the largest file: of the pages, the deepest one.
    end = len(data.rstrip(b"\0"))
    data[end - 1] ^= 1
    slab.write_bytes(data)
    result = engine.generate(prompt)
    assert 0 < result.restored_tokens < 8 * N
    engine.check_idle()


def test_fifty_prompts_at_once_with_a_small_host(start: Start) -> None:  # noqa: F811
    shared = tokens(3 * N, 99)
    prompts = [shared + tokens(5 * N + 3, seed) for seed in range(50)]
    engine = start()
    for prompt in prompts:
        settled(engine).generate(prompt)
    restored = {}
    for name, extra in (("large", {}), ("small", SMALL)):
        engine = start(extra=extra)
        results = [engine.add(prompt) for prompt in prompts]
        engine.run()
        found = sum(result.local_tokens + result.restored_tokens for result in results)
        restored[name] = found
        engine.check_idle()
    assert restored["large"] == 50 * 8 * N
    assert restored["small"] >= 0.9 * restored["large"]
