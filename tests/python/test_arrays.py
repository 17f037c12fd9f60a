"""Arrays of other libraries, read through DLPack and `__cuda_array_interface__`."""

import ctypes
import gc
import weakref

import numpy as np
import pytest

from hybrid_pages import HybridPagesError, InvalidArgumentError
from hybrid_pages._core import ArrayView, array_marks

CPU, CUDA, METAL, ROCM = 1, 2, 8, 10


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Managed(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
new_capsule.restype = ctypes.py_object
capsule_is_valid = ctypes.pythonapi.PyCapsule_IsValid
capsule_is_valid.argtypes = (ctypes.py_object, ctypes.c_char_p)


class Producer:
    """A library with DLPack: hand-made capsules, and the arguments it was given."""

    def __init__(self, *, name=b"dltensor", version=(1, 0), flags=0, old=False, **fields):
        shape, strides = fields.pop("shape", (2, 3)), fields.pop("strides", None)
        self.numbers = [(ctypes.c_int64 * len(n))(*n) if n else None for n in (shape, strides)]
        tensor = Tensor(
            **{
                "data": 0x1000,
                "device_type": CUDA,
                "device_id": 3,
                "ndim": len(shape or ()),
                "code": 4,  # bfloat
                "bits": 16,
                "lanes": 1,
            }
            | fields
        )
        tensor.shape, tensor.strides = self.numbers
        if name == b"dltensor_versioned":
            self.struct = Versioned(*version, None, None, flags, tensor)
        else:
            self.struct = Managed(tensor, None, None)
        self.name, self.old, self.calls = name, old, []
        self.device_type = tensor.device_type

    def __dlpack_device__(self):
        return self.device_type, 3

    def __dlpack__(self, **arguments):
        if self.old and "max_version" in arguments:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.calls.append(arguments)
        self.capsule = new_capsule(ctypes.addressof(self.struct), self.name, None)
        return self.capsule


class Interface:
    def __init__(self, **changes):
        self.interface = {
            "shape": (2, 3),
            "typestr": "<f4",
            "data": (0x1000, False),
            "version": 3,
        } | changes
        self.interface = {key: item for key, item in self.interface.items() if item != "absent"}

    def __repr__(self):
        return "Interface"

    @property
    def __cuda_array_interface__(self):
        return self.interface


def test_numpy_arrays_are_seen_as_numpy_sees_them():
    array = np.zeros((4, 6, 5), np.int16)
    for view in (
        array,
        array[1:3, ::2],
        array.transpose(2, 0, 1),
        array[:, ::-1],
        array[0, 0, 0:1],
    ):
        seen = ArrayView(view)
        assert (seen.shape, seen.strides, seen.itemsize) == (view.shape, view.strides, 2)
        assert seen.address == view.__array_interface__["data"][0]
        assert (seen.device_type, seen.device_id, seen.stream) == ("cpu", 0, None)
    assert "shape=(4, 6, 5)" in repr(ArrayView(array))


@pytest.mark.parametrize("name", [b"dltensor", b"dltensor_versioned"])
def test_a_capsule_says_what_it_holds_and_is_not_used_up(name):
    producer = Producer(name=name, strides=(8, 2), byte_offset=6)
    seen = ArrayView(producer)
    assert (seen.address, seen.shape, seen.strides) == (0x1006, (2, 3), (16, 4))
    assert (seen.itemsize, seen.device_type, seen.device_id) == (2, "cuda", 3)
    assert capsule_is_valid(producer.capsule, name)


def test_what_a_library_handed_out_lives_as_long_as_the_view():
    class Owned(np.ndarray):
        pass

    array = np.zeros((2, 2)).view(Owned)
    gone = weakref.ref(array)
    seen = ArrayView(array)
    del array
    gc.collect()
    assert gone() is not None
    del seen
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("bits", "lanes", "itemsize"), [(8, 1, 1), (16, 1, 2), (64, 2, 16), (4, 2, 1)]
)
def test_items_are_of_any_type_of_whole_bytes(bits, lanes, itemsize):
    seen = ArrayView(Producer(bits=bits, lanes=lanes, code=10))
    assert (seen.itemsize, seen.strides) == (itemsize, (3 * itemsize, itemsize))


