"""The core without a framework: `Cache`, `Arena` and `HostEngine` over numpy arrays.

    python examples/core_numpy.py

A toy hybrid model writes a page for each block of tokens and carries a recurrent state from block
to block. A first prompt is computed and stored. A second one starts with the same tokens: it
restores their pages and the state at their end, computes the rest, and ends as if all of it had
been computed.
"""

from __future__ import annotations

import hashlib

import numpy as np

from hybrid_pages import Arena, Cache, Geometry, Group, HostEngine, Layer, LayerMap, Segment

BLOCK_TOKENS, WIDTH, STATE = 16, 32, 64
# The order of a geometry's classes: attention first, recurrent last.
ATTENTION, RECURRENT = 0, 1


class Engine:
    """The toy model and its memory: a pool of blocks, each with room for a page and a state."""

    def __init__(self, blocks: int) -> None:
        self.pages = np.zeros((blocks, BLOCK_TOKENS, WIDTH), np.float32)
        self.states = np.zeros((blocks, STATE), np.float32)

    def compute(self, tokens: np.ndarray, blocks: list[int], start: int) -> None:
        """Fill blocks from number `start` on; the state continues from the block before."""
        for i in range(start, len(blocks)):
            some = tokens[i * BLOCK_TOKENS : (i + 1) * BLOCK_TOKENS]
            self.pages[blocks[i]] = np.sin(np.outer(some, np.arange(1, WIDTH + 1)))
            state = self.states[blocks[i - 1]] if i else np.zeros(STATE, np.float32)
            for token in some:
                state = np.float32(0.9) * state + np.cos(token * np.arange(STATE, dtype=np.float32))
            self.states[blocks[i]] = state

    def layers(self) -> list[LayerMap]:
        """Where each layer's blocks are: here one array per group, dense."""
        return [
            LayerMap(
                group=group,
                layer=0,
                address=array.ctypes.data,
                nbytes=array.nbytes,
                block_stride=array.strides[0],
                runs=[(0, array.strides[0])],
            )
            for group, array in enumerate((self.pages, self.states))
        ]


def chained_keys(tokens: np.ndarray) -> list[bytes]:
    """One key per full block: a hash of all tokens up to its end."""
    ends = range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS)
    return [hashlib.sha256(tokens[:end].tobytes()).digest() for end in ends]


def finish(copies: HostEngine, ticket: int) -> list[int]:
    """Wait for a transfer; the checksums of a store."""
    copies.wait(ticket)
    (completion,) = copies.poll()
    if not completion.ok:
        raise RuntimeError(completion.error)
    return completion.checksums


def main() -> int:
    page = Layer("attention", [Segment("kv", "float32", (BLOCK_TOKENS, WIDTH))])
    state = Layer("recurrent", [Segment("state", "float32", (STATE,))])
    geometry = Geometry(
        block_tokens=BLOCK_TOKENS,
        groups=[Group("attention", [page]), Group("recurrent", [state])],
        identity={"model": "toy"},
    )
    slot_bytes, slots = geometry.suggest_slot_bytes(), 1024
    cache = Cache(geometry, slot_bytes=slot_bytes, slots=slots)
    arena = Arena.create(geometry, slot_bytes=slot_bytes, slots=slots)
    engine = Engine(blocks=32)
    copies = HostEngine(
        geometry, arena, rank=0, num_blocks=32, layers=engine.layers(), owners=engine
    )
    namespace = cache.namespace(b"")  # one per tenant or adapter

    # The first prompt: 6 blocks, computed and stored with one checkpoint, at its end.
    first = np.random.default_rng(0).integers(0, 1000, 6 * BLOCK_TOKENS)
    keys, blocks = chained_keys(first), list(range(6))
    engine.compute(first, blocks, start=0)
    wanted = [(ATTENTION, i) for i in range(6)] + [(RECURRENT, 5)]
    with cache.reserve(namespace, keys, wanted) as lease:
        # Per entry: its class, its slots in the arena, and the engine's block for each group.
        ticket = copies.store(
            [(e.class_index, e.slots, [blocks[e.block_index]]) for e in lease.entries]
        )
        lease.commit([[checksum] for checksum in finish(copies, ticket)])

    # The second prompt: the same 6 blocks and 2 more, in other blocks of the engine.
    second = np.concatenate([first, np.arange(2 * BLOCK_TOKENS)])
    keys, blocks = chained_keys(second), list(range(10, 18))
    with cache.acquire(namespace, keys) as found:
        restored = found.blocks
        ticket = copies.load(
            [
                (e.class_index, e.slots, [blocks[e.block_index]], e.checksums[0])
                for e in found.entries
            ]
        )
        finish(copies, ticket)
    engine.compute(second, blocks, start=restored)

    cold = Engine(blocks=8)
    cold.compute(second, list(range(8)), start=0)
    if not np.array_equal(engine.pages[10:18], cold.pages):
        raise AssertionError("expected the pages of a cold run")
    if not np.array_equal(engine.states[17], cold.states[7]):
        raise AssertionError("expected the last state of a cold run")
    copies.close()
    print(f"restored {restored} of {len(keys)} blocks; pages and state equal those of a cold run")
    return restored


if __name__ == "__main__":
    main()
