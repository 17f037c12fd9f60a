"""Transfers and what torch computes: who waits for whom, and CUDA graphs beside transfers."""

from __future__ import annotations

import threading

import pytest

from hybrid_pages import Arena, CudaEngine, CudaError, Geometry, Group, Layer, Segment
from hybrid_pages.cuda import layer_map, stream_handle
from overlaid import WAYS, finish

NBYTES, BLOCKS = 1 << 20, 4
LONG = 2_000_000_000  # cycles: about a second


class Machine:
    """An engine over one layer of a torch tensor."""

    def __init__(self, torch, **options) -> None:
        self.cache = torch.zeros((BLOCKS, NBYTES), dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        geometry = Geometry(
            block_tokens=16,
            groups=[Group("attention", [Layer("0", [Segment("bytes", "uint8", [NBYTES])])])],
            identity={},
        )
        self.arena = Arena.create(geometry, slot_bytes=NBYTES, slots=BLOCKS)
        self.engine = CudaEngine(
            geometry,
            self.arena,
            rank=0,
            num_blocks=BLOCKS,
            layers=[layer_map(group=0, layer=0, array=self.cache)],
            owners=self.cache,
            **options,
        )
        self.compute = torch.cuda.Stream()
        self.stream = stream_handle(self.compute)

    def busy(self, torch):
        """About a second of work on the compute stream; an event at its end."""
        with torch.cuda.stream(self.compute):
            torch.cuda._sleep(LONG)
            end = torch.cuda.Event()
            end.record()
        return end


@pytest.fixture(params=WAYS)
def machine(request, torch):
    machine = Machine(torch, **WAYS[request.param])
    yield machine
    torch.cuda.synchronize()
    machine.engine.close()


def test_a_store_reads_what_the_compute_stream_was_still_to_write(torch, machine):
    machine.busy(torch)
    with torch.cuda.stream(machine.compute):
        machine.cache[1].fill_(7)
    finish(machine.engine, machine.engine.store([(0, [0], [1])], machine.stream))
    assert machine.arena.read(0) == bytes([7]) * NBYTES


def test_a_fenced_store_comes_after_what_was_launched_before_the_fence(torch, machine):
    machine.busy(torch)
    with torch.cuda.stream(machine.compute):
        machine.cache[1].fill_(7)
    machine.engine.fence(machine.stream)
    finish(machine.engine, machine.engine.store([(0, [0], [1])], fenced=True))
    assert machine.arena.read(0) == bytes([7]) * NBYTES


def test_a_fenced_store_does_not_wait_for_what_was_launched_after_the_fence(torch, machine):
    with torch.cuda.stream(machine.compute):
        machine.cache[1].fill_(7)
    machine.engine.fence(machine.stream)
    end = machine.busy(torch)
    finish(machine.engine, machine.engine.store([(0, [0], [1])], fenced=True))
    assert not end.query()
    assert machine.arena.read(0) == bytes([7]) * NBYTES
    end.synchronize()


def test_a_load_does_not_wait_for_what_was_launched_after_the_fence(torch, machine):
    machine.arena.write(0, bytes([9]) * NBYTES)
    machine.engine.fence(machine.stream)
    end = machine.busy(torch)
    finish(machine.engine, machine.engine.load([(0, [0], [2], None)], machine.stream))
    assert not end.query()
    end.synchronize()
    assert (machine.cache[2] == 9).all()


def test_a_load_comes_after_what_was_launched_before_the_fence(torch, machine):
    machine.arena.write(0, bytes([9]) * NBYTES)
    end = machine.busy(torch)
    with torch.cuda.stream(machine.compute):
        machine.cache[2].zero_()
    machine.engine.fence(machine.stream)
    finish(machine.engine, machine.engine.load([(0, [0], [2], None)], machine.stream))
    assert end.query()
    assert (machine.cache[2] == 9).all()


def test_without_a_fence_a_load_comes_after_all_that_was_launched(torch, machine):
    machine.arena.write(0, bytes([9]) * NBYTES)
    end = machine.busy(torch)
    with torch.cuda.stream(machine.compute):
        machine.cache[2].zero_()
    finish(machine.engine, machine.engine.load([(0, [0], [2], None)], machine.stream))
    assert end.query()
    assert (machine.cache[2] == 9).all()


def test_a_graph_is_captured_while_transfers_run(torch, machine):
    """Captures that any unsafe call of another thread would break."""
    stop, failures = threading.Event(), []

    def transfer():
        try:
            while not stop.is_set():
                finish(machine.engine, machine.engine.store([(0, [0], [1])]))
                finish(machine.engine, machine.engine.load([(0, [0], [3], None)]))
        except BaseException as error:
            failures.append(error)

    weights = torch.rand((256, 256), device="cuda")
    value = torch.rand((256, 256), device="cuda")
    out = torch.empty_like(value)
    with torch.cuda.stream(machine.compute):  # what a first call makes must not be captured
        torch.matmul(value, weights, out=out)
    torch.cuda.synchronize()
    thread = threading.Thread(target=transfer)
    thread.start()
    try:
        for _ in range(20):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=machine.compute, capture_error_mode="global"):
                for _ in range(20):
                    torch.matmul(value, weights, out=out)
            graph.replay()
    finally:
        stop.set()
        thread.join()
    torch.cuda.synchronize()
    assert failures == []
    torch.testing.assert_close(out, torch.matmul(value, weights))


def test_a_transfer_on_a_stream_that_captures_is_refused_and_the_capture_goes_on(torch, machine):
    value = torch.zeros(8, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=machine.compute):
        value += 1
        with pytest.raises(CudaError, match="captures a graph"):
            machine.engine.store([(0, [0], [1])], machine.stream)
        value += 1
    graph.replay()
    torch.cuda.synchronize()
    assert (value == 2).all()


def test_a_store_reads_a_copy_that_was_made_before_the_state_was_overwritten(torch, machine):
    from hybrid_pages.vllm.worker.states import StateCopies

    machine.busy(torch)
    with torch.cuda.stream(machine.compute):
        machine.cache[1].fill_(7)
        StateCopies([[machine.cache]]).run([(0, 1, 3)])
        machine.cache[1].fill_(8)
        machine.engine.fence(machine.stream)
    finish(machine.engine, machine.engine.store([(0, [0], [3])], fenced=True))
    assert machine.arena.read(0) == bytes([7]) * NBYTES
