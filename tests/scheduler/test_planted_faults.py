"""Planted faults spoil what a load restores, and nothing else."""

import pytest
import torch

from hybrid_pages import Geometry, Group, Layer, Segment
from hybrid_pages.vllm.messages import LoadJob
from hybrid_pages.vllm.worker.faults import Plant

BYTES = 16


def group(kind, *names, **more):
    return Group(kind, [Layer(name, [Segment("s", "uint8", [BYTES])]) for name in names], **more)


GEOMETRY = Geometry(
    block_tokens=32,
    groups=[
        group("recurrent", "r0", "r1", blocks_per_entry=2),
        group("attention", "a0"),
        group("recurrent", "r2"),
        group("window", "w0", window_tokens=64),
    ],
    identity={},
)
ATTENTION, WINDOW, RECURRENT = (
    next(item.index for item in GEOMETRY.classes if item.kind == kind)
    for kind in ("attention", "window", "recurrent")
)
PAGES = [(ATTENTION, [slot], [10 + slot], [slot]) for slot in range(3)]
STATE = (RECURRENT, [7], [4, None, 6], [7])


def caches():
    return {
        name: torch.ones(32, 1, 1, BYTES, dtype=torch.int8) for name in ("r0", "r1", "r2", "a0")
    }


def test_the_first_and_the_last_page_change_places():
    job = LoadJob("q", [PAGES[0], STATE, PAGES[1], PAGES[2]])
    swapped = Plant("swap-pages").swapped(job, GEOMETRY)
    first, last = PAGES[0], PAGES[2]
    assert swapped.entries == [
        (ATTENTION, first[1], last[2], first[3]),
        STATE,
        PAGES[1],
        (ATTENTION, last[1], first[2], last[3]),
    ]
    assert job.entries[0] is first and swapped.request == "q"


@pytest.mark.parametrize("entries", [[PAGES[0], STATE], [STATE], []])
def test_one_page_stays_where_it_is(entries):
    job = LoadJob("q", entries)
    assert Plant("swap-pages").swapped(job, GEOMETRY) == job


def test_windows_are_swapped_where_there_is_no_other_page():
    windows = [(WINDOW, [slot], [slot], [slot]) for slot in range(2)]
    swapped = Plant("swap-pages").swapped(LoadJob("q", windows), GEOMETRY)
    assert [entry[2] for entry in swapped.entries] == [[1], [0]]


def test_restored_states_are_zeroed_in_all_their_blocks_and_nothing_else():
    kv_caches = caches()
    tensors = [
        [kv_caches[layer.name] for layer in group.layers if layer.name in kv_caches]
        for group in GEOMETRY.groups
    ]
    Plant("zero-state").zero(LoadJob("q", [PAGES[0], STATE]), GEOMETRY, tensors)
    zeroed = {
        name: [block for block in range(32) if not tensor[block].any()]
        for name, tensor in kv_caches.items()
    }
    assert zeroed == {"r0": [4], "r1": [4], "r2": [6], "a0": []}
    assert all(tensor[block].all() for tensor in kv_caches.values() for block in (0, 10, 31))


def test_each_kind_does_its_own_harm_alone():
    kv_caches, job = caches(), LoadJob("q", [PAGES[0], STATE, PAGES[1]])
    Plant("swap-pages").zero(job, GEOMETRY, [list(kv_caches.values())])
    assert all(tensor.all() for tensor in kv_caches.values())
    assert Plant("zero-state").swapped(job, GEOMETRY) == job
