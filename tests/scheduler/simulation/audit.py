"""Compares the cache with the function: every entry that a lookup can reach."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from hybrid_pages import Arena, Group
from hybrid_pages.vllm.scheduler.requests.tails import tail_keys

from .function import Bytes, Prefix, expand
from .memory import LayerMemory

if TYPE_CHECKING:
    from .engine import Engine


class WrongEntry(AssertionError):
    """An entry of the cache does not hold what its prefix says."""


def payload_order(layer: LayerMemory) -> Any:
    """Where the bytes of a block, in memory order, lie in [kernel block, token, head, byte]."""
    shape, strides = layer.live.shape[1:], layer.block_strides
    grids = np.indices(shape, sparse=True)
    offsets = sum(grid * stride for grid, stride in zip(grids, strides, strict=True))
    return np.argsort(offsets, axis=None)


def _in_places(planned: Group, layers: list[LayerMemory]) -> list[LayerMemory | int]:
    """A rank's layers in the places of those of a group: each in the first free one of its size. Of
    places that it has nothing for, the size."""
    found: list[LayerMemory | int] = [layer.bytes for layer in planned.layers]
    for layer in layers:
        found[found.index(prod(layer.live.shape[1:]))] = layer
    return found


def _arena(engine: Engine) -> Arena | None:
    """The planes of all ranks, those of other nodes included."""
    connection = engine.half.connection
    if connection.arena is not None or connection.agreement.geometry is None:
        return connection.arena
    planes = [runner.connector.worker._arena.path for runner in engine.runners]
    return Arena.open(planes, connection.agreement.plan)


class Audit:
    """Reads an engine's arena as a loader would."""

    def __init__(self, engine: Engine) -> None:
        half = engine.half
        self.engine, self.geometry, self.arena, self.cache = (
            engine,
            half.connection.geometry,
            _arena(engine),
            half.connection.cache,
        )
        self.grid = half.connection.grid
        self.block_tokens = self.grid.block_tokens
        self.checked: set[tuple[int, ...]] = set()
        self.tails: set[bytes] = set()
        """Keys of the tails that were checked."""

    def run(self) -> int:
        """Checks the entries of every prompt and answer of the engine; returns how many.

        Nobody finds entries of earlier weights: those of later ones have taken their keys.
        """
        for result in filter(self.engine.current, self.engine.results.values()):
            request = result.request
            prefix = Prefix(self.engine.origin(request), request.all_token_ids)
            epochs = self.engine.half.epochs
            namespace = self.cache.namespace(epochs.identity(request))
            keys = self.engine.keys_of(request)
            for depth in range(1, len(keys) + 1):
                lease = self.cache.acquire(namespace, keys, limit=depth)
                if lease is not None:
                    with lease:
                        for entry in lease.entries:
                            self._check(entry, prefix, request.request_id)
            self._check_tails(request, prefix, namespace, keys)
            self.cache.release_namespace(namespace)
        return len(self.checked)

    def _check_tails(self, request: Any, prefix: Prefix, namespace: int, keys: Any) -> None:
        """Checks every tail that ends inside a block of a request."""
        n = self.block_tokens
        for blocks, lengths in self.cache.tail_lengths(namespace, keys)[0]:
            known = [length for length in lengths if blocks * n + length <= len(prefix)]
            before = keys[blocks - 1] if blocks else None
            for length, tail in zip(
                known, tail_keys(request, before, blocks * n, known), strict=True
            ):
                lease = self.cache.acquire(namespace, keys, limit=blocks, tail=tail)
                if lease is None:
                    continue
                with lease:
                    if lease.blocks == blocks + 1:
                        self.tails.add(tail)
                    for entry in lease.entries:
                        end = (blocks * n + length) if entry.block_index == blocks else None
                        self._check(entry, prefix, request.request_id, end)

    def _check(
        self, entry: Any, prefix: Prefix, request_id: str, tail_end: int | None = None
    ) -> None:
        if tuple(entry.slots) in self.checked:
            return
        self.checked.add(tuple(entry.slots))
        assert self.arena is not None, "an entry was published before all ranks had reported"
        size = self.geometry.classes[entry.class_index].rank_bytes
        held = [self.arena.read(slot) for slot in entry.slots]
        part = self.arena.slot_bytes // self.geometry.ranks
        found = b"".join(
            b"".join(slot[rank * part : (rank + 1) * part] for slot in held)[:size]
            for rank in range(self.geometry.ranks)
        )
        expected, counts = self._expected(entry, prefix, tail_end)
        if not np.array_equal(np.frombuffer(found, np.uint8)[counts], expected[counts]):
            kind = self.geometry.classes[entry.class_index].kind
            what = "" if tail_end is None else f", of which it has {tail_end} tokens"
            raise WrongEntry(f"{kind} entry of block {entry.block_index} of {request_id}{what}")

    def _expected(self, entry: Any, prefix: Prefix, tail_end: int | None) -> tuple[Bytes, Bytes]:
        """The bytes of an entry, and which of them count.

        tail_end: where its tokens end, if inside the block. What lies behind them in a page may be
        another request's in the engine, and is zero here.
        """
        end = (entry.block_index + 1) * self.block_tokens
        last = end if tail_end is None else tail_end
        item = self.geometry.classes[entry.class_index]
        parts, counts = [], []
        for runner in self.engine.runners:
            memory = runner.memory
            for place in item.groups:
                planned, group = self.geometry.groups[place], self.grid.groups[place].table
                n, per_state = memory.block_tokens[group], memory.tokens_per_state[group]
                for back in range(planned.blocks_per_entry, 0, -1):
                    first = end - back * n
                    for layer in _in_places(planned, memory.groups[group]):
                        if isinstance(layer, int):  # of other pipeline stages
                            parts.append(np.zeros(layer, np.uint8))
                            counts.append(np.ones(layer, dtype=bool))
                            continue
                        if item.kind == "recurrent":
                            digests = [prefix.after(last)]
                        elif layer.drafts:
                            ahead = runner.lookahead
                            digests = prefix.of_tokens(first + ahead, first + n + ahead)
                        else:
                            reaches = max(first, min(first + n, last))
                            digests = prefix.of_states(
                                first // per_state, reaches // per_state, per_state
                            )
                        content = expand(digests, layer.key, layer.token_bytes)
                        if item.kind != "recurrent":
                            missing = n // per_state - len(content)
                            content = np.pad(content, ((0, missing), (0, 0)))
                        if layer.shard is not None:
                            content = content[layer.shard.keeps(np.arange(len(content)))]
                        if layer.form is not None:
                            content = layer.form.at(prefix, end, layer.key)
                            counts.append(layer.form.counting)
                        else:
                            counts.append(np.ones(content.size, dtype=bool))
                        parts.append(content.reshape(-1)[payload_order(layer)])
        return np.concatenate(parts), np.concatenate(counts)
