"""Layers of any runs at any address: the CUDA engine against the host engine."""

from __future__ import annotations

import random

import numpy as np

from hybrid_pages import Arena, CudaEngine, Geometry, Group, HostEngine, Layer, LayerMap, Segment
from overlaid import finish


def random_runs(rng: random.Random, stride: int) -> list[tuple[int, int]]:
    """Disjoint runs of a block at any offset and of any length, in any order."""
    cuts = sorted(rng.sample(range(stride), 2 * rng.randint(1, 12)))
    runs = [(a, b - a) for a, b in zip(cuts[::2], cuts[1::2], strict=True)]
    rng.shuffle(runs)
    return runs


def check_against_the_host(memory, seed: int, **options) -> None:
    """Arena, checksums and layers are the host engine's after a store and a load."""
    rng = random.Random(seed)
    blocks, per_entry = 7, rng.choice([1, 2])
    stride = rng.choice([1009, 20000, 65536 + 3])
    runs = [random_runs(rng, stride) for _ in range(3)]
    layers = [
        Layer(str(i), [Segment("bytes", "uint8", [sum(n for _, n in each)])])
        for i, each in enumerate(runs)
    ]
    group = Group("attention", layers, blocks_per_entry=per_entry)
    geometry = Geometry(block_tokens=16, groups=[group], identity={})
    slot_bytes = rng.choice([512, 1024, 4096])
    need = geometry.slots_per_entry(0, slot_bytes)
    order = list(range(3 * need))
    rng.shuffle(order)
    slots = [order[i * need : (i + 1) * need] for i in range(3)]
    # One byte more, so that blocks begin at odd addresses, too.
    nbytes = blocks * stride
    content = np.random.default_rng(seed).integers(0, 256, (3, nbytes), np.uint8)
    address = memory.allocate(3 * (nbytes + 1)) + 1
    starts = [address + i * (nbytes + 1) for i in range(3)]

    def engine(kind, places, **options):
        maps = [
            LayerMap(
                group=0, layer=i, address=place, nbytes=nbytes, block_stride=stride, runs=runs[i]
            )
            for i, place in enumerate(places)
        ]
        arena = Arena.create(geometry, slot_bytes=slot_bytes, slots=3 * need)
        made = kind(geometry, arena, rank=0, num_blocks=[blocks], layers=maps, **options)
        return made, arena

    host, host_arena = engine(HostEngine, [row.ctypes.data for row in content], owners=content)
    device, arena = engine(CudaEngine, starts, **options)
    for start, row in zip(starts, content, strict=True):
        memory.write(start, row)

    def some_blocks() -> list[list[int]]:
        ids = rng.sample(range(blocks), 3 * per_entry)
        return [ids[i * per_entry : (i + 1) * per_entry] for i in range(3)]

    entries = [(0, chosen, ids) for chosen, ids in zip(slots, some_blocks(), strict=True)]
    expected = finish(host, host.store(entries)).checksums
    stored = finish(device, device.store(entries))
    assert stored.checksums == expected
    for slot in range(arena.slots):
        assert arena.read(slot) == host_arena.read(slot)

    wiped = np.full(nbytes, 0x5A, np.uint8)
    for start in starts:
        memory.write(start, wiped)
    content[:] = 0x5A
    back = [
        (0, chosen, ids, total)
        for (_, chosen, _), ids, total in zip(entries, some_blocks(), expected, strict=True)
    ]
    finish(host, host.load(back))
    finish(device, device.load(back))
    for start, row in zip(starts, content, strict=True):
        assert np.array_equal(memory.read(start, nbytes), row)
    device.close()
    host.close()
