"""Real engines on one machine that share a directory."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import NOISE, Engine
from remote_peers import Peer
from serve_remote import check_restored, prompts, settings, transfer

OLD = 1.1
"""Seconds after which an engine lists the store again."""


@pytest.fixture(scope="module")
def folder(model) -> Path:
    return model("qwen3.5")


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("store") / "shared"


@pytest.fixture
def peer(folder, shared) -> Iterator[Callable[..., Peer]]:
    """Starts an engine in another process."""
    peers = []

    def start(role: str = "kv_both") -> Peer:
        peers.append(Peer(folder, shared.as_uri(), role, {}))
        return peers[-1]

    yield start
    for each in peers:
        each.end()


@pytest.fixture
def start(folder) -> Iterator[Callable[..., Engine]]:
    """Starts an engine in this process."""
    engines = []

    def start(**engine_args: object) -> Engine:
        engines.append(Engine(folder, **engine_args))
        return engines[-1]

    yield start
    for engine in engines:
        engine.shutdown()


def test_engines_give_what_the_local_hit_gives_for_what_others_computed(start, peer, shared):
    engine = start(settings=settings(shared.as_uri()))
    other = peer()
    # The other one stores while this one runs.
    assert other.run("first") == 0
    time.sleep(OLD)
    for prompt in prompts("first", engine.N):
        check_restored(engine, prompt)
    # And the other way round.
    for prompt in prompts("second", engine.N):
        assert engine.run(prompt, 8).resumed == 0
    assert engine.half.connection.remote.settle(60)
    time.sleep(OLD)
    whole = sum(len(prompt) // engine.N * engine.N for prompt in prompts("second", engine.N))
    assert other.run("second") == whole
    assert not any("failures" in name for name in engine.stats())
    other.end()
    # The directory vanishes while the engine runs.
    shutil.rmtree(shared)
    for seed in ("second", "third", "third"):
        for prompt in prompts(seed, engine.N):
            engine.reset_local()
            result = engine.run(prompt, 8)
            assert result.distance(engine.cold(prompt, 8)) < NOISE
    engine.drain()


@pytest.mark.long
def test_a_consumer_that_starts_later_has_what_a_producer_computed(start, peer, shared):
    producer = peer("kv_producer")
    assert producer.run("produced") == 0
    producer.end()
    engine = start(kv_transfer_config=transfer(shared.as_uri(), "kv_consumer"))
    for prompt in prompts("produced", engine.N):
        check_restored(engine, prompt)
    assert engine.stats().get("remote_entries:written", 0) == 0
    assert not any("failures" in name for name in engine.stats())