def test_no_strides_is_c_order():
    assert ArrayView(Producer(shape=(2, 3, 4))).strides == (24, 8, 2)
    assert ArrayView(Interface(shape=(2, 3, 4), strides=None)).strides == (48, 16, 4)
    assert ArrayView(Producer(shape=())).strides == ()


def test_the_stream_reaches_the_library():
    # The standard has no 0: the default stream is 1. Memory of the host has no stream.
    for stream, given in ((None, 1), (0, 1), (2, 2), (0x7F00, 0x7F00)):
        producer = Producer()
        ArrayView(producer, stream=stream)
        assert producer.calls == [{"stream": given, "max_version": (1, 0)}]
    producer = Producer(device_type=CPU)
    ArrayView(producer, stream=5)
    assert producer.calls == [{"max_version": (1, 0)}]


def test_a_library_from_before_versions_is_asked_again_without():
    producer = Producer(old=True)
    assert ArrayView(producer).shape == (2, 3)
    assert producer.calls == [{"stream": 1}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(name=b"used_dltensor"), "used_dltensor"),
        (dict(name=b"dltensor_versioned", version=(2, 0)), "expected version 1, found 2.0"),
        (dict(name=b"dltensor_versioned", flags=1), "read-only"),
        (dict(name=b"dltensor_versioned", flags=2), "a copy"),
        (dict(device_type=ROCM), "device type 10"),
        (dict(bits=4), "4 bits"),
        (dict(bits=0), "0 bits"),
        (dict(ndim=-1), "dimensions, found -1"),
        (dict(ndim=65), "dimensions, found 65"),
        (dict(shape=None, ndim=2), "expected a shape"),
        (dict(shape=(2, -3)), "found -3"),
        (dict(shape=(2**40, 2**40)), "address space"),
        (dict(strides=(2**62, 1)), "expected a stride"),
        (dict(strides=(2**61, 1), shape=(3, 3)), "address space"),
        (dict(strides=(-4096, 1)), "address space"),
        (dict(data=None), "expected an address"),
        (dict(byte_offset=2**64 - 1), "expected an offset"),
    ],
    ids=str,
)
def test_a_capsule_that_makes_no_sense_is_refused(changes, message):
    with pytest.raises(InvalidArgumentError, match=message):
        ArrayView(Producer(**changes))


def test_what_may_not_be_written_is_for_readers_only():
    array = np.zeros(3)
    array.flags.writeable = False
    for read_only in (
        array,
        Producer(name=b"dltensor_versioned", flags=1),
        Interface(data=(0x1000, True)),
    ):
        with pytest.raises((InvalidArgumentError, BufferError)):
            ArrayView(read_only)
    assert ArrayView(Interface(data=(0x1000, True)), writable=False).address == 0x1000


@pytest.mark.parametrize("version", [2, 3])
def test_a_cuda_array_interface_says_where_an_array_lies(version):
    array = Interface(strides=(128, -4), data=(0x2000, False), version=version, stream=7)
    seen = ArrayView(array)
    assert (seen.address, seen.shape, seen.strides) == (0x2000, (2, 3), (128, -4))
    assert (seen.itemsize, seen.device_type, seen.device_id) == (4, "cuda", None)
    assert seen.stream == 7
    assert ArrayView(Interface(typestr="|V2")).itemsize == 2


