"""The examples that need no framework run, and notice wrong bytes; each example is listed."""

import ctypes
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from hybrid_pages import HostEngine

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name):
    return runpy.run_path(str(EXAMPLES / name))


def test_every_example_is_listed():
    listed = re.findall(r"^\| \[([\w.]+)\]\(\1\)", (EXAMPLES / "README.md").read_text(), re.M)
    found = [path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".rs")]
    assert sorted(listed) == sorted(found)


def test_a_second_prompt_resumes_over_numpy_arrays(capsys):
    assert load("core_numpy.py")["main"]() == 6
    assert "restored 6 of 8 blocks" in capsys.readouterr().out


def test_bytes_that_were_not_restored_end_the_numpy_example(monkeypatch):
    example = load("core_numpy.py")
    finish = example["finish"]

    def spoil(copies: HostEngine, ticket: int):
        checksums = finish(copies, ticket)
        example["main"].__globals__["spoiled"].pages[12] = 0
        return checksums

    class Engine(example["Engine"]):
        def __init__(self, blocks):
            super().__init__(blocks)
            example["main"].__globals__.setdefault("spoiled", self)

    example["main"].__globals__.update(finish=spoil, Engine=Engine)
    with pytest.raises(AssertionError, match="expected the pages of a cold run"):
        example["main"]()


def test_without_a_gpu_the_example_says_why(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HYBRID_PAGES_LIBCUDA", str(tmp_path / "none.so"))
    assert load("gpu_arrays.py")["main"]() == 0
    assert "skipped: CUDA is not available" in capsys.readouterr().err


class Array:
    """An array of the mock's memory, as libraries of GPU arrays describe theirs."""

    def __init__(self, memory, shape):
        self.shape = shape
        nbytes = 4 * int(np.prod(shape))
        self.address = memory.allocate(nbytes)
        buffer = (ctypes.c_uint8 * nbytes).from_address(self.address)
        self.host = np.frombuffer(buffer, np.float32).reshape(shape)
        self.host[:] = np.random.default_rng(self.address).random(shape, np.float32)

    @property
    def __cuda_array_interface__(self):
        data = (self.address, False)
        return {"version": 3, "shape": self.shape, "typestr": "<f4", "data": data, "stream": 1}


def test_blocks_of_gpu_arrays_come_back_over_the_mock(memory):
    example = load("gpu_arrays.py")
    shape = (example["BLOCKS"], 2, example["TOKENS"], example["WIDTH"])
    arrays = [Array(memory, shape) for _ in range(example["LAYERS"])]
    before = [array.host.copy() for array in arrays]
    engine = example["round_trip"](arrays, 0)
    engine.close()
    for array, content in zip(arrays, before, strict=True):
        assert np.array_equal(array.host[5:7], content[1:3])
        assert np.array_equal(array.host[:5], content[:5])
        assert np.array_equal(array.host[7:], content[7:])
