"""Which bytes of engine blocks a real engine writes, and of which tokens they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness import Engine, patched


def owners(parts: Sequence[tuple[int, Sequence[tuple[int, int]], int]]) -> np.ndarray:
    """The token of each byte of an engine block."""
    found = []
    for first, dims, cell in parts:
        each = np.full(1, first)
        for extent, step in dims:
            each = (each[:, None] + np.arange(extent) * step).reshape(-1)
        found.append(np.repeat(each, cell))
    return np.concatenate(found)


def tables_at_the_end(engine: Engine, prompt: list[int]) -> list[list[int]]:
    """The ids of the blocks that a prompt had, by vLLM's group. Its bytes are still there."""
    manager, found = engine.scheduler.kv_cache_manager, []
    free = manager.free

    def noted(request: Any) -> None:
        found.append([list(ids) for ids in manager.get_block_ids(request.request_id)])
        free(request)

    with patched(manager, "free", noted):
        engine.run(prompt, 1)
    return found[-1]


def written(each: Any, memory: np.ndarray, base: int, block: int) -> np.ndarray:
    """Whether a byte of an engine block is not zero, in payload order."""
    start = each.address - base + block * each.block_stride
    runs = [memory[start + offset :][:length] for offset, length in each.runs]
    return np.concatenate(runs) != 0
