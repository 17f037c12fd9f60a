"""Layers read from torch's and CuPy's arrays on the GPU, with any strides."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from hybrid_pages import Arena, CudaEngine, Geometry, Group, Layer, Segment
from hybrid_pages._core import ArrayView
from hybrid_pages.cuda import layer_map, stream_handle
from overlaid import finish

VIEWS = {
    "dense": lambda base: base,
    "every other row": lambda base: base[:, ::2],
    "transposed": lambda base: base.transpose(1, 2),
    "padded": lambda base: base[:, :, 1:-3],
    "padded and transposed": lambda base: base[:, 1:, 3:].transpose(1, 2),
    "one column": lambda base: base[:, :, 5],
}


def round_trip(torch, view, owner, num_blocks):
    """Blocks 1 and 3 of a layer go out and come back as blocks 0 and 2; what torch then sees."""
    nbytes = view[0].numel() * view.element_size()
    geometry = Geometry(
        block_tokens=16,
        groups=[Group("attention", [Layer("0", [Segment("bytes", "uint8", [nbytes])])])],
        identity={},
    )
    need = geometry.slots_per_entry(0, 4096)
    arena = Arena.create(geometry, slot_bytes=4096, slots=2 * need)
    engine = CudaEngine(
        geometry,
        arena,
        rank=0,
        num_blocks=num_blocks,
        layers=[layer_map(group=0, layer=0, array=owner)],
        owners=owner,
    )
    stream = stream_handle(torch.cuda.current_stream())
    slots = [list(range(need)), list(range(need, 2 * need))]
    before = view.clone()
    stored = finish(engine, engine.store([(0, slots[0], [1]), (0, slots[1], [3])], stream))
    for block, chosen in ((1, slots[0]), (3, slots[1])):
        held = b"".join(arena.read(slot) for slot in chosen)[:nbytes]
        dense = view[block].contiguous().view(torch.uint8)
        assert held == dense.cpu().numpy().tobytes()
    view.zero_()
    engine.fence(stream)
    first, second = stored.checksums
    finish(engine, engine.load([(0, slots[0], [0], first), (0, slots[1], [2], second)], stream))
    engine.close()
    for to, of in ((0, 1), (2, 3)):
        expected = before[of].contiguous().view(torch.uint8)
        assert torch.equal(view[to].contiguous().view(torch.uint8), expected)
        assert not view[of].contiguous().view(torch.uint8).any()


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "uint8", "float8_e4m3fn"])
def test_torch_tensors_of_any_strides(torch, dtype, name):
    kind = getattr(torch, dtype)
    base = torch.randint(0, 256, (4, 24, 40 * kind.itemsize), device="cuda", dtype=torch.uint8)
    view = VIEWS[name](base.view(kind))
    try:
        view.__dlpack__()
    except BufferError as error:
        pytest.skip(f"this torch exports no {dtype}: {error}")
    seen = ArrayView(view)
    assert (seen.address, seen.device_type, seen.device_id) == (view.data_ptr(), "cuda", 0)
    round_trip(torch, view.view(torch.uint8) if kind.itemsize == 1 else view, view, 4)


@pytest.mark.parametrize("name", ["dense", "every other row", "padded"])
def test_cupy_arrays_of_any_strides(torch, name):
    cupy = pytest.importorskip("cupy")
    base = torch.rand((4, 24, 40), device="cuda")
    view = VIEWS[name](base)
    array = VIEWS[name](cupy.from_dlpack(base))
    assert array.data.ptr == view.data_ptr()
    round_trip(torch, view, array, 4)


def test_an_array_that_only_has_a_cuda_array_interface(torch):
    view = torch.rand((4, 24, 40), device="cuda")[:, ::2]

    class Bare:
        __cuda_array_interface__ = view.__cuda_array_interface__

    round_trip(torch, view, Bare(), 4)


def test_streams_of_torch_and_cupy_have_the_drivers_handles(torch):
    stream = torch.cuda.Stream()
    assert stream_handle(stream) == stream.cuda_stream
    cupy = pytest.importorskip("cupy")
    stream = cupy.cuda.Stream(non_blocking=True)
    assert stream_handle(stream) == stream.ptr


def test_the_example_runs(torch, capsys):
    example = Path(__file__).parents[2] / "examples" / "gpu_arrays.py"
    assert runpy.run_path(str(example))["main"]() == 0
    assert "came back as blocks 5 and 6" in capsys.readouterr().out
