"""On real engines: the bytes that a prompt writes into its blocks are those of its tokens, as the
layers' maps say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from harness import Engine, patched, tokens
from test_families import ATTENTION, HYBRID, WINDOWS


@pytest.fixture(scope="module", params=[*HYBRID, *WINDOWS, *ATTENTION])
def engine(request, start):
    return start(request.param)


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


def test_a_prompt_writes_the_bytes_of_its_tokens_and_no_others(engine: Engine) -> None:
    worker, grid = engine.worker, engine.half.connection.grid
    assert worker.report.whole_only is None
    raw = next(iter(worker._kv_caches.values())).untyped_storage()
    memory = torch.tensor([], dtype=torch.uint8).set_(raw).numpy()
    for left in (1, 5, engine.N - 1):
        prompt = tokens(("part", left), engine.N + left)
        engine.reset_all()
        memory[:] = 0
        tables = tables_at_the_end(engine, prompt)
        looked_at = 0
        for each in worker._maps:
            place = grid.groups[each.group]
            if each.tokens is None:
                continue
            of_bytes = owners(each.tokens)
            for column, block in enumerate(tables[place.table]):
                if block == 0:
                    continue
                there = min(place.tokens, len(prompt) - column * place.tokens)
                mine = written(each, memory, raw.data_ptr(), block)
                assert not mine[of_bytes >= there].any(), (left, column, each)
                assert mine[of_bytes < there].mean() > 0.5
                looked_at += 1
        assert looked_at
