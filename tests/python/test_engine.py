"""The host engine from Python: real memory, other threads, other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from hybrid_pages import _core
from hybrid_pages._core import (
    Arena,
    Geometry,
    Group,
    HostEngine,
    Layer,
    LayerMap,
    Segment,
    StoreEntries,
    checksum,
)
from ownership import check_owner_is_kept

BLOCKS = 6
PAGE, STATE = 48, 80


def geometry(ranks: int = 1) -> Geometry:
    attention = [Layer(f"a{i}", [Segment("kv", "int16", [PAGE // 2])]) for i in range(2)]
    recurrent = [[Layer(f"r{i}", [Segment("state", "float32", [STATE // 4])])] for i in range(2)]
    groups = [Group("attention", attention), *(Group("recurrent", layers) for layers in recurrent)]
    return Geometry(block_tokens=16, groups=groups, ranks=ranks, identity={})


class Machine:
    """An engine over numpy memory in which all groups are overlaid, blocks padded to 128 bytes."""

    STRIDE = 128

    def __init__(self, arena: Arena, ranks: int = 1, rank: int = 0, seed: int = 0) -> None:
        self.memory = np.random.default_rng(seed).integers(0, 256, (BLOCKS, 128), np.uint8)
        self.engine = HostEngine(
            geometry(ranks),
            arena,
            rank=rank,
            num_blocks=BLOCKS,
            layers=[
                self.map(0, 0, [(0, PAGE)], tokens=[(0, [(16, 1)], PAGE // 16)]),
                self.map(0, 1, [(PAGE, PAGE)], tokens=[(0, [(PAGE // 16, 0), (16, 1)], 1)]),
                self.map(1, 0, [(8, 30), (48, 50)]),
                self.map(2, 0, [(0, STATE)]),
            ],
            owners=self.memory,
        )

    def map(self, group: int, layer: int, runs: list[tuple[int, int]], **changes) -> LayerMap:
        arguments = {
            "group": group,
            "layer": layer,
            "address": self.memory.ctypes.data,
            "nbytes": self.memory.nbytes,
            "block_stride": self.STRIDE,
            "runs": runs,
        }
        return LayerMap(**(arguments | changes))

    def page(self, block: int) -> bytes:
        return self.memory[block, : 2 * PAGE].tobytes()

    def state(self, first: int, second: int) -> bytes:
        split = self.memory[first, 8:38].tobytes() + self.memory[first, 48:98].tobytes()
        return split + self.memory[second, :STATE].tobytes()

    def run(self, ticket: int) -> _core.Completion:
        assert self.engine.wait(ticket)
        (completion,) = self.engine.poll()
        assert completion.ticket == ticket
        return completion


def make_arena(ranks: int = 1) -> Arena:
    return Arena.create(geometry(ranks), slot_bytes=32 * ranks, slots=64)


def payload(arena: Arena, slots: list[int]) -> bytes:
    return b"".join(arena.read(slot) for slot in slots)


PAGE_SLOTS = [9, 1, 2]
STATE_SLOTS = [20, 21, 22, 40, 11]


def test_a_page_and_a_checkpoint_make_the_round_trip() -> None:
    arena = make_arena()
    one = Machine(arena, seed=1)
    before = one.memory.copy()
    stored = one.run(one.engine.store([(0, PAGE_SLOTS, [3]), (1, STATE_SLOTS, (4, 5))]))
    assert (stored.ok, stored.error, stored.bytes) == (True, None, 2 * PAGE + 2 * STATE)
    assert stored.seconds >= 0
    assert payload(arena, PAGE_SLOTS) == one.page(3)
    assert payload(arena, STATE_SLOTS) == one.state(4, 5)
    assert stored.checksums == [checksum(one.page(3)), checksum(one.state(4, 5))]
    assert (one.memory == before).all()

    two = Machine(arena, seed=2)
    before = two.memory.copy()
    page = stored.checksums[0]
    loaded = two.run(two.engine.load([(0, PAGE_SLOTS, [0], page), (1, STATE_SLOTS, [1, 2], None)]))
    assert (loaded.ok, loaded.bytes, loaded.checksums) == (True, 2 * PAGE + 2 * STATE, [])
    assert two.page(0) == one.page(3)
    assert two.state(1, 2) == one.state(4, 5)
    # Padding and every other block are as they were.
    assert (two.memory[0, 2 * PAGE :] == before[0, 2 * PAGE :]).all()
    assert (two.memory[1, 38:48] == before[1, 38:48]).all()
    assert (two.memory[3:] == before[3:]).all()


def test_ranks_fill_their_shards_of_one_entry() -> None:
    arena = make_arena(ranks=2)
    machines = [Machine(arena, ranks=2, rank=rank, seed=rank) for rank in range(2)]
    slots = [5, 4, 3]
    sums = [m.run(m.engine.store([(0, slots, [2])])).checksums for m in machines]
    shards = [m.page(2) for m in machines]
    for rank, shard in enumerate(shards):
        parts = [arena.read(slot)[32 * rank :][:32] for slot in slots]
        assert b"".join(parts) == shard
    assert sums == [[checksum(shard)] for shard in shards]


def several_blocks(memory: np.ndarray) -> tuple[Arena, HostEngine]:
    """An engine whose pages are three of its blocks of 16 bytes, and whose states two of 40."""
    groups = [
        Group("attention", [Layer("a", [Segment("kv", "uint8", [16])])], blocks_per_entry=3),
        Group("recurrent", [Layer("r", [Segment("state", "uint8", [40])])], blocks_per_entry=2),
    ]
    made = Geometry(block_tokens=48, groups=groups, identity={})
    arena = Arena.create(made, slot_bytes=64, slots=8)
    layers = [
        LayerMap(
            group=group,
            layer=0,
            address=memory.ctypes.data + start,
            nbytes=blocks * size,
            block_stride=size,
            runs=[(0, size)],
        )
        for group, (start, blocks, size) in enumerate([(0, 10, 16), (160, 5, 40)])
    ]
    engine = HostEngine(made, arena, rank=0, num_blocks=(10, 5), layers=layers, owners=memory)
    return arena, engine


def test_entries_of_several_blocks_per_group_make_the_round_trip() -> None:
    memory = np.random.default_rng(3).integers(0, 256, 360, np.uint8)
    before = memory.copy()
    pages, states = before[:160].reshape(10, 16), before[160:].reshape(5, 40)
    arena, engine = several_blocks(memory)
    entries = [(0, [2], [9, 0, 4]), (1, [5, 3], [4, 1])]
    assert engine.wait(engine.store(entries))
    (stored,) = engine.poll()
    payloads = [pages[[9, 0, 4]].tobytes(), states[[4, 1]].tobytes()]
    assert stored.checksums == [checksum(bytes_) for bytes_ in payloads]
    assert arena.read(2)[:48] == payloads[0]
    assert (arena.read(5) + arena.read(3))[:80] == payloads[1]

    back = [(0, [2], [1, 2, 3]), (1, [5, 3], [0, 2])]
    assert engine.wait(engine.load([(*e, s) for e, s in zip(back, stored.checksums, strict=True)]))
    (loaded,) = engine.poll()
    assert loaded.ok, loaded.error
    expected = before.copy()
    expected[:160].reshape(10, 16)[[1, 2, 3]] = pages[[9, 0, 4]]
    expected[160:].reshape(5, 40)[[0, 2]] = states[[4, 1]]
    assert (memory == expected).all()

    part = [(0, [2], [None, 8, None], stored.checksums[0])]
    assert engine.wait(engine.load(part))
    (loaded,) = engine.poll()
    assert (loaded.error, loaded.bytes) == (None, 16)
    expected[:160].reshape(10, 16)[8] = pages[0]
    assert (memory == expected).all()
    with pytest.raises(_core.InvalidArgumentError, match="a store needs every block"):
        engine.store([(0, [2], [None, 8, 9])])

    for blocks, message in [
        ([0, 1], r"blocks: expected 3 \(3 of group 0\), found 2"),
        ([0, 1, 10], "block of group 0: expected below 10, found 10"),
    ]:
        with pytest.raises(_core.InvalidArgumentError, match=message):
            engine.store([(0, [2], blocks)])
    with pytest.raises(_core.InvalidArgumentError, match="block of group 1: expected below 5"):
        engine.store([(1, [5, 3], [0, 5])])


def test_a_damaged_entry_is_reported_and_only_its_own_blocks_are_written() -> None:
    arena = make_arena()
    machine = Machine(arena)
    (page,) = machine.run(machine.engine.store([(0, PAGE_SLOTS, [3])])).checksums
    first = arena.read(1)
    arena.write(1, bytes([first[0] ^ 1]))
    before = machine.memory.copy()
    failed = machine.run(machine.engine.load([(0, PAGE_SLOTS, [0], page)]))
    assert not failed.ok
    assert f"expected {page:016x}, found" in failed.error
    assert (failed.bytes, failed.checksums) == (0, [])
    assert repr(failed).startswith("Completion(ticket=2, error='checksum of entry 0")
    written = machine.memory.copy()
    machine.memory[:] = before
    assert machine.run(machine.engine.load([(0, PAGE_SLOTS, [0], None)])).ok
    assert (machine.memory == written).all()


CHILD = """
import sys, numpy as np
from hybrid_pages._core import Arena, Geometry, HostEngine, LayerMap
path, text = sys.argv[1:3]
geometry = Geometry.from_json(text)
memory = np.full((2, 200), 7, np.uint8)
runs = {(0, 0): (0, 48), (0, 1): (48, 48), (1, 0): (0, 80), (2, 0): (80, 80)}
layers = [
    LayerMap(group=group, layer=layer, address=memory.ctypes.data, nbytes=memory.nbytes,
             block_stride=200, runs=[run])
    for (group, layer), run in runs.items()
]
engine = HostEngine(geometry, Arena.open(path, geometry), rank=0, num_blocks=2, layers=layers)
assert engine.wait(engine.store([(0, [9, 1, 2], [1])]))
(completion,) = engine.poll()
assert completion.ok, completion.error
print(completion.checksums[0])
"""


def test_what_another_process_stores_this_one_loads() -> None:
    arena = make_arena()
    command = [sys.executable, "-c", CHILD, arena.path, geometry().to_json()]
    child = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert child.returncode == 0, child.stderr
    machine = Machine(arena)
    loaded = machine.run(machine.engine.load([(0, PAGE_SLOTS, [4], int(child.stdout))]))
    assert loaded.ok, loaded.error
    assert machine.page(4) == bytes([7]) * 2 * PAGE


@pytest.mark.parametrize("packed", [False, True])
def test_only_the_tokens_of_a_page_are_stored(packed: bool) -> None:
    machine = Machine(make_arena())
    entries = [(0, PAGE_SLOTS, [3], 5)]
    done = machine.run(machine.engine.store(StoreEntries(entries) if packed else entries))
    assert done.ok, done.error
    page = np.frombuffer(machine.page(3), np.uint8)
    rows, columns = page[:PAGE].reshape(16, -1).copy(), page[PAGE:].reshape(-1, 16).copy()
    rows[5:] = columns[:, 5:] = 0
    expected = rows.tobytes() + columns.tobytes()
    assert machine.run(machine.engine.load([(0, PAGE_SLOTS, [4], None)])).ok
    assert machine.page(4) == expected != page.tobytes()
    assert (done.checksums, done.bytes) == ([checksum(expected)], 5 * 2 * PAGE // 16)
    for tokens in (0, 16, 17):
        with pytest.raises(_core.InvalidArgumentError, match="tokens: expected 1 to 15"):
            machine.engine.store([(0, PAGE_SLOTS, [3], tokens)])


def test_bad_entries_are_refused_before_a_byte_moves() -> None:
    arena = make_arena()
    machine = Machine(arena)
    before = machine.memory.copy()
    bad = [
        (2, PAGE_SLOTS, [0]),
        (0, [0, 1], [0]),
        (0, [0, 1, 64], [0]),
        (0, [0, 1, 2**32], [0]),
        (0, [0, 1, 1], [0]),
        (0, [0, 1, -2], [0]),
        (0, PAGE_SLOTS, []),
        (0, PAGE_SLOTS, [BLOCKS]),
        (0, PAGE_SLOTS, [-1]),
        (1, STATE_SLOTS, [1]),
    ]
    good = (0, [30, 31, 32], [1])
    for entry in bad:
        with pytest.raises(_core.InvalidArgumentError, match="expected"):
            machine.engine.store([good, entry])
        with pytest.raises(_core.InvalidArgumentError, match="expected"):
            machine.engine.load([(*good, None), (*entry, None)])
    with pytest.raises(_core.InvalidArgumentError):
        machine.engine.load([(*good, 2**64)])
    for entry in [(), good[:2], (*good, None, None)]:
        with pytest.raises(_core.InvalidArgumentError, match="expected a tuple of 3"):
            machine.engine.store([entry])
    for entry in [None, list(good), ("0", PAGE_SLOTS, [0]), (0, 1, [0]), (0, PAGE_SLOTS, "0")]:
        with pytest.raises(TypeError):
            machine.engine.store([entry])
    assert machine.engine.in_flight == 0
    assert machine.engine.poll() == []
    assert (machine.memory == before).all()
    assert payload(arena, list(range(64))) == bytes(64 * 32)


def test_bad_layouts_are_refused() -> None:
    arena = make_arena()
    machine = Machine(arena)
    maps = [
        machine.map(0, 0, [(0, PAGE)]),
        machine.map(0, 1, [(PAGE, PAGE)]),
        machine.map(1, 0, [(0, STATE)]),
        machine.map(2, 0, [(0, STATE)]),
    ]

    def build(layers=maps, *, of=arena, **changes) -> HostEngine:
        arguments = {"rank": 0, "num_blocks": BLOCKS, "layers": layers}
        return HostEngine(geometry(), of, **(arguments | changes))

    build()
    for layers, message in [
        (maps[:3], "found none"),
        ([*maps, maps[0]], "found two"),
        ([*maps, machine.map(3, 0, [(0, 1)])], "expected a layer of the geometry"),
    ]:
        with pytest.raises(_core.InvalidArgumentError, match=message):
            build(layers)
    for last, message in [
        (machine.map(2, 0, [(0, STATE - 1)]), "expected runs of 80 bytes"),
        (machine.map(2, 0, [(100, STATE)]), "block stride"),
        (machine.map(2, 0, [(0, STATE)], nbytes=700), "expected a region for 6 blocks"),
    ]:
        with pytest.raises(_core.GeometryError, match=message):
            build([*maps[:3], last])
    for changes in [{"rank": 1}, {"num_blocks": 0}, {"threads": 0}, {"threads": 1000}]:
        with pytest.raises(_core.InvalidArgumentError):
            build(**changes)
    build(num_blocks=[BLOCKS, 1, 2])
    for num_blocks, message in [
        ([BLOCKS, BLOCKS], "expected one per group, 3, found 2"),
        ([BLOCKS, BLOCKS, 0], "group 2: expected at least 1, found 0"),
        ([BLOCKS, BLOCKS, -1], "expected an integer from 0"),
    ]:
        with pytest.raises(_core.InvalidArgumentError, match=message):
            build(num_blocks=num_blocks)
    for num_blocks in [None, "6", [BLOCKS, BLOCKS, "6"], {BLOCKS}]:
        with pytest.raises(TypeError):
            build(num_blocks=num_blocks)
    with pytest.raises(_core.ForeignError, match="fingerprint"):
        build(of=make_arena(ranks=2))
    for address, nbytes in [(0, 8), (machine.memory.ctypes.data, 0), (2**64 - 1, 8)]:
        with pytest.raises(_core.InvalidArgumentError, match="region"):
            machine.map(0, 0, [(0, 8)], address=address, nbytes=nbytes)
    with pytest.raises(TypeError):
        build([None])
    with pytest.raises(_core.InvalidArgumentError, match="run: expected a tuple of 2"):
        machine.map(0, 0, [(0, 1, 2)])
    with pytest.raises(TypeError):
        machine.map(0, 0, [(0, 8)], address="x")


def test_a_layer_map_shows_what_it_was_given() -> None:
    memory = np.zeros(64, np.uint8)
    address = memory.ctypes.data
    shown = LayerMap(
        group=1, layer=2, address=address, nbytes=64, block_stride=32, runs=[(0, 8), (16, 8)]
    )
    assert (shown.group, shown.layer, shown.address, shown.nbytes) == (1, 2, address, 64)
    assert (shown.block_stride, shown.runs) == (32, ((0, 8), (16, 8)))
    assert "runs=((0, 8), (16, 8))" in repr(shown) and "tokens=None" in repr(shown)
    assert shown.tokens is None


def test_a_layer_map_shows_where_its_tokens_lie() -> None:
    memory = np.zeros(64, np.uint8)

    def layer(tokens: Any) -> LayerMap:
        address = memory.ctypes.data
        return LayerMap(
            group=0,
            layer=0,
            address=address,
            nbytes=64,
            block_stride=32,
            runs=[(0, 16)],
            tokens=tokens,
        )

    shown = layer([(0, [(2, 0), (4, 1)], 1), (0, [], 8)])
    assert shown.tokens == ((0, ((2, 0), (4, 1)), 1), (0, (), 8))
    assert "tokens=((0, ((2, 0), (4, 1)), 1), (0, (), 8))" in repr(shown)
    for wrong in ([(0, [(2, 0)])], [(0, [(2, 0, 1)], 1)], [(-1, [], 1)]):
        with pytest.raises(_core.InvalidArgumentError):
            layer(wrong)
    for wrong in ("x", [None], [(0, None, 1)]):
        with pytest.raises(TypeError):
            layer(wrong)


def test_a_closed_engine_refuses_copies_and_still_reports_the_old_ones() -> None:
    machine = Machine(make_arena())
    ticket = machine.engine.store([(0, PAGE_SLOTS, [3])])
    machine.engine.close()
    machine.engine.close()
    assert machine.engine.in_flight == 0
    assert [(c.ticket, c.ok) for c in machine.engine.poll()] == [(ticket, True)]
    assert machine.engine.wait(ticket)
    for submit in (machine.engine.store, machine.engine.load):
        with pytest.raises(_core.TransferError, match="closed"):
            submit([])


def test_waiting_refuses_tickets_and_times_that_cannot_be() -> None:
    machine = Machine(make_arena())
    ticket = machine.engine.store([])
    for timeout in [None, 0, 0.5, float("inf"), 1e300]:
        if timeout is None:
            assert machine.engine.wait(ticket, timeout)
        assert machine.engine.wait(ticket, timeout=timeout)
    for unknown in [0, ticket + 1, -1]:
        with pytest.raises(_core.InvalidArgumentError):
            machine.engine.wait(unknown)
    for timeout in [-1, float("nan")]:
        with pytest.raises(_core.InvalidArgumentError, match="timeout"):
            machine.engine.wait(ticket, timeout)
    with pytest.raises(TypeError):
        machine.engine.wait(ticket, "soon")


def test_owners_live_until_the_engine_is_closed_or_dropped() -> None:
    machine = Machine(make_arena())
    maps = [
        machine.map(0, 0, [(0, PAGE)]),
        machine.map(0, 1, [(0, PAGE)]),
        machine.map(1, 0, [(0, STATE)]),
        machine.map(2, 0, [(0, STATE)]),
    ]

    def make(**owners) -> HostEngine:
        return HostEngine(geometry(), make_arena(), rank=0, num_blocks=1, layers=maps, **owners)

    check_owner_is_kept(make, HostEngine.close)


def test_threads_share_one_engine() -> None:
    arena = make_arena()
    machine = Machine(arena)
    failures: list[BaseException] = []

    def work(index: int) -> None:
        try:
            slots = list(range(3 * index, 3 * index + 3))
            for _ in range(50):
                assert machine.engine.wait(machine.engine.store([(0, slots, [index])]))
                assert payload(arena, slots) == machine.page(index)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(BLOCKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    completions = machine.engine.poll()
    assert sorted(c.ticket for c in completions) == list(range(1, 50 * BLOCKS + 1))
    assert all(c.ok for c in completions)


def test_a_forked_child_is_told_that_its_engine_has_no_threads() -> None:
    code = f"""
import os, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
import test_engine
from hybrid_pages import _core
machine = test_engine.Machine(test_engine.make_arena())
child = os.fork()
if child:
    _, status = os.waitpid(child, 0)
    assert machine.run(machine.engine.store([(0, [9, 1, 2], [3])])).ok
    sys.exit(os.waitstatus_to_exitcode(status))
try:
    machine.engine.store([(0, [9, 1, 2], [3])])
except _core.TransferError as error:
    assert "fork" in str(error)
    machine.engine.close()
    del machine
    os._exit(0)
os._exit(1)
"""
    command = [sys.executable, "-c", code]
    child = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert child.returncode == 0, child.stderr


def test_the_checksum_is_xxh3_over_tiles() -> None:
    # Computed once with the package xxhash, by the definition in the stub.
    assert checksum(b"") == 0xC77B3ABB6F87ACD9
    assert checksum(b"abc") == 0xD58A37ACFE3E1A23
    assert checksum(bytes(range(256)) * 65) == 0x7BC24E497368CDEC
    with pytest.raises(TypeError):
        checksum("abc")
