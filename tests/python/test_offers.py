"""What a step of an engine completes, read out of its block tables and reserved in one call."""

from __future__ import annotations

import pickle
from collections import defaultdict
from types import SimpleNamespace

import pytest

from cache_support import CHECKPOINT, PAGE, hybrid, keys, make
from hybrid_pages import InvalidArgumentError
from hybrid_pages._core import BlockTables, StoreEntries, TableColumns

SUMS = [0]


def columns(*groups):
    """Of the page's and the state's group: table, tokens, engine blocks of a block, of an entry."""
    return TableColumns(hybrid(), groups or [(1, 16, 1, 1, None), (0, 16, 1, 1, None)])


def plain():
    return columns()


def blocks(*ids):
    return [SimpleNamespace(block_id=number) for number in ids]


def offer(cache, namespace, tables, *, columns=None, first=0, end=3, states=()):
    columns = columns or plain()
    return cache.offer(namespace, keys("abc"), columns, tables, first=first, end=end, states=states)


@pytest.mark.parametrize("tables", [[[], [5, 6, 7]], [[], blocks(5, 6, 7)], ((), (5, 6, 7))])
def test_pages_and_states_come_with_their_engine_blocks(tables):
    cache, namespace = make()
    lease, entries = offer(cache, namespace, tables, states=[(CHECKPOINT, 2, [9])])
    found = [(item, ids) for item, _, ids, _ in entries]
    assert found == [(PAGE, [5]), (PAGE, [6]), (PAGE, [7]), (CHECKPOINT, [9])]
    assert lease.entries == []
    twin, namespace_there = make()
    listed = twin.reserve(
        namespace_there, keys("abc"), [*((PAGE, n) for n in range(3)), (CHECKPOINT, 2)]
    )
    assert [(item, slots) for item, slots, _, _ in entries] == [
        (entry.class_index, entry.slots) for entry in listed.entries
    ]
    lease.commit([SUMS] * 4)
    assert cache.lookup(namespace, keys("abc")).blocks == 3


def test_entries_name_their_sources_and_go_to_another_process_as_they_are():
    cache, namespace = make()
    _, entries = offer(cache, namespace, [[], [5, 6, 7]], states=[(CHECKPOINT, 2, [9])])
    assert entries.sources(list("0123456789")) == ["5", "6", "7", "9"]
    with pytest.raises(IndexError):
        entries.sources(list("012345678"))
    assert len(entries) == 4
    there = pickle.loads(pickle.dumps(entries))
    assert there == entries == StoreEntries(list(entries))
    assert there != StoreEntries(list(entries)[:3])
    with pytest.raises(InvalidArgumentError, match="slot"):
        StoreEntries([(0, [2**40], [1])])


def test_a_page_may_lack_the_engine_blocks_behind_its_tokens():
    entries = StoreEntries([(0, [1], [5, None, 0], 3), (0, [2], [0, 7, 8])])
    listed = [(0, [1], [5, None, None], 3), (0, [2], [0, 7, 8], None)]
    assert list(entries) == listed
    assert pickle.loads(pickle.dumps(entries)) == entries != StoreEntries(listed[:1])
    assert entries != StoreEntries([(0, [1], [5, None, None], 2), listed[1]])
    assert entries.sources(list("0123456789")) == ["5", "0", "7", "8"]
    with pytest.raises(InvalidArgumentError, match="found None in an entry that has all its"):
        StoreEntries([(0, [1], [5, None])])
    with pytest.raises(InvalidArgumentError, match="expected a tuple of 3 to 4, found one of 5"):
        StoreEntries([(0, [1], [5], 3, 1)])


def test_what_is_there_or_has_no_engine_block_is_left_out():
    cache, namespace = make()
    lease, entries = offer(cache, namespace, [[], [5, 6, 0]], first=0)
    assert [ids for _, _, ids, _ in entries] == [[5], [6]]
    lease.commit([SUMS] * 2)
    lease, entries = offer(cache, namespace, [[], [5, 6, 7]])
    assert [ids for _, _, ids, _ in entries] == [[7]]
    assert lease.skipped["resident"] == 2
    assert offer(cache, namespace, [[], [5, 6, 0]], first=2) is None
    assert offer(cache, namespace, [[], [5, 6]], first=2) is None


