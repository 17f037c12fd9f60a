"""The CUDA engine from Python, over the mock of the driver: its bytes, its errors, its waiting."""

from __future__ import annotations

import ctypes
import gc
import threading
import time

import numpy as np
import pytest

from hybrid_pages import (
    Arena,
    CudaEngine,
    CudaError,
    ForeignError,
    Geometry,
    Group,
    InvalidArgumentError,
    Layer,
    LayerMap,
    Segment,
    TransferError,
    checksum,
    cuda,
)
from mock_driver import LATE, STICKY
from odd_runs import check_against_the_host
from overlaid import MODELS, WAYS, check_round_trip, finish
from ownership import check_owner_is_kept

# Below how many bytes pieces move by a kernel: none, some, all.
BLOCKS, PAGE, STATE = 6, 600, 1000
PAGE_SLOTS, STATE_SLOTS = [9, 1, 2], [20, 21]
ILLEGAL_ADDRESS, LAUNCH_FAILED, OUT_OF_MEMORY = 700, 719, 2


def geometry() -> Geometry:
    attention = [Layer("a", [Segment("kv", "int16", [PAGE // 2])])]
    recurrent = [Layer("r", [Segment("state", "float32", [STATE // 4])])]
    groups = [Group("attention", attention), Group("recurrent", recurrent)]
    return Geometry(block_tokens=16, groups=groups, identity={})


class Machine:
    """An engine over a buffer of the device that two groups share, and numpy's view of it."""

    def __init__(self, memory, **options) -> None:
        address = memory.allocate(BLOCKS * STATE)
        bytes_ = (ctypes.c_uint8 * (BLOCKS * STATE)).from_address(address)
        self.content = np.frombuffer(bytes_, np.uint8).reshape(BLOCKS, STATE)
        self.content[:] = np.random.default_rng(0).integers(0, 256, self.content.shape, np.uint8)
        self.address = address
        self.arena = Arena.create(geometry(), slot_bytes=512, slots=64)
        self.engine = self.make(**options)

    def maps(self, **changes) -> list[LayerMap]:
        base = dict(layer=0, address=self.address, nbytes=BLOCKS * STATE, block_stride=STATE)
        return [
            LayerMap(**(base | dict(group=0, runs=[(0, PAGE)]) | changes)),
            LayerMap(**base, group=1, runs=[(0, 30), (40, STATE - 40), (30, 10)]),
        ]

    def make(self, **changes) -> CudaEngine:
        arguments = dict(rank=0, num_blocks=BLOCKS, layers=self.maps())
        return CudaEngine(geometry(), self.arena, **(arguments | changes))

    def page(self, block: int) -> bytes:
        return self.content[block, :PAGE].tobytes()

    def state(self, block: int) -> bytes:
        row = self.content[block]
        return row[:30].tobytes() + row[40:].tobytes() + row[30:40].tobytes()


@pytest.fixture(params=WAYS)
def machine(request, memory):
    machine = Machine(memory, **WAYS[request.param])
    yield machine
    machine.engine.close()


def test_pages_and_checkpoints_make_the_round_trip(machine):
    stored = finish(machine.engine, machine.engine.store([(0, [5, 6], [3]), (1, STATE_SLOTS, [4])]))
    page, state = machine.page(3), machine.state(4)
    assert stored.bytes == PAGE + STATE
    assert stored.checksums == [checksum(page), checksum(state)]
    machine.content[:] = 0
    first, second = stored.checksums
    load = [(0, [5, 6], [0], first), (1, STATE_SLOTS, [1], second)]
    assert finish(machine.engine, machine.engine.load(load)).bytes == PAGE + STATE
    assert (machine.page(0), machine.state(1)) == (page, state)
    assert not machine.content[2:].any()
    assert not machine.content[0, PAGE:].any()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_overlaid_groups_of_hybrid_models_come_back_byte_for_byte(memory, name, way):
    check_round_trip(memory, MODELS[name].shrunk(16), **WAYS[way])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(8, 14))
def test_any_alignment_gives_the_host_engines_bytes_and_checksums(mock, memory, seed, way):
    mock.delay(200, seed)
    check_against_the_host(memory, seed, **WAYS[way])


def test_a_damaged_entry_fails_its_load(machine):
    (total,) = finish(machine.engine, machine.engine.store([(0, [5, 6], [3])])).checksums
    machine.arena.write(6, bytes(512))
    assert machine.engine.wait(machine.engine.load([(0, [5, 6], [0], total)]))
    (failed,) = machine.engine.poll()
    assert not failed.ok
    assert f"expected {total:016x}" in failed.error
    assert failed.bytes == 0


def test_an_engine_says_what_it_found(memory):
    machine = Machine(memory)
    engine = machine.engine
    assert engine.device.ordinal == 0
    assert engine.device.name == cuda.devices()[0].name
    assert len(engine.device.uuid) == 32
    assert engine.pinned
    assert engine.warnings == []
    assert engine.kernels
    assert cuda.is_available()
    assert cuda.reason() is None


def test_a_failed_call_of_the_driver_is_an_error_with_its_name(mock, memory):
    machine = Machine(memory)
    mock.fail("cuEventRecord", 1, OUT_OF_MEMORY)
    with pytest.raises(CudaError, match="cuEventRecord") as raised:
        machine.engine.store([(0, [5, 6], [3])])
    assert (raised.value.call, raised.value.code) == ("cuEventRecord", OUT_OF_MEMORY)
    assert raised.value.name == "CUDA_ERROR_OUT_OF_MEMORY"
    assert finish(machine.engine, machine.engine.store([(0, [5, 6], [3])])).ok


def test_pinning_that_fails_is_a_warning_and_costs_no_byte(mock, memory):
    mock.set("NO_PINNING", 1)
    machine = Machine(memory)
    assert not machine.engine.pinned
    (warning,) = machine.engine.warnings
    assert "pinning failed for 64 of 64 slots" in warning
    assert "cuMemHostRegister failed: CUDA_ERROR_OUT_OF_MEMORY" in warning
    page = machine.page(3)
    (total,) = finish(machine.engine, machine.engine.store([(0, [5, 6], [3])])).checksums
    finish(machine.engine, machine.engine.load([(0, [5, 6], [0], total)]))
    assert machine.page(0) == page


@pytest.mark.parametrize("mode", [STICKY, LATE])
@pytest.mark.parametrize("way", ["copies", "kernel"])
def test_a_broken_device_fails_what_waits_and_refuses_the_rest(mock, memory, way, mode):
    machine = Machine(memory, **WAYS[way])
    finish(machine.engine, machine.engine.store([(0, [5, 6], [3])]))
    mock.delay(2000)
    function = "cuMemcpyDtoHAsync_v2" if way == "copies" else "cuLaunchKernel"
    code = ILLEGAL_ADDRESS if mode == LATE else LAUNCH_FAILED
    for each in (function, "cuMemcpyBatchAsync", "cuMemcpyAsync"):
        mock.fail(each, 1, code, mode)
    tickets = []
    try:
        for _ in range(4):
            tickets.append(machine.engine.store([(0, [5, 6], [3])]))
    except CudaError as error:
        assert error.code == code
    for ticket in tickets:
        assert machine.engine.wait(ticket, 60)
    failed = [done for done in machine.engine.poll() if not done.ok]
    assert failed
    assert all(str(code) in done.error or "CUDA" in done.error for done in failed)
    for submit in (
        lambda: machine.engine.load([(0, [5, 6], [0], None)]),
        lambda: machine.engine.store([(0, [5, 6], [3])]),
        lambda: machine.engine.fence(),
    ):
        with pytest.raises(CudaError):
            submit()
    assert machine.engine.in_flight == 0
    machine.engine.close()


def test_a_refused_batch_of_copies_is_counted_told_and_costs_no_byte(mock, memory):
    mock.set("HALVE_BATCH", 1)
    machine = Machine(memory, **WAYS["copies"])
    machine.content[:] = 7
    for _ in range(3):
        both = [(0, [5, 6], [3]), (1, STATE_SLOTS, [4])]
        sums = finish(machine.engine, machine.engine.store(both)).checksums
        load = [(0, [5, 6], [0], sums[0]), (1, STATE_SLOTS, [1], sums[1])]
        finish(machine.engine, machine.engine.load(load))
    assert (machine.engine.refused_batch_copies, mock.calls("cuMemcpyBatchAsync")) == (2, 2)
    (warning,) = machine.engine.warnings
    assert "cuMemcpyBatchAsync failed: CUDA_ERROR_INVALID_VALUE (1)" in warning
    mock.reset()
    other = machine.make(**WAYS["copies"], batch_copies=False)
    finish(other, other.store(both))
    assert (other.warnings, mock.calls("cuMemcpyBatchAsync")) == ([], 0)
    other.close()


def test_bad_arguments_are_refused_before_a_byte_moves(machine):
    before = machine.content.copy()
    for entry in [
        (2, [5, 6], [0]),
        (0, [5], [0]),
        (0, [5, 64], [0]),
        (0, [5, 6], [BLOCKS]),
        (0, [5, 6], [-1]),
        (0, [5, 5], [0]),
    ]:
        with pytest.raises(InvalidArgumentError, match="expected"):
            machine.engine.store([entry])
        with pytest.raises(InvalidArgumentError, match="expected"):
            machine.engine.load([(*entry, None)])
    with pytest.raises(InvalidArgumentError):
        machine.engine.store([], -1)
    with pytest.raises(TypeError):
        machine.engine.store([], "default")
    assert machine.engine.in_flight == 0
    assert np.array_equal(machine.content, before)


def test_impossible_engines_are_refused(memory):
    machine = Machine(memory)
    host = np.zeros(BLOCKS * STATE, np.uint8)
    for changes, message in [
        (dict(kernel_below=1 << 64), "expected an integer from 0 to"),
        (dict(share=0.0), "share: expected more than 0"),
        (dict(share=1.5), "share: expected more than 0"),
        (dict(layers=machine.maps(address=host.ctypes.data)), "memory of the host"),
        (dict(rank=1), "rank"),
        (dict(num_blocks=0), "num_blocks"),
    ]:
        with pytest.raises(InvalidArgumentError, match=message):
            machine.make(**changes)
    with pytest.raises(CudaError, match="found number 99"):
        machine.make(device=99)
    other = Geometry(
        block_tokens=8,
        groups=list(geometry().groups),
        identity={},
    )
    with pytest.raises(ForeignError, match="fingerprint"):
        CudaEngine(other, machine.arena, rank=0, num_blocks=BLOCKS, layers=machine.maps())


def test_waiting_lets_other_threads_run(mock, memory):
    machine = Machine(memory)
    mock.pause(2_000_000)
    ran = threading.Event()
    threading.Timer(0.01, ran.set).start()
    ticket = machine.engine.store([(0, [5, 6], [3])])
    while not machine.engine.wait(ticket, 10):
        pass
    # The other thread needed the GIL while this one waited.
    assert ran.is_set()
    assert machine.engine.poll()[0].ok


def test_polling_reports_without_waiting(mock, memory):
    machine = Machine(memory)
    mock.delay(100_000)
    ticket = machine.engine.store([(0, [5, 6], [3])])
    assert machine.engine.poll() == [] or machine.engine.in_flight == 0
    while machine.engine.in_flight:
        time.sleep(0.001)
    assert machine.engine.wait(ticket, 0)


def test_a_closed_engine_refuses_and_reports_what_was_in_flight(memory):
    machine = Machine(memory)
    ticket = machine.engine.store([(0, [5, 6], [3])])
    machine.engine.close()
    machine.engine.close()
    assert [(done.ticket, done.ok) for done in machine.engine.poll()] == [(ticket, True)]
    with pytest.raises(TransferError, match="closed"):
        machine.engine.load([(0, [5, 6], [0], None)])


def test_owners_live_until_the_engine_is_closed_or_dropped(memory):
    check_owner_is_kept(Machine(memory).make, CudaEngine.close)


@pytest.mark.parametrize("way", WAYS)
def test_nothing_of_the_driver_is_left_behind(mock, memory, way):
    kinds = ("streams", "events", "host_memory", "registrations", "contexts", "modules")
    before = {kind: mock.count(kind) for kind in kinds}
    machine = Machine(memory, **WAYS[way])
    finish(machine.engine, machine.engine.store([(0, [5, 6], [3])]))
    machine.engine.fence()
    finish(machine.engine, machine.engine.load([(0, [5, 6], [3], None)]))
    machine.engine.close()
    del machine
    gc.collect()
    assert {kind: mock.count(kind) for kind in kinds} == before
