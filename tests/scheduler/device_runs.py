"""What an engine does on a device, real or pretended: every run ends with all bytes compared."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum as Kind
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

from hybrid_pages.vllm.worker import copy_engine
from hybrid_pages.vllm.worker.half import WorkerHalf
from hybrid_pages.vllm.worker.states import StateCopies
from simulation.audit import WrongEntry
from simulation.local_cache import WrongCached
from simulation.memory import UnexpectedWrite
from simulation.on_device import DeviceEngine
from simulation.runner import Mismatch
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import GDN, SHAPES, Shape, attention, recurrent
from simulation.workload import Mix, Workload

Start = Callable[..., DeviceEngine]

WAYS = {"copies": 0, "both": 900, "kernels": (1 << 40) - 1}
"""Below how many bytes pieces move by kernels: a state has 752 bytes, a page 1024."""
LONG = 0.1
"""Seconds for which the device is kept from what it is given: the host is several steps ahead."""


def _large_page() -> FullAttentionSpec:
    return replace(attention(), num_kv_heads=8, head_size=128)


def _large_state() -> MambaSpec:
    states = ((3, 1000), torch.bfloat16), ((4, 48, 64), torch.float32)
    return recurrent(Kind.GDN_ATTN, *states, page_bytes=64 << 10)


LARGE = Shape("large", (_large_state, _large_state, _large_state, _large_page))
"""States of 55,152 bytes and pages of 64 KiB, which real models have."""


def prompts(count: int, tokens: int = 6 * N + 1, seed: int = 5) -> list[list[int]]:
    workload = Workload(random.Random(seed))
    return [workload.fresh(tokens) for _ in range(count)]


def failures(engine: DeviceEngine) -> dict[str, float]:
    counters = engine.connector.scheduler.stats()["counters"]
    return {key: count for key, count in counters.items() if key.startswith("failures")}


def end(engine: DeviceEngine) -> None:
    """Checks what must hold behind every run."""
    engine.check_idle()
    assert failures(engine) == {}
    assert engine.checks > engine.steps
    assert isinstance(engine.runners[0].connector.worker.engine, copy_engine.StreamEngine)


def restores(start: Start, way: str, asynchronous: bool, shape: Shape = GDN) -> None:
    """Prompts are stored, vLLM forgets them, and they come back, all at once."""
    engine = start(
        shape,
        async_scheduling=asynchronous,
        blocks=200,
        extra={"host_gb": 0.05, "kernel_below": WAYS[way], "verify_on_load": True},
    )
    texts = prompts(3)
    for _ in range(2):
        results = [engine.add(text) for text in texts]
        engine.compute.pause(LONG)
        engine.run()
        assert engine.reset_prefix_cache()
    assert [result.restored_tokens for result in results] == [6 * N] * 3
    assert engine.most_ahead == (2 if asynchronous else 1)
    end(engine)


def sleeps(start: Start) -> None:
    """The caches go and come back with other bytes; what is pinned stays."""
    engine = start()
    (prompt,) = prompts(1)
    engine.generate(prompt)
    for runner in engine.runners:
        runner.connector.unregister_kv_caches()
        runner.memory.forget()
        runner.connector.restore_kv_caches()
    assert engine.reset_prefix_cache()
    assert engine.generate(prompt).restored_tokens == 6 * N
    end(engine)


def resumes_inside_a_block(start: Start) -> None:
    """Its state is copied on the device before the next step overwrites it."""
    engine = start(extra={"verify_on_load": True})
    engine.generate([7], max_tokens=1)  # with which the ranks report
    (prompt,) = prompts(1)
    engine.generate(prompt, max_tokens=9)
    for _ in range(2):
        engine.forget_local()
        assert engine.generate([*prompt, 3, 4], max_tokens=5).restored_tokens == len(prompt)
    end(engine)


def preempts(start: Start) -> None:
    """Requests lose their blocks and get them back from the cache."""
    engine = start(blocks=60, requests=6, batched_tokens=64, extra={"host_gb": 0.02})
    results = [engine.add(text, 60) for text in prompts(6, 5 * N)]
    engine.run()
    assert any(result.request.num_preemptions for result in results)
    counters = engine.connector.scheduler.stats()["counters"]
    assert counters["preempted_hit_tokens:host"]
    end(engine)


def any_workload(start: Start, seed: int, requests: int = 20) -> None:
    """Random prompts, which hit, miss, are evicted from a small budget, and end early."""
    rng = random.Random(f"device {seed}")
    engine = start(
        GDN if seed == 0 else rng.choice(list(SHAPES.values())),
        async_scheduling=seed == 0 or rng.random() < 0.7,
        runner_version=rng.choice((1, 2)),
        blocks=rng.choice((40, 64)),
        batched_tokens=rng.choice((24, 64, 200)),
        requests=rng.choice((2, 8)),
        extra={
            "host_gb": rng.choice((0.0003, 0.001)),
            "verify_on_load": rng.random() < 0.5,
            "store_mode": rng.choice(("auto", "step")),
            "kernel_below": rng.choice(list(WAYS.values())),
        },
    )
    mix = Mix(arrival=0.5, abort=0.05, forget=0.5, reset=0.05, turns=0.3)
    Workload(rng, mix).run(engine, requests)
    end(engine)


def captures_beside(start: Start) -> None:
    """Graphs are captured in the strictest mode while transfers run."""
    engine = start(blocks=200)
    for _ in range(2):
        for text in prompts(3):
            engine.add(text)
        while engine.step():
            engine.compute.capture()
        engine.run()
        assert engine.reset_prefix_cache()
    end(engine)


def _swapped(patch: pytest.MonkeyPatch, engine: DeviceEngine) -> None:
    """A page and the next one are restored to each other's blocks."""
    load = copy_engine.StreamEngine.load

    def swap(self: Any, entries: Any) -> int:
        (kind, slots, blocks, sums), (other, more, others, more_sums) = entries[:2]
        assert kind == other
        given = [(kind, slots, others, sums), (other, more, blocks, more_sums), *entries[2:]]
        return load(self, given)

    patch.setattr(copy_engine.StreamEngine, "load", swap)


