"""KV events of a real engine, over vLLM's publisher: what they announce is what is restored."""

from __future__ import annotations

import msgspec
import pytest
import zmq
from vllm.config import KVEventsConfig
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch

from harness import Engine, tokens


class Subscriber:
    """Folds the replay of everything that was published: what the host has, by hash."""

    def __init__(self, config: KVEventsConfig) -> None:
        self.config, self.tokens = config, {}

    def hear(self, engine: Engine) -> list[object]:
        """All events, from the first on."""
        engine.scheduler.kv_event_publisher._event_queue.join()
        self.tokens = {}
        events = [event for batch in self._batches() for event in batch.events]
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.tokens.clear()
            elif event.medium != "CPU":
                continue
            elif isinstance(event, BlockRemoved):
                for each in event.block_hashes:
                    self.tokens.pop(each, None)
            else:
                assert isinstance(event, BlockStored)
                prefix = self.tokens.get(event.parent_block_hash, ())
                assert prefix or event.parent_block_hash is None
                for at, each in enumerate(event.block_hashes):
                    size = event.block_size
                    prefix += tuple(event.token_ids[at * size : (at + 1) * size])
                    self.tokens[each] = prefix
        return events

    def _batches(self) -> list[KVEventBatch]:
        found = []
        with zmq.Context.instance().socket(zmq.DEALER) as socket:
            socket.connect(self.config.replay_endpoint)
            socket.send_multipart((b"", (0).to_bytes(8, "big")))
            while True:
                assert socket.poll(30_000), "no replay within 30 s"
                payload = socket.recv_multipart()[-1]
                if not payload:
                    return found
                found.append(msgspec.msgpack.decode(payload, type=KVEventBatch))


@pytest.fixture(scope="module")
def subscriber(tmp_path_factory):
    folder = tmp_path_factory.mktemp("events")
    return Subscriber(
        KVEventsConfig(
            enable_kv_cache_events=True,
            publisher="zmq",
            endpoint=f"ipc://{folder}/events",
            replay_endpoint=f"ipc://{folder}/replay",
        )
    )


@pytest.fixture(scope="module")
def engine(start, subscriber):
    return start("qwen3.5", kv_events_config=subscriber.config)


def test_what_events_announce_is_what_a_real_engine_restores(
    engine: Engine, subscriber: Subscriber
) -> None:
    n = engine.N
    first = tokens("events", 5 * n + 9)
    forked = first[: 2 * n] + tokens("fork", 3 * n + 1)
    for prompt in (first, forked, forked):
        engine.run(prompt)
    for _ in range(3):
        engine.reset_local()
        engine.run(tokens("short", 3))  # the events of a reset come with the next step
        subscriber.hear(engine)
        prefix = max(subscriber.tokens.values(), key=len)
        assert len(prefix) >= 5 * n
        assert engine.run(prefix + tokens("more", 2 * n + 3)).host == len(prefix)
    engine.reset_all()
    engine.run(tokens("short", 3))
    events = subscriber.hear(engine)
    assert not subscriber.tokens
    kinds = {
        event.kv_cache_spec_kind
        for event in events
        if isinstance(event, BlockStored) and event.medium == "CPU"
    }
    assert kinds == {"full_attention"}
