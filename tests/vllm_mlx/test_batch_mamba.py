"""vllm-mlx's own batches of states, and what it does not use of them."""

import sys

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache
from vllm_mlx.utils.mamba_cache import BatchMambaCache, ensure_mamba_support


def state(seed, size):
    cache = ArraysCache(size)
    cache.cache = [mx.full((1, 3), 10.0 * seed + index) for index in range(size)]
    return cache


@pytest.mark.parametrize("size", [2, 3])
def test_vllm_mlx_160_a_batch_has_as_many_states_as_its_rows(size):
    """Its fix: the number of states is passed on, also where MambaCache is ArraysCache."""
    assert len(BatchMambaCache([0, 0], size=size).cache) == size
    batch = BatchMambaCache.merge([state(1, size), state(2, size)])
    assert [len(batch.cache), len(batch.extract(1).cache)] == [size, size]
    assert batch.extract(1).cache[size - 1].tolist() == [[20 + size - 1] * 3]
    batch.filter([1])
    batch.extend(BatchMambaCache.merge([state(3, size)]))
    assert batch.cache[0][:, 0].tolist() == [20, 30]


def test_an_empty_row_loses_its_place():
    """Why hybrids have to go by mlx-lm's own batches, where it keeps its place as zeros."""
    caches = [state(1, 2), ArraysCache(2), state(3, 2)]
    assert BatchMambaCache.merge(caches).cache[0].shape[0] == 2
    assert ArraysCache.merge(caches).cache[0][:, 0].tolist() == [10, 0, 30]


def test_it_is_not_put_in_the_place_of_mlx_lms():
    generate = sys.modules["mlx_lm.generate"]
    before = generate._make_cache, generate._merge_caches
    ensure_mamba_support()
    assert (generate._make_cache, generate._merge_caches) == before
