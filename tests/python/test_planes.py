"""Planes that are made at once: each counts what the others are still to take."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cache_support import hybrid
from hybrid_pages import Arena, BudgetError
from hybrid_pages.adapter import planes
from hybrid_pages.adapter.memory import GIB, Free

MIB = 1 << 20
ANOTHER = """
import sys
from cache_support import hybrid
from hybrid_pages import Arena
arena = Arena.create(hybrid(ranks=2), slot_bytes=1 << 20, slots=6144, rank=1)
print("made", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def processes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Those of this test, whatever else runs on the machine."""
    found = [str(os.getpid())]
    monkeypatch.setattr(planes, "_processes", lambda: found)
    return found


@pytest.fixture
def another(processes: list[str]):
    """The plane of another rank, 3 GiB, in a process of its own."""
    here = str(__file__).rpartition("/")[0]
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {here!r})\n{ANOTHER}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "made\n"
        processes.append(str(process.pid))
        yield process
        process.stdin.close()


def plane(slots: int) -> Arena:
    """Of rank 0 of 2, half a MiB a slot."""
    return Arena.create(hybrid(ranks=2), slot_bytes=MIB, slots=slots, rank=0)


def has(monkeypatch: pytest.MonkeyPatch, gib: float) -> None:
    free = Free(int(gib * GIB), "the free memory")
    monkeypatch.setattr(planes, "limits", lambda: [free])


def test_ranks_whose_planes_fit_only_one_by_one_do_not_pass(another, monkeypatch) -> None:
    has(monkeypatch, 5.5)
    planes.require_plane(plane(4096), 2.0)
    with pytest.raises(BudgetError, match=r"host_gb: .* 3\.\d GiB that other planes .* 3 GiB"):
        planes.require_plane(plane(6144), 3.0)


def test_planes_of_other_control_groups_take_nothing_from_this_one(another, monkeypatch) -> None:
    """As where two services of a machine start at once, each with a limit of its own."""
    ours = "/services/ours"
    found = [Free(9 * GIB, "the free memory"), Free(4 * GIB, "ours", ours)]
    monkeypatch.setattr(planes, "limits", lambda: found)
    monkeypatch.setattr(planes, "groups_of", lambda process: {"/services", "/"})
    planes.require_plane(plane(6144), 3.0)
    with pytest.raises(BudgetError, match=r"at most ours, 4\.0 GiB, found 5 GiB"):
        planes.require_plane(plane(10240), 5.0)
    monkeypatch.setattr(planes, "groups_of", lambda process: {ours, "/services", "/"})
    with pytest.raises(BudgetError, match=r"ours, 4\.0 GiB, less 3\.0 GiB that other planes"):
        planes.require_plane(plane(6144), 3.0)


def test_what_a_plane_has_taken_is_no_longer_to_be_taken() -> None:
    own, other = plane(1), Arena.create(hybrid(), slot_bytes=MIB, slots=64)
    before = planes.still_to_take(own.path)
    other.write(3, b"x" * MIB)
    assert before - planes.still_to_take(own.path) == pytest.approx(MIB, abs=MIB // 8)


def test_the_own_plane_and_those_that_are_gone_do_not_count() -> None:
    own = plane(1)
    before = planes.still_to_take(own.path)
    other = plane(2048)
    assert planes.still_to_take(own.path) - before == pytest.approx(GIB, abs=MIB)
    assert planes.still_to_take(other.path) - before < MIB
    del other
    assert planes.still_to_take(own.path) == before