def _unordered_fence(patch: pytest.MonkeyPatch, engine: DeviceEngine) -> None:
    """The engine looks at a stream that computes nothing."""
    fence = copy_engine.StreamEngine.fence

    def wrong(self: Any) -> None:
        with engine.compute.elsewhere():
            fence(self)

    patch.setattr(copy_engine.StreamEngine, "fence", wrong)


def _hasty_store(patch: pytest.MonkeyPatch, engine: DeviceEngine) -> None:
    """Stores wait for a stream that computes nothing."""
    store = copy_engine.StreamEngine.store

    def wrong(self: Any, entries: Any) -> int:
        with engine.compute.elsewhere():
            self.fence()
        return store(self, entries)

    patch.setattr(copy_engine.StreamEngine, "store", wrong)


def _late_copies(patch: pytest.MonkeyPatch, engine: DeviceEngine) -> None:
    """States are copied when their stores start, a step later."""
    run, submit, late = StateCopies.run, WorkerHalf._submit_stores, []

    def submit_later(self: WorkerHalf) -> None:
        for given in late:
            run(*given)
        late.clear()
        submit(self)

    patch.setattr(StateCopies, "run", lambda *given: late.append(given))
    patch.setattr(WorkerHalf, "_submit_stores", submit_later)


def _no_copies(patch: pytest.MonkeyPatch, engine: DeviceEngine) -> None:
    patch.setattr(StateCopies, "run", lambda self, copies: None)


FAULTS: dict[str, Callable[[pytest.MonkeyPatch, DeviceEngine], None]] = {
    "a store does not wait for the pass": _hasty_store,
    "a load does not wait for the fence": _unordered_fence,
    "pages are swapped": _swapped,
    "states are not copied": _no_copies,
    "states are copied with the next step": _late_copies,
}


def shows(start: Start, patch: pytest.MonkeyPatch, fault: str) -> None:
    """The same steps as above find a planted fault."""
    # A step whose tokens the host has seen needs no order any more.
    engine = start(blocks=60, requests=6, batched_tokens=64, async_scheduling=True)
    engine.generate([7], max_tokens=1)
    FAULTS[fault](patch, engine)
    with pytest.raises((Mismatch, UnexpectedWrite, WrongCached, WrongEntry)):
        for _ in range(12):  # whether an order is wrong is chance
            for text in prompts(6, 5 * N + 1):
                engine.add(text, 20)
            engine.compute.pause(LONG)
            engine.run()
            engine.forget_local()
        engine.check_idle()