@pytest.mark.parametrize(
    "changes",
    [
        *({key: "absent"} for key in ("shape", "typestr", "data", "version")),
        *(dict(version=version) for version in (0, 1, 4, "3", None)),
        *(dict(shape=shape) for shape in (3, (-1,), ("2",), (2**40, 2**40), (1,) * 65)),
        *(dict(strides=strides) for strides in ((4,), (12, 4, 1), 4, (0.5, 4))),
        dict(shape=(3, 3), strides=(2**62, 4)),
        *(dict(typestr=typestr) for typestr in ("f4", "<f", "<f0", "<t4", "<é4", "", 4, None)),
        *(dict(data=data) for data in (0x1000, (0x1000,), ("x", False), (-1, False), None)),
        *(dict(stream=stream) for stream in (0, -1, "1")),
        dict(data=(0, False)),
        dict(mask=Interface()),
    ],
    ids=str,
)
def test_an_interface_that_makes_no_sense_is_refused(changes):
    with pytest.raises(HybridPagesError, match="array: "):
        ArrayView(Interface(**changes))


def test_what_is_no_array_is_told_so():
    for thing in (None, 3, [1, 2], b"abc", object()):
        with pytest.raises(TypeError, match="expected __dlpack__ or __cuda_array_interface__"):
            ArrayView(thing)
    with pytest.raises(InvalidArgumentError, match="expected a dict"):
        ArrayView(type("A", (), {"__cuda_array_interface__": 3})())
    producer = Producer()
    producer.__class__ = type("P", (Producer,), {"__dlpack__": lambda self, **_: 3})
    with pytest.raises(InvalidArgumentError, match="expected a capsule"):
        ArrayView(producer)
    with pytest.raises(InvalidArgumentError):
        ArrayView(Producer(), stream=-1)


def test_an_error_of_the_array_itself_is_passed_on():
    class Broken:
        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("requires grad")

    with pytest.raises(RuntimeError, match="requires grad"):
        ArrayView(Broken())


def test_marks_tell_where_an_array_lies_and_how_it_is_read():
    array = np.arange(36, dtype=np.float32).reshape(6, 6)
    views = [array, array.T, array[::-1], array[:, 1:], array[1:], array.view(np.int32)]
    views += [array.reshape(36), array[:5], np.lib.stride_tricks.as_strided(array, strides=(0, 4))]
    marks = [array_marks([each]) for each in views]
    assert len(set(marks)) == len(marks)
    assert marks == [array_marks([each]) for each in views]
    assert array_marks([array, array.T]) == marks[0] + marks[1] != array_marks([array.T, array])
    assert array_marks([]) == b""
    assert array_marks([np.zeros((0, 3))], samples=4) != array_marks([np.zeros((3, 0))])


@pytest.mark.parametrize("order", ["C", "F", "reversed"])
def test_samples_are_elements_of_the_array(order):
    array = np.zeros((5, 7, 3), np.int16, order="F" if order == "F" else "C")
    if order == "reversed":
        array = array[::-1, :, ::-1]
    before = array_marks([array], samples=array.size)
    assert len(before) == len(array_marks([array])) + array.nbytes
    few, seen = array_marks([array], samples=4), 0
    for at in np.ndindex(array.shape):
        array[at] = 9
        assert array_marks([array], samples=array.size) != before
        seen += array_marks([array], samples=4) != few
        array[at] = 0
    assert seen == 4
    assert array_marks([array], samples=array.size) == before


def test_marks_are_of_memory_that_the_host_can_read():
    with pytest.raises(InvalidArgumentError, match="memory of the host, found cuda"):
        array_marks([Producer()])
    with pytest.raises(InvalidArgumentError, match="expected a capsule"):
        array_marks([type("A", (), {"__dlpack__": lambda self, **_: 3})()])
    with pytest.raises(AttributeError):
        array_marks([3])
    with pytest.raises(TypeError):
        array_marks(3)


def test_memory_of_metal_is_asked_for_as_memory_of_the_host():
    """The pointer would be to an object of Metal."""

    class OnMetal(Producer):
        def __dlpack__(self, **arguments):
            on_host = arguments.get("dl_device") == (CPU, 0)
            self.struct.tensor.device_type = CPU if on_host else METAL
            return super().__dlpack__(**arguments)

    producer = OnMetal(device_type=METAL)
    assert ArrayView(producer).device_type == "cpu"
    assert array_marks([producer]) == array_marks([producer])
