"""Block tables: no bytes move, references are counted, shared blocks are copied before a write."""

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid_pages import BudgetError, InvalidArgumentError
from hybrid_pages.batch import Batch, BlockPool, BlockTable
from reference import Model, difference, feed

COURSE = ["append", "append", "select", "join", "drop", "truncate"]


def test_rows_are_rearranged_without_moving_bytes():
    pool = BlockPool(16, 4)
    model = Model(pool=pool)
    batch = Batch.merge([model.batch(), model.batch()])
    feed(model, batch, [[1, 2, 3, 4, 5, 6], [7, 8, 9]])
    paged = batch.layers[0]
    stored = paged.storage.keys.clone()
    version = paged.storage.keys._version
    blocks = paged.table.rows
    batch.extend(batch.extract(0))
    batch.filter([2, 1])
    merged = Batch.merge([batch, batch])
    assert merged.layers[0].table.rows == [blocks[0], blocks[1]] * 2
    assert paged.storage.keys._version == version
    assert torch.equal(paged.storage.keys.nan_to_num(0), stored.nan_to_num(0))
    assert pool.free_blocks == 16 - 3


def test_a_shared_last_block_is_copied_before_it_is_written():
    pool = BlockPool(16, 4)
    model = Model(pool=pool)
    batch = model.batch()
    feed(model, batch, [[1, 2, 3, 4, 5]])
    (blocks,) = batch.layers[0].table.rows
    forks = Batch.merge([batch, batch])
    outputs = model.run(forks, torch.tensor([[6], [7]]))
    rows = forks.layers[0].table.rows
    assert [row[0] for row in rows] == [blocks[0]] * 2
    assert len({blocks[1], rows[0][1], rows[1][1]}) == 3
    for out, tokens in zip(outputs, ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 7]), strict=True):
        assert difference(model, out, tokens) < 1e-9
    assert difference(model, model.run(batch, torch.tensor([[8]]))[0], [1, 2, 3, 4, 5, 8]) < 1e-9


def test_a_write_into_a_shared_block_turns_the_comparison_red(monkeypatch):
    monkeypatch.setattr(BlockPool, "references", lambda pool, block: 1)
    model = Model(pool=BlockPool(16, 4))
    batch = model.batch()
    feed(model, batch, [[1, 2, 3, 4, 5]])
    forks = Batch.merge([batch, batch])
    outputs = model.run(forks, torch.tensor([[6], [7]]))
    assert difference(model, outputs[0], [1, 2, 3, 4, 5, 6]) > 1e-4


def test_the_last_user_of_a_block_writes_it_in_place():
    pool = BlockPool(8, 4)
    table = BlockTable(pool)
    table.append([3])
    forks = table.join([table])
    table.release()
    (first,), (second,) = forks.rows
    assert first == second
    copies = forks.append([1, 1])
    assert copies == [(first, forks.rows[0][0])]
    assert forks.rows[1] == [first]


def test_a_full_shared_block_is_not_copied():
    pool = BlockPool(8, 4)
    table = BlockTable(pool)
    table.append([4])
    forks = table.join([table])
    assert (
        forks.append(
            [
                1,
                0,
            ]
        )
        == []
    )
    assert [len(row) for row in forks.rows] == [2, 1]


def test_indices_name_each_tokens_place():
    pool = BlockPool(8, 2)
    table = BlockTable(pool, 2)
    table.append([3, 0])
    table.append([0, 1])
    table.append([2, 0])
    first, second = table.rows
    positions = torch.tensor([[0, 1, 2, 3, 4], [-1, -1, -1, -1, 0]])
    expected = [first[0] * 2, first[0] * 2 + 1, first[1] * 2, first[1] * 2 + 1, first[2] * 2]
    assert table.indices(positions).tolist() == [expected, [0, 0, 0, 0, second[0] * 2]]
    assert table.block_table().tolist() == [first, [second[0], -1, -1]]


