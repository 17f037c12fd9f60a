"""Any sequence of operations gives the outputs of each row alone."""

import os
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybrid_pages.batch import Batch, BlockPool
from reference import KINDS, TAPS, VOCAB, Model, difference, feed, grid

TOLERANCE = 1e-9
OPERATIONS = ["new", "step", "ragged", "merge", "extend", "filter", "extract"]
TOKEN = st.integers(0, VOCAB - 1)


class World:
    """Batches, and beside them the tokens that each of their rows has been given."""

    def __init__(self, model):
        self.model, self.pairs = model, []

    def add(self, batch, rows):
        self.pairs.append((batch, rows))

    def check(self, outputs, rows):
        for row, (out, tokens) in enumerate(zip(outputs, rows, strict=True)):
            found = difference(self.model, out, tokens)
            assert found < TOLERANCE, f"row {row} of {len(tokens)} tokens is off by {found}"

    def step(self, data, batch, rows):
        """One unpadded step of the same number of columns for all rows."""
        columns = data.draw(st.sampled_from([1, 1, 1, 2, 5]), "columns")
        ids = torch.tensor([[data.draw(TOKEN) for _ in range(columns)] for _ in rows])
        for tokens, more in zip(rows, ids.tolist(), strict=True):
            tokens.extend(more)
        self.check(self.model.run(batch, ids), rows)

    def ragged(self, data, batch, rows):
        """Padded steps, at their end or amid them some rows are filtered out."""
        more = [data.draw(st.lists(TOKEN, max_size=9)) for _ in rows]
        left = data.draw(st.booleans(), "left")
        columns = max(1, *map(len, more))
        columns += data.draw(st.integers(0, 2), "extra columns")
        chunk = data.draw(st.integers(1, columns), "chunk")
        ids = grid(more, columns, left=left)
        lengths = [len(tokens) for tokens in more]
        if left:
            batch.prepare(left_padding=[columns - n for n in lengths])
        else:
            batch.prepare(lengths=lengths)
        outputs = ids.new_zeros((len(rows), 0, 16), dtype=torch.float64)
        for part in range(0, columns, chunk):
            if len(rows) > 1 and data.draw(st.integers(0, 3)) == 0:
                kept = data.draw(subset(len(rows)), "kept amid steps")
                batch.filter(kept)
                rows[:] = [rows[i] for i in kept]
                more, ids, outputs = [more[i] for i in kept], ids[kept], outputs[kept]
            outputs = torch.cat([outputs, self.model.run(batch, ids[:, part : part + chunk])], 1)
        if data.draw(st.booleans(), "extract amid steps"):
            row = data.draw(st.integers(0, len(rows) - 1))
            alone = batch.extract(row)
            alone.finalize()
            self.add(alone, [rows[row] + more[row]])
        batch.finalize()
        for tokens, new in zip(rows, more, strict=True):
            tokens.extend(new)
        self.check(
            [
                out[columns - len(new) :] if left else out[: len(new)]
                for out, new in zip(outputs, more, strict=True)
            ],
            rows,
        )

    def audit(self):
        for batch, rows in self.pairs:
            assert batch.size == len(rows)
            assert all(layer.size == len(rows) for layer in batch.layers)
            assert batch.lengths == [len(tokens) for tokens in rows]


def subset(size):
    return st.permutations(range(size)).flatmap(
        lambda rows: st.integers(1, size).map(lambda n: list(rows)[:n])
    )


def play(model, data):
    world = World(model)
    world.add(model.batch(2), [[], []])
    for _ in range(data.draw(st.integers(4, 12), "operations")):
        which = data.draw(st.integers(0, len(world.pairs) - 1), "batch")
        batch, rows = world.pairs[which]
        match data.draw(
            st.sampled_from(["new", "step", "ragged", "merge", "extend", "filter", "extract"])
        ):
            case "new":
                size = data.draw(st.integers(1, 2))
                world.add(model.batch(size), [[] for _ in range(size)])
            case "step":
                world.step(data, batch, rows)
            case "ragged":
                world.ragged(data, batch, rows)
            case "merge":
                chosen = data.draw(st.lists(st.sampled_from(world.pairs), min_size=1, max_size=3))
                merged = Batch.merge([batch for batch, _ in chosen])
                world.add(merged, [list(tokens) for _, rows in chosen for tokens in rows])
            case "extend":
                other, theirs = data.draw(st.sampled_from(world.pairs))
                copied = [list(tokens) for tokens in theirs]
                batch.extend(other)
                rows.extend(copied)
            case "filter":
                kept = data.draw(subset(len(rows)))
                batch.filter(kept)
                rows[:] = [rows[i] for i in kept]
            case "extract":
                row = data.draw(st.integers(0, len(rows) - 1))
                world.add(batch.extract(row), [list(rows[row])])
        world.audit()
    # Whatever shared memory with whatever: one more token for every row there is.
    for batch, rows in world.pairs:
        world.step(data, batch, rows)
    return world


# How many courses: `make prove NAME=batch` asks for more.
COURSES = int(os.environ.get("HYBRID_PAGES_FUZZ", "60"))
PLAYED = settings(max_examples=COURSES, deadline=None, suppress_health_check=list(HealthCheck))


@PLAYED
@given(st.data())
def test_any_operations_equal_each_row_alone(data):
    play(Model(), data)


@PLAYED
@given(st.data(), st.integers(1, 4))
def test_any_operations_equal_each_row_alone_over_block_tables(data, block_tokens):
    pool = BlockPool(2000, block_tokens)
    world = play(Model(pool=pool), data)
    expected = Counter(
        block for batch, _ in world.pairs for row in batch.layers[0].table.rows for block in row
    )
    assert {b: pool.references(b) for b in range(pool.blocks)} == {
        b: expected[b] for b in range(pool.blocks)
    }
    assert pool.free_blocks == pool.blocks - len(expected)
    for batch, _ in world.pairs:
        batch.release()
    assert pool.free_blocks == pool.blocks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", [False, True])
def test_each_kind_alone_takes_ragged_chunks(kind, left):
    model = Model(layers=[KINDS[kind]])
    rows = [list(range(11)), [5], [], [3, 1, 4, 1, 5]]
    more = [[7], [], [2, 7], list(range(8))]
    for chunk in (None, 1, 3, TAPS):
        batch = model.batch(4)
        feed(model, batch, rows, left=left, chunk=chunk, columns=12)
        outputs = feed(model, batch, more, left=not left, chunk=chunk)
        whole = [a + b for a, b in zip(rows, more, strict=True)]
        assert max(map(difference, [model] * 4, outputs, whole)) < TOLERANCE
