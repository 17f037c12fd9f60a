"""What becomes of each kind of cache that vLLM knows. A kind that a new vLLM adds fails here."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from vllm.v1 import kv_cache_interface
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    HiddenStateCacheSpec,
    HiSparseHotSpec,
    HiSparseResidentSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    RSWASpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    UniformTypeKVCacheSpecs,
)

from hybrid_pages.vllm.config.support import UnsupportedError
from hybrid_pages.vllm.layout.geometry import require_groups
from hybrid_pages.vllm.layout.grid import block_grid
from simulation.shapes import attention, compressed, gdn, latent, latent_window, ring, window

pytestmark = pytest.mark.every_version

HEADS = {"block_size": 16, "num_kv_heads": 2, "head_size": 8, "dtype": torch.bfloat16}
LATENT = HEADS | {"num_kv_heads": 1}

SUPPORTED: list[KVCacheSpec] = [
    attention(),
    latent(),
    compressed(),
    window(40),
    latent_window(),
    gdn(),
    UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"layer": attention()}),
]
LEFT_OUT: list[KVCacheSpec] = [ring()]
REFUSED: list[KVCacheSpec] = [
    HiSparseHotSpec(block_size=16, page_size=64, blocks_per_request=2),
    HiSparseResidentSpec(block_size=16, page_size=64),
    HiddenStateCacheSpec(**LATENT),
    RSWASpec(**HEADS, rswa_window=32),
    ChunkedLocalAttentionSpec(**HEADS, attention_chunk_size=32),
    SinkFullAttentionSpec(**HEADS, sink_len=4),
    EncoderOnlyAttentionSpec(**HEADS),
    CrossAttentionSpec(**HEADS),
    SlidingWindowMLASpec(**LATENT, sliding_window=40, bounded_replay=True),
]
ABSTRACT = {"KVCacheSpec", "AttentionSpec"}


def plan_of(*specs: KVCacheSpec) -> KVCacheConfig:
    groups = [
        KVCacheGroupSpec(["layer"] if index == 0 else [f"layer {index}"], spec)
        for index, spec in enumerate(specs)
    ]
    return KVCacheConfig(num_blocks=4, kv_cache_tensors=[], kv_cache_groups=groups)


def named(spec: KVCacheSpec) -> str:
    return type(spec).__name__


def test_every_kind_of_cache_is_supported_or_left_out_or_refused() -> None:
    kinds = {
        name
        for name, item in vars(kv_cache_interface).items()
        if isinstance(item, type) and issubclass(item, KVCacheSpec)
    }
    assert kinds == ABSTRACT | {named(spec) for spec in (*SUPPORTED, *LEFT_OUT, *REFUSED)}


@pytest.mark.parametrize("spec", SUPPORTED, ids=named)
def test_a_supported_kind_has_a_group(spec: KVCacheSpec) -> None:
    plan = plan_of(spec)
    require_groups(plan)
    assert [blocks.table for blocks in block_grid(plan).groups] == [0]


@pytest.mark.parametrize("spec", LEFT_OUT, ids=named)
def test_a_kind_that_is_left_out_has_none(spec: KVCacheSpec) -> None:
    plan = plan_of(spec, attention())
    require_groups(plan)
    grid = block_grid(plan)
    assert [blocks.table for blocks in grid.groups] == [1]
    assert grid.table_tokens == (spec.block_size, 16)
    with pytest.raises(UnsupportedError, match="expected pages or states, found none"):
        block_grid(plan_of(spec))


@pytest.mark.parametrize("spec", REFUSED, ids=named)
def test_any_other_kind_is_refused_by_its_name(spec: KVCacheSpec) -> None:
    with pytest.raises(UnsupportedError, match=f"'layer'.*{named(spec)}"):
        require_groups(plan_of(spec))


@pytest.mark.parametrize("states", [3, Fraction(1, 4)])
def test_states_that_do_not_fill_a_block_are_refused(states: int | Fraction) -> None:
    spec = latent().__class__(**LATENT, tokens_per_state=states)
    with pytest.raises(UnsupportedError, match=f"a divisor of the block size 16, found {states}"):
        require_groups(plan_of(spec))


def test_states_in_larger_blocks_than_pages_are_refused() -> None:
    """vLLM ends steps at multiples of the smallest block, see ``block_grid``."""
    small = window(40, block_tokens=8)
    with pytest.raises(UnsupportedError, match="expected states in the smallest blocks"):
        block_grid(plan_of(gdn(), small))
