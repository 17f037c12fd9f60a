"""Arrays on a GPU with the CUDA engine, without vLLM.

    python examples/gpu_arrays.py

Blocks of a torch tensor (or, without torch, of a CuPy array) are stored in host memory and loaded
back into other blocks. Without a GPU the program says why and ends.
"""

from __future__ import annotations

import sys
from typing import Any

from hybrid_pages import Arena, CudaEngine, Geometry, Group, Layer, Segment, cuda

LAYERS, BLOCKS, TOKENS, WIDTH = 4, 8, 16, 256


def arrays() -> tuple[list[Any], int]:
    """One array [blocks, 2, tokens, width] per layer on the GPU; the current stream's handle."""
    shape = (BLOCKS, 2, TOKENS, WIDTH)
    try:
        import torch
    except ImportError:
        import cupy

        stream = cuda.stream_handle(cupy.cuda.get_current_stream())
        return [cupy.random.rand(*shape, dtype=cupy.float32) for _ in range(LAYERS)], stream
    stream = cuda.stream_handle(torch.cuda.current_stream())
    return [torch.rand(shape, device="cuda") for _ in range(LAYERS)], stream


def round_trip(kv: list[Any], stream: int) -> CudaEngine:
    """Store blocks 1 and 2 of every layer, and load them back as blocks 5 and 6."""
    segment = Segment("kv", "float32", (2, TOKENS, WIDTH))
    geometry = Geometry(
        block_tokens=TOKENS,
        groups=[Group("attention", [Layer(str(i), [segment]) for i in range(len(kv))])],
        identity={"model": "example"},
    )
    slot_bytes = geometry.suggest_slot_bytes()
    need = geometry.slots_per_entry(0, slot_bytes)
    arena = Arena.create(geometry, slot_bytes=slot_bytes, slots=2 * need)
    layers = [cuda.layer_map(group=0, layer=i, array=kv[i]) for i in range(len(kv))]
    engine = CudaEngine(
        geometry, arena, rank=0, num_blocks=kv[0].shape[0], layers=layers, owners=kv
    )
    slots = [list(range(need)), list(range(need, 2 * need))]

    # A store comes after what the stream was given until now.
    ticket = engine.store([(0, slots[0], [1]), (0, slots[1], [2])], stream)
    first, second = finish(engine, ticket)
    # A load comes after the last fence, and not after what the stream is given later.
    engine.fence(stream)
    finish(engine, engine.load([(0, slots[0], [5], first), (0, slots[1], [6], second)], stream))
    return engine


def finish(engine: CudaEngine, ticket: int) -> list[int]:
    """Wait for a transfer; the checksums of a store."""
    engine.wait(ticket)
    (completion,) = engine.poll()
    if not completion.ok:
        raise RuntimeError(completion.error)
    return completion.checksums


def main() -> int:
    if (reason := cuda.reason()) is not None:
        print(f"skipped: {reason}", file=sys.stderr)
        return 0
    kv, stream = arrays()
    engine = round_trip(kv, stream)
    if not all(bool((layer[5:7] == layer[1:3]).all()) for layer in kv):
        raise AssertionError("expected blocks 5 and 6 to equal blocks 1 and 2")
    print(f"blocks 1 and 2 of {len(kv)} layers came back as blocks 5 and 6 on {engine.device.name}")
    engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