def test_an_entry_takes_the_last_engine_blocks_of_its_block():
    narrow = columns((0, 4, 4, 2, None), (1, 16, 1, 1, None))
    assert narrow.filled([[1, 2, 3, 4, 5, 6, 7, 8], []], 0, 2) == [(PAGE, 0), (PAGE, 1)]
    cache, namespace = make()
    _, entries = offer(cache, namespace, [[1, 2, 3, 4, 5, 6, 7, 8], []], columns=narrow)
    assert [ids for _, _, ids, _ in entries] == [[3, 4], [7, 8]]


def test_a_load_writes_what_the_tables_have():
    cache, namespace = make()
    lease, _ = offer(cache, namespace, [[], [5, 6, 7]], states=[(CHECKPOINT, 2, [9])])
    lease.commit([[1], [2], [3], [4]])
    lease = cache.acquire(namespace, keys("abc"), first=1)
    found = lease.targets(columns(), [blocks(0, 0, 12), blocks(20, 21, 22)], 48)
    assert [(item, ids, sums) for item, _, ids, sums in found] == [
        (PAGE, [21], [2]),
        (PAGE, [22], [3]),
        (CHECKPOINT, [12], [4]),
    ]
    with pytest.raises(InvalidArgumentError, match="block 2: expected allocated engine blocks"):
        lease.targets(columns(), [[0, 0, 0], [20, 21, 22]], 48)
    with pytest.raises(InvalidArgumentError):
        lease.targets(columns(), [[0, 0, 12], [20, 21]], 48)


def test_wrong_columns_and_engine_blocks_are_rejected():
    with pytest.raises(InvalidArgumentError, match="expected one for each"):
        TableColumns(hybrid(), [(0, 16, 1, 1, None)])
    for count in (0, 2):
        with pytest.raises(InvalidArgumentError, match="columns"):
            columns((0, 16, 1, count, None), (1, 16, 1, 1, None))
    cache, namespace = make()
    with pytest.raises(InvalidArgumentError, match="engine block"):
        offer(cache, namespace, [[], [5, 2**40, 7]])
    with pytest.raises(InvalidArgumentError):
        offer(cache, namespace, [[], []], states=[(CHECKPOINT, 3, [9])])
    stats = cache.stats()
    assert stats["free_slots"] == stats["slots"]


def test_a_group_without_a_table_is_rejected():
    cache, namespace = make()
    with pytest.raises(IndexError, match="at least 2 groups, found 1"):
        offer(cache, namespace, [[5, 6, 7]])
    with pytest.raises(TypeError):
        offer(cache, namespace, [None, [5]])


def test_tables_are_those_that_the_engine_keeps_at_each_call():
    first, second = {"a": [1, 2]}, defaultdict(list, b=[3])
    tables = BlockTables([first, second])
    assert tables("a") == [[1, 2], []]
    first["a"].append(4)
    first["b"] = []
    assert tables("a") == [[1, 2, 4], []] and tables("b") == [[], [3]]
    assert tables("c") == [[], []] and "c" not in second
    with pytest.raises(TypeError):
        tables([])
    with pytest.raises(TypeError):
        BlockTables([[]])


def test_blocks_beyond_all_tables_are_not_there():
    assert plain().filled([[], [5]], 0, 2**62) == [(PAGE, 0)]
    cache, namespace = make()
    lease, entries = offer(cache, namespace, [[], [5]], end=2**62)
    assert [(item, ids) for item, _, ids, _ in entries] == [(PAGE, [5])]
    lease.abort()
    assert offer(cache, namespace, [[], [5]], first=7, end=2**62) is None


def test_a_table_may_ask_for_the_lease_that_reads_it():
    cache, namespace = make()
    lease, _ = offer(cache, namespace, [[], [5, 6, 7]], states=[(CHECKPOINT, 2, [9])])
    lease.commit([SUMS] * 4)
    held = cache.acquire(namespace, keys("abc"))

    class Block:
        @property
        def block_id(self):
            assert not held.released
            return 4

    assert held.targets(plain(), [[Block()] * 3, [Block()] * 3], 48)
