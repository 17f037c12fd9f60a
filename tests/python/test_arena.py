"""The arena from Python: bounds, and what another process sees."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from hybrid_pages import _core
from hybrid_pages._core import Arena, ArenaError, Geometry, Group, Layer, Segment


def geometry(size: int = 8) -> Geometry:
    group = Group("attention", [Layer("layer", [Segment("data", "uint8", [size])])])
    return Geometry(block_tokens=16, groups=[group], identity={})


def arena() -> Arena:
    return Arena.create(geometry(), slot_bytes=100, slots=3)


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


OPEN = """
import sys
from hybrid_pages._core import Arena, Geometry
path, text = sys.argv[1:3]
arena = Arena.open(path, Geometry.from_json(text))
"""


def test_slots_hold_what_is_written() -> None:
    ours = arena()
    assert (ours.slots, ours.slot_bytes, ours.nbytes) == (3, 100, 300)
    ours.write(2, b"x" * 100)
    ours.write(2, b"yz")
    assert ours.read(2) == b"yz" + b"x" * 98
    assert ours.read(1) == bytes(100)
    assert repr(ours) == f"Arena(paths=['{ours.path}'], slots=3, slot_bytes=100)"


def test_another_process_reads_and_writes_the_same_slots() -> None:
    ours = arena()
    ours.write(0, b"from the parent")
    code = (
        OPEN + "assert arena.read(0)[:15] == b'from the parent'; arena.write(1, b'from the child')"
    )
    child = python(code, ours.path, geometry().to_json())
    assert child.returncode == 0, child.stderr
    assert ours.read(1)[:14] == b"from the child"


def test_an_arena_whose_creator_died_is_refused_clearly() -> None:
    code = """
import sys
from hybrid_pages._core import Arena, Geometry
print(Arena.create(Geometry.from_json(sys.argv[1]), slot_bytes=100, slots=3).path)
"""
    child = python(code, geometry().to_json())
    assert child.returncode == 0, child.stderr
    with pytest.raises(_core.ArenaError, match="has its creator ended"):
        Arena.open(child.stdout.strip(), geometry())


def test_an_arena_of_another_geometry_is_foreign() -> None:
    ours = arena()
    with pytest.raises(_core.ForeignError) as caught:
        Arena.open(ours.path, geometry(9))
    assert geometry(8).fingerprint.hex() in str(caught.value)
    assert geometry(9).fingerprint.hex() in str(caught.value)


def test_what_is_no_arena_is_refused(tmp_path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"nothing like it" * 10)
    with pytest.raises(_core.ForeignError, match="HYBPAGES"):
        Arena.open(str(file), geometry())
    file.write_bytes(b"")
    for path in [str(file), str(tmp_path), "/dev/null", ""]:
        with pytest.raises(_core.ArenaError):
            Arena.open(path, geometry())


def test_impossible_sizes_are_refused() -> None:
    for slot_bytes, slots in [(0, 1), (1, 0), (1, 2**32), (-1, 1), (1, 2**70)]:
        with pytest.raises(_core.InvalidArgumentError):
            Arena.create(geometry(), slot_bytes=slot_bytes, slots=slots)
    with pytest.raises(_core.BudgetError, match="expected at most this machine's memory"):
        Arena.create(geometry(), slot_bytes=2**40, slots=2**20)


def test_slots_that_do_not_exist_and_data_that_exceed_one_are_refused() -> None:
    ours = arena()
    for slot in [3, -1, 2**32, 2**70]:
        with pytest.raises(_core.InvalidArgumentError, match="expected"):
            ours.read(slot)
        with pytest.raises(_core.InvalidArgumentError, match="expected"):
            ours.write(slot, b"")
    with pytest.raises(_core.InvalidArgumentError, match="at most 100 bytes, found 101"):
        ours.write(0, bytes(101))
    assert ours.read(0) == bytes(100)


def test_wrong_types_are_type_errors() -> None:
    ours = arena()
    calls = [
        lambda: Arena(),
        lambda: Arena.create(None, slot_bytes=1, slots=1),
        lambda: Arena.create(geometry(), slot_bytes=1.0, slots=1),
        lambda: Arena.create(geometry(), 1, 1),
        lambda: Arena.open(1, geometry()),
        lambda: Arena.open(ours.path, ours.path),
        lambda: ours.read("0"),
        lambda: ours.write(0, "text"),
        lambda: pickle.dumps(ours),
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()


def on_ranks(ranks: int) -> Geometry:
    group = Group("attention", [Layer("layer", [Segment("data", "uint8", [8])])])
    return Geometry(block_tokens=16, groups=[group], identity={}, ranks=ranks)


def test_planes_of_two_ranks_make_one_arena() -> None:
    made = [Arena.create(on_ranks(2), slot_bytes=64, slots=3, rank=rank) for rank in (1, 0)]
    assert [one.ranks for one in made] == [[1], [0]]
    both = Arena.open([one.path for one in made], on_ranks(2))
    assert (both.ranks, both.slot_bytes, both.nbytes) == ([0, 1], 64, 192)
    assert both.paths == [made[1].path, made[0].path]
    both.write(1, bytes(range(64)))
    assert both.read(1) == bytes(range(64))
    with pytest.raises(ArenaError, match="expected an arena of one plane, found 2: use paths"):
        _ = both.path
    with pytest.raises(ArenaError, match=r"expected the plane of rank 0, found those of \[1\]"):
        made[0].read(1)


def test_huge_pages_of_another_size_are_refused() -> None:
    with pytest.raises(_core.InvalidArgumentError, match="huge_pages: expected '2M', found '1G'"):
        Arena.create(geometry(), slot_bytes=100, slots=3, huge_pages="1G")


def test_private_memory_has_no_path() -> None:
    ours = Arena.create(geometry(), slot_bytes=100, slots=4, private=True)
    assert ours.paths == []
    with pytest.raises(ArenaError, match="private memory, which has none"):
        _ = ours.path
    ours.write(2, b"here")
    assert ours.read(2)[:4] == b"here"
    assert "paths=[]" in repr(ours)
