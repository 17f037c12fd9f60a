"""Beside other connectors, in vLLM's own MultiConnector."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import (
    MultiKVConnectorWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlHandshakePayload

from hybrid_pages.vllm import versions
from hybrid_pages.vllm.scheduler.half import SchedulerHalf
from hybrid_pages.vllm.scheduler.stale.invalid import InvalidBlocks
from hybrid_pages.vllm.scheduler.store import StoreJobs
from simulation import sibling
from simulation.audit import WrongEntry
from simulation.copies import Script
from simulation.engine import Engine, connector
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import GDN, SHAPES, Shape
from simulation.speculation import Speculation

DENSE = SHAPES["attention-only"]
OURS = {"kv_role": "kv_both"} | connector()
FAILING = {
    "kv_connector": "FailingSibling",
    "kv_connector_module_path": "simulation.sibling",
    "kv_role": "kv_both",
}


def beside(*children: dict[str, Any], **outer: Any) -> dict[str, Any]:
    """The transfer configuration of a MultiConnector."""
    return {
        "kv_connector": "MultiConnector",
        "kv_connector_extra_config": {"connectors": list(children)},
    } | outer


@pytest.fixture
def offers() -> Iterator[list[Any]]:
    """Tokens that the failing sibling says it has."""
    yield sibling.OFFER
    sibling.OFFER.clear()


@pytest.fixture
def start_beside(script: Script) -> Iterator[Any]:
    """Starts engines with a MultiConnector; keyword arguments are Engine's."""
    engines: list[Engine] = []

    def start(*children: dict[str, Any], shape: Shape = GDN, policy: str = "", **options: Any):
        outer = {"kv_load_failure_policy": policy} if policy else {}
        engines.append(Engine(shape, transfer=beside(*children, **outer), **options))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def prompt(seed: int, count: int) -> list[int]:
    return [1 + (seed * 131 + i * i) % 500 for i in range(count)]


@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_first_prompt_after_start_is_stored(start_beside: Any, order: str, ranks: int) -> None:
    children = [OURS, FAILING] if order == "first" else [FAILING, OURS]
    engine = start_beside(*children, ranks=ranks)
    first = prompt(1, 5 * N + 3)
    engine.generate(first)
    engine.forget_local()
    assert engine.generate(first).restored_tokens == 5 * N
    engine.check_idle()


@pytest.mark.parametrize("policy", ["", "fail", "recompute"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_our_failed_load_is_recomputed_whatever_the_outer_policy_says(
    start_beside: Any, script: Script, policy: str, ranks: int
) -> None:
    engine = start_beside(FAILING, OURS, policy=policy, ranks=ranks)
    first = prompt(2, 5 * N + 3)
    engine.generate(first)
    engine.forget_local()
    script.fault = lambda kind: "torn" if kind == "load" else None
    result = engine.generate(first)
    assert result.finish == "length"
    counters = engine.half.stats()["counters"]
    assert counters["failures:load"] == 1
    assert "hit_tokens:host" not in counters
    engine.check_idle()


def crowd(engine: Engine, offers: list[Any], seed: int) -> None:
    """Requests that share prefixes: some go on from blocks that others could not load.

    Their own texts are not looked at: vLLM lets some of them go on, too (a request that found a
    block computed from an invalid one, and under asynchronous scheduling the step after).
    """
    turn = itertools.count(seed)
    offers.append(lambda request: N * (next(turn) % 4))
    asked = []
    for round_ in range(4):
        asked += [prompt(3, (2 + i % 3) * N) + prompt(i, (1 + i % 4) * N + 5) for i in range(6)]
        for each in asked[-6:]:
            engine.add(each, 2 * N)
        for _ in range(3 + seed):
            engine.step()
        asked.append(prompt(3, 4 * N) + prompt(90 + round_, N + 1))
        engine.add(asked[-1], 3)
        engine.run()
        engine._check_cache()
        engine.forget_local()
    offers.clear()
    engine.results.clear()
    for each in asked:
        engine.generate(each)
        engine.forget_local()
    engine.check_idle()


@pytest.mark.parametrize("policy", ["fail", "recompute"])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_pages_from_a_failed_synchronous_load_are_never_published(
    start_beside: Any, offers: list[Any], policy: str, asynchronous: bool, seed: int
) -> None:
    engine = start_beside(
        FAILING,
        OURS,
        shape=DENSE,
        policy=policy,
        async_scheduling=asynchronous,
        batched_tokens=(4 + seed) * N,
    )
    crowd(engine, offers, seed)
    counters = engine.half.stats()["counters"]
    assert counters["skipped_entries:invalid"]
    assert counters["hit_tokens:host"]


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_a_cache_that_does_not_hear_of_invalid_blocks_is_found_out(
    start_beside: Any, offers: list[Any], policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SchedulerHalf, "invalid", lambda *_: None)
    monkeypatch.setattr(StoreJobs, "void", lambda *_: None)
    engine = start_beside(FAILING, OURS, shape=DENSE, policy=policy)
    with pytest.raises(WrongEntry):
        crowd(engine, offers, 1)


def once(offers: list[Any], tokens: int) -> None:
    """The sibling says that it has so many tokens of the first request, the first time it asks."""
    first = iter([tokens])
    offers.append(lambda request: next(first, 0))


@pytest.mark.parametrize("policy", ["fail", "recompute"])
@pytest.mark.parametrize("mode", ["step", "background"])
@pytest.mark.parametrize("in_process", [False, True])
def test_a_request_aborted_before_the_failed_load_is_reported_publishes_nothing(
    start_beside: Any, offers: list[Any], policy: str, mode: str, in_process: bool
) -> None:
    """The engine core takes aborts between a step and its report. Later requests compute the
    invalid blocks anew and would go on from what was computed from them."""
    ours = {"kv_role": "kv_both"} | connector(store_mode=mode)
    engine = start_beside(
        FAILING, ours, shape=DENSE, policy=policy, async_scheduling=False, in_process=in_process
    )
    once(offers, 3 * N)
    asked = prompt(1, 5 * N + 3)
    request = engine.add(asked)
    output = engine.scheduler.schedule()
    done = engine._execute(output)
    engine.abort(request)
    engine._update(output, done)
    engine.run()
    engine._check_cache()
    for later in (asked[: 3 * N + 1], asked + prompt(7, 2 * N)):
        engine.generate(later, 2)
    engine.check_idle()
    assert "hit_tokens:other" not in engine.half.stats()["counters"]


def test_a_request_whose_load_failed_is_not_loaded_by_another_connector(
    start_beside: Any, offers: list[Any], script: Script
) -> None:
    """vLLM would reserve room for it twice, and in a small pool never find it."""
    engine = start_beside(OURS, FAILING, shape=DENSE)
    asked = prompt(1, 5 * N + 3)
    engine.generate(asked)
    engine.forget_local()
    offers.append(lambda request: 3 * N)
    script.fault = lambda kind: "torn" if kind == "load" else None
    result = engine.generate(asked)
    assert result.request.skip_reading_prefix_cache is False
    counters = engine.half.stats()["counters"]
    assert counters["failures:load"] == 1
    assert "skipped_entries:invalid" not in counters
    engine.check_idle()


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_a_failed_load_of_another_connector_is_no_hit(
    start_beside: Any, offers: list[Any], policy: str
) -> None:
    engine = start_beside(FAILING, OURS, shape=DENSE, policy=policy, async_scheduling=False)
    once(offers, 3 * N)
    engine.add(prompt(1, 5 * N + 3))
    engine.run()
    counters = engine.half.stats()["counters"]
    assert counters["lookups"] == 1
    assert not [key for key in counters if key.startswith("hit_tokens")]


# ---- Nixl, whose worker half needs a library that is not here


NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}


class OneChild:
    """Our worker half, as a MultiConnector's worker would drive it at one of two places."""

    def __init__(self, connector: Any, place: int) -> None:
        self._connector, self._place = connector, place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)

    def bind_connector_metadata(self, metadata: Any) -> None:
        self._connector.bind_connector_metadata(metadata.metadata[self._place])

    def handle_preemptions(self, metadata: Any) -> None:
        self._connector.handle_preemptions(metadata.metadata[self._place])

    def get_handshake_metadata(self) -> Any:
        assert self._connector.get_handshake_metadata() is None, "Nixl would reject it"
        return NixlHandshakePayload("a hash", b"an agent")

    def build_connector_worker_meta(self) -> Any:
        found: list[Any] = [None, None]
        found[self._place] = self._connector.build_connector_worker_meta()
        return MultiKVConnectorWorkerMetadata(tuple(found))


