"""The same on a GPU: states and pages go through pinned host memory."""

import pytest
import torch

import tiny
from hybrid_pages.transformers import CacheStore, PrefixCache
from runs import BLOCK, feed, new_cache, same, tensors

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
ALL = list(tiny.MODELS)
PROMPT, BOUNDARY = 100, 96


@pytest.mark.parametrize("static", [None, 128], ids=["dynamic", "static"])
@pytest.mark.parametrize("name", ALL)
def test_a_restored_cache_is_the_stored_one_bit_for_bit(make, name, static):
    model = make(name).cuda()
    ids = tiny.tokens(BOUNDARY + 1, 2).cuda()
    with CacheStore(model, host_gb=0.01, block_tokens=BLOCK, verify_on_load=True) as store:
        stored = new_cache(model, static)
        for end in range(BLOCK, BOUNDARY + 1, BLOCK):
            step = 1 if name == "jamba" and end > BLOCK else None
            feed(model, stored, ids, end - BLOCK, end, step)
            store.snapshot(stored, ids[:, :end])
        cache = new_cache(model, static)
        assert store.restore(cache, ids) == BOUNDARY
        expected, found = tensors(stored), tensors(cache)
        if name == "gemma3" and static:
            expected = {key: item for key, item in expected.items() if key[0] % 2}
            found = {key: item for key, item in found.items() if key[0] % 2}
        assert same(expected, found)


@pytest.mark.parametrize("static", [None, "static"], ids=["dynamic", "static"])
@pytest.mark.parametrize("name", ALL)
def test_a_resend_and_a_next_turn_give_cold_texts(make, name, static):
    model = make(name).cuda()
    kwargs = dict(do_sample=False, max_new_tokens=20, cache_implementation=static)
    kwargs |= dict(disable_compile=True)
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK, verify_on_load=True) as cache:
        ids = tiny.tokens(70, 1).cuda()
        for hits in (0, 1, 2):
            expected = model.generate(ids, **kwargs)
            assert torch.equal(cache.generate(ids, **kwargs), expected)
            assert cache.stats().hits == hits
            if hits == 1:
                ids = torch.cat([expected, tiny.tokens(5, 2).cuda()], 1)


@pytest.mark.parametrize("name", ["qwen3.5"])
def test_a_compiled_decode_goes_on_from_a_restored_static_cache(make, name):
    model = make(name).cuda()
    kwargs = dict(do_sample=False, max_new_tokens=12, cache_implementation="static")
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        ids = tiny.tokens(70, 3).cuda()
        expected = model.generate(ids, **kwargs)
        for hits in (0, 1):
            assert torch.equal(cache.generate(ids, **kwargs), expected)
            assert cache.stats().hits == hits