def test_blocks_return_when_a_table_is_dropped():
    pool = BlockPool(4, 2)
    table = BlockTable(pool)
    table.append([8])
    fork = table.select([0])
    table.release()
    table.release()
    assert pool.free_blocks == 0
    del fork
    gc.collect()
    assert pool.free_blocks == 4


def test_too_few_blocks_change_nothing():
    pool = BlockPool(3, 2)
    table = BlockTable(pool, 2)
    table.append([3, 1])
    rows = table.rows
    with pytest.raises(BudgetError, match="expected 1 free blocks of 2 tokens, found 0 of 3"):
        table.append([0, 2])
    assert (table.rows, table.lengths) == (rows, [3, 1])
    table.append([1, 1])


def test_wrong_numbers_are_refused():
    pool = BlockPool(3, 2)
    table = BlockTable(pool, 2)
    table.append([2, 1])
    for wrong in ([1], [1, -1], [1, 0.5]):
        with pytest.raises(InvalidArgumentError):
            table.append(wrong)
    with pytest.raises(InvalidArgumentError, match="at most"):
        table.truncate([3, 1])
    for blocks, block_tokens in ((0, 1), (1, 0), (-1, 1), (True, 1)):
        with pytest.raises(InvalidArgumentError):
            BlockPool(blocks, block_tokens)


@settings(max_examples=80, deadline=None)
@given(st.data(), st.integers(1, 4))
def test_any_course_of_tables_equals_lists_of_tokens(data, width):
    """Against plain lists: contents, counted references, and refusals that change nothing."""
    pool = BlockPool(data.draw(st.integers(3, 30)), width)
    storage: dict[int, int] = {}
    tables = [(BlockTable(pool, 2), [[], []])]
    fresh = iter(range(10**6))
    for _ in range(data.draw(st.integers(1, 15))):
        table, rows = data.draw(st.sampled_from(tables))
        match data.draw(
            st.sampled_from(["append", "append", "select", "join", "drop", "truncate"])
        ):
            case "append":
                counts = [data.draw(st.integers(0, 5)) for _ in rows]
                before = (table.rows, table.lengths, pool.free_blocks)
                try:
                    copies = table.append(counts)
                except BudgetError:
                    assert before == (table.rows, table.lengths, pool.free_blocks)
                    continue
                for source, target in copies:
                    for place in range(width):
                        storage[target * width + place] = storage.get(source * width + place, -1)
                for i, count in enumerate(counts):
                    first = len(rows[i])
                    for place in range(first, first + count):
                        position = torch.full((len(rows), 1), -1)
                        position[i] = place
                        value = next(fresh)
                        rows[i].append(value)
                        storage[int(table.indices(position)[i])] = value
            case "select":
                order = data.draw(st.permutations(range(len(rows))))
                kept = order[: data.draw(st.integers(1, len(rows)))]
                tables.append((table.select(kept), [list(rows[i]) for i in kept]))
            case "join":
                other, theirs = data.draw(st.sampled_from(tables))
                tables.append((table.join([other]), [list(row) for row in rows + theirs]))
            case "truncate":
                lengths = [data.draw(st.integers(0, len(row))) for row in rows]
                table.truncate(lengths)
                for row, length in zip(rows, lengths, strict=True):
                    del row[length:]
            case "drop" if len(tables) > 1:
                table.release()
                tables = [pair for pair in tables if pair[0] is not table]
        used: list[int] = []
        for table, rows in tables:
            assert table.lengths == [len(row) for row in rows]
            used += [block for blocks in table.rows for block in blocks]
            for i, row in enumerate(rows):
                position = torch.full((len(rows), max(1, len(row))), -1)
                position[i, : len(row)] = torch.arange(len(row))
                indices = table.indices(position)[i, : len(row)].tolist()
                assert [storage[index] for index in indices] == row
        assert [pool.references(block) for block in range(pool.blocks)] == [
            used.count(block) for block in range(pool.blocks)
        ]
        assert pool.free_blocks == pool.blocks - len(set(used))
