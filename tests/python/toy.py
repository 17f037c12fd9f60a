"""A tiny adapter: numpy arrays and exact integers, written on `hybrid_pages.adapter` alone."""

from collections.abc import Iterator, Sequence

import numpy as np

from hybrid_pages import Geometry, Group, HostEngine, Layer, LeaseEntry, ReadLease, Segment
from hybrid_pages.adapter.arrays import dtype_name, layer_map
from hybrid_pages.adapter.entries import Checksums, Entries
from hybrid_pages.adapter.keys import holding, identity
from hybrid_pages.adapter.pool import Pool
from hybrid_pages.adapter.runtime import Runtime
from hybrid_pages.adapter.session import Session
from hybrid_pages.adapter.staging import finish

BLOCK, DIM, PRIME, VOCAB, BLOCKS = 4, 3, 65521, 50, 16
INT = np.dtype(np.int64)
# Rows of the states: the live one, and the one that is copied out.
LIVE, LEAVING = 0, 1

GEOMETRY = Geometry(
    block_tokens=BLOCK,
    groups=[
        Group("attention", [Layer("0", [Segment("kv", dtype_name(INT), [BLOCK, 2, DIM])])]),
        Group("recurrent", [Layer("1", [Segment("state", dtype_name(INT), [DIM])])]),
    ],
    identity={"model": "toy"},
)


class Toy(Runtime[np.ndarray]):
    """A model of one attention and one recurrent layer, and its cache."""

    def __init__(self, pool: Pool, ids: list[int], *, verify: bool = False) -> None:
        self.ids, self.verify, self.count = ids, verify, 0
        self.pages = np.zeros((BLOCKS, BLOCK, 2, DIM), INT)
        self.rows = np.zeros((BLOCKS, DIM), INT)
        layers = [
            layer_map(group=group, layer=0, array=array)
            for group, array in enumerate((self.pages, self.rows))
        ]
        self.engine = HostEngine(GEOMETRY, pool.arena, rank=0, num_blocks=BLOCKS, layers=layers)

    def step(self, token: int) -> int:
        """Computes one token; the next one."""
        self.rows[LIVE] = (self.rows[LIVE] * 31 + np.arange(DIM) + token + 1) % PRIME
        tokens = self.pages.reshape(-1, 2, DIM)
        tokens[self.count, 0] = (token * 7 + np.arange(DIM)) % PRIME
        tokens[self.count, 1] = (token * 5 + self.count + self.rows[LIVE]) % PRIME
        self.count += 1
        keys, values = tokens[: self.count, 0], tokens[: self.count, 1]
        scores = keys @ self.rows[LIVE] % PRIME
        return int((scores @ values % PRIME).sum() % VOCAB)

    def seen(self) -> int:
        return self.count

    def compute(self, start: int, end: int) -> None:
        for token in self.ids[start:end]:
            self.step(token)

    def states(self) -> np.ndarray:
        return self.rows[LIVE]

    def keep(self, kept: np.ndarray | None) -> np.ndarray:
        return self.rows[LIVE].copy()

    def copy_out(self, entries: Sequence[LeaseEntry], states: np.ndarray | None) -> Checksums:
        if states is not None:
            self.rows[LEAVING] = states
        items = [
            (e.class_index, e.slots, [(e.block_index, LEAVING)[e.class_index]]) for e in entries
        ]
        return [[value] for value in finish(self.engine, self.engine.store(items))]

    def copy_in(self, leases: Iterator[ReadLease], blocks: int) -> None:
        for lease in leases:
            items = [
                (e.class_index, e.slots, [(e.block_index, LIVE)[e.class_index]], checksum)
                for e in lease.entries
                for checksum in (e.checksums if self.verify else [None])
            ]
            finish(self.engine, self.engine.load(items))
        self.count = blocks * BLOCK


def generate(entries: Entries, toy: Toy, new: int, salt: str = "") -> int:
    """Extends the prompt of a fresh toy by so many tokens; how many of it were restored."""
    with holding(entries.cache, identity(salt)) as namespace:
        session = Session(entries, toy, namespace, toy.ids)
        restored = session.resume()
        session.prefill()
        end = len(toy.ids) + new
        while len(toy.ids) < end:
            token = [toy.step(token) for token in toy.ids[toy.count :]][-1]
            session.passed(toy.ids)
            toy.ids.append(token)
        session.finish(toy.ids)
        return restored