class BesideNixl(Engine):
    """vLLM's scheduler with both children; workers with ours alone."""

    def __init__(self, place: int, **options: Any) -> None:
        self.place = place
        children = [NIXL, NIXL]
        children[place] = OURS
        super().__init__(transfer=beside(*children), **options)

    def _runner(self, rank: int, plan: Any, version: int) -> Any:
        engine, self.config.kv_transfer_config = (
            self.config.kv_transfer_config,
            KVTransferConfig(**OURS),
        )
        try:
            runner = super()._runner(rank, plan, version)
        finally:
            self.config.kv_transfer_config = engine
        runner.connector = OneChild(runner.connector, self.place)
        return runner


@pytest.mark.parametrize("place", [0, 1])
def test_beside_nixl_in_either_order(
    script: Script, place: int, not_alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", str(free.getsockname()[1]))
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1")
    with BesideNixl(place) as engine:
        first = prompt(5, 6 * N + 3)
        engine.generate(first)
        engine.forget_local()
        assert engine.generate(first).restored_tokens == 6 * N
        engine.check_idle()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.parametrize(("method", "shape"), [("mtp", DENSE), ("mtp", GDN), ("ngram", GDN)])
def test_an_engine_that_speculates_restores_beside_another_connector(
    start_beside: Any, method: str, shape: Shape, order: str, asynchronous: bool
) -> None:
    children = [OURS, FAILING] if order == "first" else [FAILING, OURS]
    speculation = Speculation(method, 2)
    engine = start_beside(
        *children, shape=shape, speculation=speculation, async_scheduling=asynchronous
    )
    first = prompt(1, 5 * N + 3)
    engine.generate(first)
    engine.forget_local()
    # vLLM makes its own state one block earlier where draft layers look ahead.
    ahead = shape is GDN and engine.half.connection.grid.drops_last_block
    assert engine.generate(first).restored_tokens == (4 if ahead else 5) * N
    engine.check_idle()


def test_reports_are_waited_for_no_longer_than_they_may_come() -> None:
    nothing: Any = None
    blocks = InvalidBlocks(nothing, nothing, 1)
    blocks.expect()
    blocks.ended("a", ())
    for _ in range(versions.STEPS_IN_FLIGHT):
        assert blocks.expected and blocks.waiting
        blocks.updated()
    assert not blocks.expected and not blocks.waiting and not blocks._ended
