"""A few transfers of odd shapes by copies and by kernels, small enough for compute-sanitizer.

It uses the driver alone: no torch, whose own kernels would be watched too.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

from device_memory import Device
from hybrid_pages import Arena, CudaEngine, Geometry, Group, Layer, LayerMap, Segment, checksum
from overlaid import WAYS, finish

STRIDE, BLOCKS = 40_003, 3
RUNS = [(1, 16_384), (16_400, 7), (16_416, 4_096), (20_513, 19_001), (39_999, 3)]


def main() -> None:
    nbytes = sum(length for _, length in RUNS)
    layer = Layer("0", [Segment("bytes", "uint8", [nbytes])])
    geometry = Geometry(block_tokens=16, groups=[Group("attention", [layer])], identity={})
    need = geometry.slots_per_entry(0, 4096)
    content = np.random.default_rng(0).integers(0, 256, BLOCKS * STRIDE, np.uint8)
    blocks = content.reshape(BLOCKS, STRIDE)
    payloads = [b"".join(bytes(row[o : o + n]) for o, n in RUNS) for row in blocks]
    device = Device()
    address = device.allocate(content.nbytes)
    layers = [
        LayerMap(
            group=0,
            layer=0,
            address=address,
            nbytes=content.nbytes,
            block_stride=STRIDE,
            runs=RUNS,
        )
    ]
    for way, options in WAYS.items():
        device.write(address, content)
        arena = Arena.create(geometry, slot_bytes=4096, slots=2 * need)
        engine = CudaEngine(geometry, arena, rank=0, num_blocks=BLOCKS, layers=layers, **options)
        slots = [list(range(need))[::-1], list(range(need, 2 * need))]
        stored = finish(engine, engine.store([(0, slots[0], [0]), (0, slots[1], [2])]))
        expected = [checksum(payloads[0]), checksum(payloads[2])]
        assert stored.checksums == expected, way
        device.write(address, np.zeros_like(content))
        finish(engine, engine.load([(0, slots[0], [1], expected[0])]))
        row = device.read(address + STRIDE, STRIDE)
        assert b"".join(bytes(row[o : o + n]) for o, n in RUNS) == payloads[0], way
        assert engine.kernels and engine.refused_batch_copies == 0, engine.warnings
        engine.close()
        print(f"{way}: as it must be", flush=True)
    device.close()


if __name__ == "__main__":
    main()
