"""A router's side of KV events: vLLM's publisher heard over ZeroMQ, folded into what it knows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import zmq
from vllm.config import KVEventsConfig
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash


class Block(NamedTuple):
    """What an event tells of one block."""

    parent: Any
    tokens: tuple[int, ...]
    lora: tuple[int | None, str | None]
    extra_keys: Any
    kind: str | None


class Router:
    """Hears an engine's events; the gaps of the live stream are filled from the replay."""

    def __init__(self, folder: Path) -> None:
        self.config = KVEventsConfig(
            enable_kv_cache_events=True,
            publisher="zmq",
            endpoint=f"ipc://{folder}/events",
            replay_endpoint=f"ipc://{folder}/replay",
            buffer_steps=100_000,
        )
        self._context = zmq.Context.instance()
        self._live = self._context.socket(zmq.SUB)
        self._live.subscribe(b"")
        self._live.connect(self.config.endpoint)
        self._decoder = msgspec.msgpack.Decoder(KVEventBatch)
        self.heard_live = self.next = 0
        self.batches: list[KVEventBatch] = []
        self.blocks: dict[tuple[str, int], dict[Any, Block]] = {}
        """By medium and group, and hash: of a router that keeps the media apart."""
        self.wiped: dict[tuple[str, int], set[Any]] = {}
        """The same, of one that forgets all media when an engine says that all is cleared."""

    def close(self) -> None:
        self._live.close(linger=0)

    def hear(self, engine: Any) -> list[Any]:
        """Takes all that was published until now; returns the new events."""
        engine.scheduler.kv_event_publisher._event_queue.join()
        batches: dict[int, bytes] = {}
        while self._live.poll(0):
            _, number, payload = self._live.recv_multipart()
            batches[int.from_bytes(number, "big")] = payload
        self.heard_live += len(batches)
        batches |= self._replay()
        events = []
        for number in sorted(batches):
            if number >= self.next:
                assert number == self.next, "a batch is missing"
                self.next += 1
                self.batches.append(self._decoder.decode(batches[number]))
                for event in self.batches[-1].events:
                    self._fold(event)
                    events.append(event)
        return events

    def _replay(self) -> dict[int, bytes]:
        """Batches from the next one on, as vLLM's publisher keeps them."""
        found = {}
        with self._context.socket(zmq.DEALER) as socket:
            socket.connect(self.config.replay_endpoint)
            socket.send_multipart((b"", self.next.to_bytes(8, "big")))
            while True:
                assert socket.poll(20_000), "no replay within 20 s"
                _, _, number, payload = socket.recv_multipart()
                if not payload:
                    return found
                found[int.from_bytes(number, "big")] = payload

    def _fold(self, event: Any) -> None:
        if isinstance(event, AllBlocksCleared):
            self.wiped.clear()
            for place in [place for place in self.blocks if place[0] == "GPU"]:
                del self.blocks[place]
            return
        place = event.medium, event.group_idx
        blocks = self.blocks.setdefault(place, {})
        wiped = self.wiped.setdefault(place, set())
        if isinstance(event, BlockRemoved):
            wiped.difference_update(event.block_hashes)
            for each in event.block_hashes:
                known = blocks.pop(each, None)
                assert known is not None or event.medium == "GPU", "removed, and never stored"
            return
        assert isinstance(event, BlockStored)
        wiped.update(event.block_hashes)
        if event.kv_cache_spec_kind not in ("full_attention", "mla_attention"):
            return  # of other groups vLLM stores some blocks of a span, and the tokens of all
        size, parent = event.block_size, event.parent_block_hash
        assert len(event.token_ids) == size * len(event.block_hashes)
        for at, each in enumerate(event.block_hashes):
            assert event.medium == "GPU" or each not in blocks, "stored twice"
            assert event.medium == "GPU" or parent is None or parent in blocks, "a gap"
            blocks[each] = Block(
                parent,
                tuple(event.token_ids[at * size : (at + 1) * size]),
                (event.lora_id, event.lora_name),
                event.extra_keys[at] if event.extra_keys is not None else None,
                event.kv_cache_spec_kind,
            )
            parent = each

    def predict(self, engine: Any, request: Any, medium: str = "CPU") -> int:
        """The tokens of a request's prompt that the engine has, by the events of a medium."""
        return min(
            self._depth(engine, request, place)
            for place in self.blocks.keys() | {(medium, group) for group in attention(engine)}
            if place[0] == medium
        )

    def _depth(self, engine: Any, request: Any, place: tuple[str, int]) -> int:
        size = engine.plan.kv_cache_groups[place[1]].kv_cache_spec.block_size
        each = size // engine.plan.hash_block_size
        keys = [maybe_convert_block_hash(key) for key in request.block_hashes[each - 1 :: each]]
        known = self.blocks.get(place, {})
        return size * next((at for at, key in enumerate(keys) if key not in known), len(keys))

    def leaves(self, group: int, medium: str = "CPU") -> list[list[Block]]:
        """The announced prefixes in a medium that nothing goes on from, block by block."""
        blocks = self.blocks.get((medium, group), {})
        parents = {block.parent for block in blocks.values()}
        paths = []
        for key in blocks.keys() - parents:
            path = []
            while key is not None:
                path.append(blocks[key])
                key = blocks[key].parent
            paths.append(path[::-1])
        return sorted(paths, key=repr)

    def check(self) -> None:
        """Both kinds of routers know the same of our media, and what the engine says of a block in
        its own memory is what is said of it there."""
        for place, blocks in self.blocks.items():
            if place[0] in ("CPU", "STORAGE"):
                assert blocks.keys() == self.wiped.get(place, set())
                own = self.blocks.get(("GPU", place[1]), {})
                for key in blocks.keys() & own.keys():
                    assert blocks[key] == own[key]


def attention(engine: Any) -> Sequence[int]:
    """The groups of full attention."""
    [item] = [item for item in engine.half.connection.geometry.classes if item.kind == "attention"]
    return item.groups
