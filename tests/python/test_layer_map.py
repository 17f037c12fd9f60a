"""`hybrid_pages.cuda.layer_map` against numpy's own idea of an array's bytes; streams."""

import ctypes

import numpy as np
import pytest

from hybrid_pages import GeometryError, InvalidArgumentError
from hybrid_pages.cuda import layer_map, stream_handle
from test_arrays import Interface


def bytes_of(map_, block):
    """The bytes that an engine would copy."""
    start = map_.address + block * map_.block_stride
    assert all(o + n <= map_.nbytes - block * map_.block_stride for o, n in map_.runs)
    return b"".join(ctypes.string_at(start + offset, length) for offset, length in map_.runs)


def base(shape, dtype=np.uint16):
    return np.random.default_rng(0).integers(0, 2**16, shape, np.uint16).view(dtype)


VIEWS = {
    "dense": (lambda: base((4, 3, 8)), 1),
    "padded blocks": (lambda: base((4, 40))[:, 3:27].reshape(4, 24), 1),
    "gaps": (lambda: base((4, 6, 8))[:, ::2, 1:7], 3),
    "gaps that fold": (lambda: base((4, 6, 8))[:, ::2], 3),
    "transposed": (lambda: base((4, 8, 3)).transpose(0, 2, 1), 24),
    "heads outside": (lambda: base((4, 2, 3, 5)).transpose(0, 2, 1, 3), 6),
    "backwards": (lambda: base((4, 3, 8))[:, ::-1], 3),
    "backwards items": (lambda: base((4, 3, 8))[:, :, ::-1], 24),
    "single bytes": (lambda: base((4, 6), np.uint8)[:, 1::3], 4),
    "one block": (lambda: base((1, 3, 8)), 1),
    "one block, any stride": (lambda: base((4, 3, 8))[::-1][:1], 1),
    "items alone": (lambda: base((5,)), 1),
    "ones": (lambda: base((4, 1, 3, 1, 8)), 1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_block_is_its_items_in_the_arrays_order(name):
    view, runs = VIEWS[name][0](), VIEWS[name][1]
    found = layer_map(group=1, layer=2, array=view)
    assert (found.group, found.layer, len(found.runs)) == (1, 2, runs)
    for block in range(len(view)):
        assert bytes_of(found, block) == np.ascontiguousarray(view[block]).tobytes()


def test_random_strides_are_read_right():
    rng = np.random.default_rng(1)
    for _ in range(300):
        shape = rng.integers(1, 5, rng.integers(2, 6))
        array = base(tuple(2 * shape))
        steps = [
            slice(None, None, int(step)) for step in rng.choice([1, 2, -1, -2], len(shape) - 1)
        ]
        view = array[(slice(None), *steps)]
        view = view.transpose(0, *(1 + rng.permutation(len(shape) - 1)))
        found = layer_map(group=0, layer=0, array=view)
        block = int(rng.integers(len(view)))
        assert bytes_of(found, block) == np.ascontiguousarray(view[block]).tobytes()


def test_several_rows_can_make_a_block():
    view = base((12, 2, 8))[:, :, :5]
    found = layer_map(group=0, layer=0, array=view, num_blocks=4)
    for block in range(4):
        expected = np.ascontiguousarray(view[3 * block : 3 * block + 3]).tobytes()
        assert bytes_of(found, block) == expected


@pytest.mark.parametrize(
    ("array", "num_blocks", "message"),
    [
        (np.zeros(()), None, "expected \\[blocks, ...\\]"),
        (np.zeros((0, 3)), None, "shape \\(0, 3\\)"),
        (np.zeros((4, 0)), None, "shape \\(4, 0\\)"),
        (np.zeros((4, 3)), 3, "expected a multiple of 3 rows, found 4"),
        (np.zeros((4, 3)), 0, "multiple of 0 rows"),
        (np.zeros((4, 3))[::-1], None, "ascending blocks"),
        (np.zeros((1, 2**21, 2), np.uint8)[:, :, 0], None, "at most 1048576"),
    ],
)
def test_what_can_be_no_layer_is_refused(array, num_blocks, message):
    with pytest.raises(GeometryError, match=f"group 0 layer 1: .*{message}"):
        layer_map(group=0, layer=1, array=array, num_blocks=num_blocks)


def test_an_array_that_waits_for_another_stream_is_refused_until_it_is_named():
    array = Interface(stream=0x77)
    with pytest.raises(InvalidArgumentError, match="expected stream=0x77"):
        layer_map(group=0, layer=0, array=array)
    assert layer_map(group=0, layer=0, array=array, stream=0x77).address == 0x1000
    for default in (None, 0, 1):
        assert layer_map(group=0, layer=0, array=Interface(stream=1), stream=default)


class Named:
    def __init__(self, **attributes):
        vars(self).update(attributes)


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (None, 0),
        (0, 0),
        (2, 2),
        (2**64 - 1, 2**64 - 1),
        (Named(cuda_stream=5), 5),
        (Named(ptr=6), 6),
        (Named(__cuda_stream__=(0, 7)), 7),
        (Named(__cuda_stream__=lambda: (0, 8), cuda_stream=5), 8),
        (Named(handle=ctypes.c_void_p(9).value), 9),
    ],
)
def test_streams_of_any_library_are_known(stream, handle):
    assert stream_handle(stream) == handle


@pytest.mark.parametrize(
    "stream",
    [-1, 2**64, Named(cuda_stream=-1), Named(__cuda_stream__=(1, 7)), Named(__cuda_stream__=7)],
)
def test_a_handle_that_can_be_none_is_refused(stream):
    with pytest.raises(InvalidArgumentError, match="expected"):
        stream_handle(stream)


@pytest.mark.parametrize("stream", ["default", True, 1.0, object(), Named(cuda_stream="x")])
def test_what_is_no_stream_is_told_so(stream):
    with pytest.raises(TypeError, match="expected None, a handle"):
        stream_handle(stream)
