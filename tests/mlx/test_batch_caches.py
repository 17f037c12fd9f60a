"""Batches of recurrent states in mlx-lm: what vllm-mlx 160 and mlx-swift-lm 323 were about."""

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache

import tiny
from runs import apart, equal, feed, fresh

SIZE = 2


def state(seed):
    """States of one row: each value names its row and its place."""
    cache = ArraysCache(SIZE)
    cache.cache = [mx.full((1, 3), 10.0 * seed + index) for index in range(SIZE)]
    return cache


def rows(batch, index=0):
    return batch.cache[index][:, 0].tolist()


def test_vllm_mlx_160_states_are_made_with_their_number():
    """Left out on one branch, it ended each step with an error."""
    with pytest.raises(TypeError):
        ArraysCache()
    assert ArraysCache(3).cache == [None] * 3
    for made in (state(1).extract(0), ArraysCache.merge([state(1), state(2)])):
        assert len(made.cache) == SIZE


def test_merged_rows_keep_their_places_also_beside_empty_ones():
    batch = ArraysCache.merge([state(1), ArraysCache(SIZE), state(3)])
    assert rows(batch) == [10, 0, 30]
    assert rows(batch, 1) == [11, 0, 31]


def test_extracted_rows_are_rows_of_their_own():
    batch = ArraysCache.merge([state(1), state(2)])
    one = batch.extract(1)
    assert rows(one) == [20]
    assert one.left_padding is None
    assert one.lengths is None
    batch[0] = batch[0] + 5
    assert rows(one) == [20]


def test_filtered_and_extended_rows():
    batch = ArraysCache.merge([state(1), state(2), state(3)])
    batch.filter([2, 0])
    assert rows(batch) == [30, 10]
    batch.extend(ArraysCache.merge([state(4)]))
    assert rows(batch) == [30, 10, 40]


def test_metadata_goes_with_its_rows():
    batch = ArraysCache.merge([state(1), state(2)])
    batch.prepare(lengths=[5, 2])
    batch.filter([1])
    assert batch.lengths.tolist() == [2]
    batch.finalize()
    assert batch.lengths is None


def test_mlx_swift_lm_323_metadata_advances():
    """A second pass over a padded batch must not mask what the first one did."""
    batch = ArraysCache(SIZE, left_padding=[3, 0])
    assert batch.make_mask(2).tolist() == [[False, False], [True, True]]
    batch.advance(2)
    assert batch.left_padding.tolist() == [1, -2]
    assert batch.make_mask(2).tolist() == [[False, True], [True, True]]
    batch = ArraysCache.merge([state(1), state(2)])
    batch.prepare(lengths=[3, 1])
    assert batch.make_mask(2).tolist() == [[True, True], [True, False]]
    batch.advance(2)
    assert batch.make_mask(2).tolist() == [[True, False], [False, False]]


def test_mlx_swift_lm_323_masks_of_left_padding_stay_with_states_that_exist():
    """Not only as long as a cache is empty."""
    batch = ArraysCache(SIZE, left_padding=[2, 0])
    batch.cache = [mx.zeros((2, 3)) for _ in range(SIZE)]
    assert batch.make_mask(3).tolist() == [[False, False, True], [True, True, True]]


def test_mlx_swift_lm_323_states_are_dense_and_small(models):
    """What a strided view of a prefill holds, a restored state does not: it is made dense."""
    from hybrid_pages.mlx import CacheStore

    model, ids = models("qwen3_next"), tiny.tokens(64)
    with CacheStore(model, host_gb=0.05, block_tokens=16) as store:
        cache, restored = fresh(model), fresh(model)
        feed(model, cache, ids)
        store.snapshot(cache, ids)
        assert store.restore(restored, [*ids, 9]) == len(ids)
        for before, after in zip(cache, restored, strict=True):
            if isinstance(before, ArraysCache):
                for one, other in zip(before.cache, after.cache, strict=True):
                    assert equal(one, other)
                    view = memoryview(other)
                    assert view.c_contiguous
                    assert view.nbytes == other.nbytes
        assert apart(feed(model, cache, [9]), feed(model, restored, [9])) == 0
