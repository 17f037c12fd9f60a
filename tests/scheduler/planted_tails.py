"""Puts tails into an engine's cache, as a request that ended inside a block leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hybrid_pages import checksum
from hybrid_pages.vllm.scheduler.requests.tails import tail_keys
from simulation.audit import payload_order
from simulation.engine import Engine, origin_of
from simulation.function import Bytes, Prefix, expand
from simulation.memory import LayerMemory


def plant(
    engine: Engine,
    prompt: Sequence[int],
    end: int,
    *,
    state_of: Sequence[int] | None = None,
    page_of: Sequence[int] | None = None,
    classes: Sequence[str] = ("attention", "window", "recurrent"),
    **identity: Any,
) -> None:
    """Publishes the tail after ``end`` tokens of a prompt whose whole blocks are in the cache.

    state_of, page_of: the tokens of whose state and page it has the bytes, if they are others.
    classes: the kinds of its entries.
    """
    if engine.half.connection.arena is None:
        engine.generate([7], 1)  # the ranks report with their first step
    connection, request = engine.half.connection, engine._request(prompt, **identity)
    origin, n = origin_of(request, engine.versions), connection.grid.block_tokens
    keys, block = engine.keys_of(request), end // n
    (key,) = tail_keys(request, keys[block - 1] if block else None, block * n, [end - block * n])
    namespace = connection.cache.namespace(engine.half.epochs.identity(request))
    geometry, arena = connection.geometry, connection.arena
    kinds = {item.index: item.kind for item in geometry.classes}
    wanted = [(index, block) for index, kind in kinds.items() if kind in classes]
    prefixes = {
        kind: Prefix(origin, other if other is not None else prompt)
        for kind, other in (("recurrent", state_of), ("attention", page_of), ("window", page_of))
    }
    with connection.cache.reserve(namespace, keys, wanted, limit=block, tail=key) as lease:
        if state_of is None and page_of is None and not lease.entries:
            return  # an earlier request has left it
        assert len(lease.entries) == len(wanted), lease.skipped
        sums, part = [], arena.slot_bytes // geometry.ranks
        for entry in lease.entries:
            kind = kinds[entry.class_index]
            shards = [
                _shard(engine, rank, entry.class_index, prefixes[kind], block, end)
                for rank in range(geometry.ranks)
            ]
            for index, slot in enumerate(entry.slots):
                piece = slice(index * part, (index + 1) * part)
                arena.write(slot, b"".join(shard[piece].ljust(part, b"\0") for shard in shards))
            sums.append([checksum(shard) for shard in shards])
        lease.commit(sums)
    connection.cache.release_namespace(namespace)


def _shard(
    engine: Engine, rank: int, class_index: int, prefix: Prefix, block: int, end: int
) -> bytes:
    """One rank's bytes of an entry of a tail: zeros behind its tokens."""
    geometry, memory = engine.half.connection.geometry, engine.runners[rank].memory
    item = geometry.classes[class_index]
    parts = []
    for place in item.groups:
        planned = geometry.groups[place]
        group = engine.half.connection.grid.groups[place].table
        n = memory.block_tokens[group]
        for back in range(planned.blocks_per_entry, 0, -1):
            first = (block + 1) * engine.half.connection.grid.block_tokens - back * n
            for layer in memory.groups[group]:
                if item.kind == "recurrent":
                    content = expand([prefix.after(end)], layer.key, layer.token_bytes)
                else:
                    content = _page(layer, prefix, first, n, end)
                parts.append(content.reshape(-1)[payload_order(layer)])
    return np.concatenate(parts).tobytes()


def _page(layer: LayerMemory, prefix: Prefix, first: int, n: int, end: int) -> Bytes:
    page = np.zeros((n, layer.token_bytes), np.uint8)
    digests = prefix.of_tokens(first, max(first, min(first + n, end)))
    page[: len(digests)] = expand(digests, layer.key, layer.token_bytes)
    return page
