"""``kv_role``: a producer only stores, a consumer only loads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hybrid_pages.vllm.scheduler.store import StoreJobs
from planted_tails import plant
from simulation.copies import Script
from simulation.engine import Engine, connector
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from test_boundaries import tokens

NAMES = ["gdn", "mamba2", "gdn-window", "attention-only"]


@pytest.fixture
def start_as(script: Script) -> Iterator[Any]:
    """Starts engines of a role."""
    engines: list[Engine] = []

    def start(role: str, name: str) -> Engine:
        engines.append(Engine(SHAPES[name], transfer=connector() | {"kv_role": role}))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_producer_only_stores(start_as: Any, script: Script, name: str) -> None:
    engine = start_as("kv_producer", name)
    prompt = tokens(4 * N + 3)
    for _ in range(3):
        assert engine.generate(prompt).restored_tokens == 0
        engine.forget_local()
    assert engine.depths(prompt)[-1] == 4
    assert script.of("store") and not script.of("load")
    engine.check_idle()


def fill(engine: Engine, prompt: list[int]) -> None:
    """Stores a prompt as if another engine had: with the stores that a producer would have."""
    connection = engine.half.connection
    own, connection.may_store = connection.stores, True
    connection.stores = StoreJobs(
        connection.geometry,
        connection.cache,
        connection.keys,
        "adaptive",
        connection.figures,
        connection.spare,
    )
    connection.stores.pool, connection.stores.tables = own.pool, own.tables
    connection.checkpoints.mode = "adaptive"
    engine.generate(prompt)
    connection.stores, connection.may_store = own, False


@pytest.mark.parametrize("name", NAMES)
def test_a_consumer_only_loads(start_as: Any, script: Script, name: str) -> None:
    engine = start_as("kv_consumer", name)
    prompt, other = tokens(4 * N + 3), tokens(4 * N + 3, 1)
    fill(engine, prompt)
    stored = len(script.of("store"))
    for _ in range(3):
        engine.forget_local()
        assert engine.generate(prompt, 2 * N).restored_tokens == 4 * N
        assert engine.generate(other).restored_tokens == 0
    assert len(script.of("store")) == stored
    engine.check_idle()


def test_a_consumer_resumes_inside_a_block(start_as: Any) -> None:
    engine = start_as("kv_consumer", "gdn")
    prompt = tokens(4 * N + 3)
    engine.generate([7])  # the ranks report with their first step
    fill(engine, prompt)
    plant(engine, prompt, 4 * N + 2)
    engine.forget_local()
    assert engine.generate(prompt).restored_tokens == 4 * N + 2
    engine.check_idle()


def test_a_consumer_asks_vllm_for_no_checkpoints(start_as: Any) -> None:
    engine = start_as("kv_consumer", "gdn")
    shared = tokens(4 * N + 3)
    for visitor in range(4):
        engine.generate(shared + tokens(2 * N, visitor), hints={"checkpoint_at": [N]})
    assert "steered_steps" not in engine.half.stats()["counters"]
    assert not engine.half.connection.cache.stats()["pages"]
    engine.check_idle()
