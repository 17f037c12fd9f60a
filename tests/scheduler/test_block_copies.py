"""Whole blocks are copied, whatever layers share their memory."""

from __future__ import annotations

import pytest
import torch
from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy
from vllm.v1.worker.utils import copy_kv_cache_blocks_inplace

from hybrid_pages.vllm.worker.states import BlockCopies

BLOCKS, PAGE, STATE = 6, 48, 20
pytestmark = pytest.mark.every_version


def memory() -> tuple[torch.Tensor, list[list[torch.Tensor]]]:
    """The bytes of two layers of states and of two of pages in two kernel blocks, over the same
    memory."""
    raw = torch.arange(2 * BLOCKS * PAGE, dtype=torch.int16).view(2, -1)
    states = [part.as_strided((BLOCKS, STATE), (PAGE, 1), part.storage_offset()) for part in raw]
    pages = [part.view(2 * BLOCKS, 2, PAGE // 4) for part in raw]
    return raw.view(2, BLOCKS, PAGE), [states, pages]


def test_a_page_that_shares_its_memory_with_a_smaller_state_is_copied_whole() -> None:
    raw, tensors = memory()
    expected = raw.clone()
    expected[:, 4], expected[:, 5] = raw[:, 1], raw[:, 2]
    BlockCopies(tensors, BLOCKS).run([(1, 4), (2, 5)])
    assert torch.equal(raw, expected)


def test_vllm_itself_copies_a_part() -> None:
    """If this fails, vLLM was mended, and BlockCopies can go with the versions before."""
    raw, tensors = memory()
    copies = [KVCacheBlockCopy(1, 4)]
    copy_kv_cache_blocks_inplace([each for group in tensors for each in group], BLOCKS, copies)
    assert torch.equal(raw[:, 4, :STATE], raw[:, 1, :STATE])
    assert not torch.equal(raw[:, 4], raw[:, 1])
