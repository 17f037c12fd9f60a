"""The server's prompt cache alone: its bytes, damage, and what it leaves to mlx-lm."""

import gc
import logging

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

import tiny
from hybrid_pages import TransferError
from hybrid_pages.adapter.tiers import TierSettings
from hybrid_pages.mlx.cache_io import Staging
from hybrid_pages.mlx.partial_blocks import PartialBlocks, partial_key
from hybrid_pages.mlx.server import Batches, _cut
from hybrid_pages.mlx.server_cache import ServerPromptCache
from runs import BLOCK, feed

BUDGET = 1 << 20


@pytest.fixture
def prompts(models, request):
    made = ServerPromptCache(TierSettings(BUDGET / 2**30), BLOCK, 10)
    made.use(models(getattr(request, "param", "qwen3_next")), None)
    yield made
    made.drop()


def insert(prompts, model, ids):
    cache = make_prompt_cache(model)
    feed(model, cache, ids)
    prompts.insert_cache("key", list(ids), cache)


@pytest.mark.parametrize("prompts", ["qwen3_next", "mamba2", "baichuan_m1"], indirect=True)
def test_a_flood_stays_within_the_budget(prompts, models, request):
    model = models(request.node.callspec.params["prompts"])
    for index in range(60):
        ids = tiny.tokens(100 + index, seed=index)
        prompts.plan(ids, [50])
        insert(prompts, model, ids[:50])
        insert(prompts, model, ids)
        assert prompts.nbytes <= BUDGET
        assert prompts.nbytes == sum(v["n_bytes"] for v in prompts.stats_by_type().values())
    assert prompts.nbytes > BUDGET / 2
    assert not prompts.failures
    # The last one is there.
    _, rest = prompts.fetch_nearest_cache("key", [*ids, 11])
    assert rest == [11]


def test_what_is_stored_is_all_that_is_held(prompts, models):
    """mlx-lm's own cache keeps the buffers that states were cut from."""
    model = models("mamba2")
    prompts.use(model, None)
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    for index in range(20):
        insert(prompts, model, tiny.tokens(400, seed=index))
    gc.collect()
    mx.clear_cache()
    assert mx.get_active_memory() - before < 100_000


def test_at_least_one_token_is_left(prompts, models):
    model, ids = models("qwen3_next"), tiny.tokens(70)
    for length in (32, 69, 70):
        insert(prompts, model, ids[:length])
    for length, left in ((70, 1), (69, 37), (32, 32), (71, 1)):
        prompt = [*ids, 12][:length]
        cache, rest = prompts.fetch_nearest_cache("key", prompt)
        assert len(rest) == left
        assert cache[1].offset == length - left


def test_failed_copies_are_misses(prompts, models, monkeypatch, caplog):
    model, ids = models("qwen3_next"), tiny.tokens(70)
    insert(prompts, model, ids)

    def fail(*args, **kwargs):
        raise TransferError("planted")

    monkeypatch.setattr(Staging, "load", fail)
    cache, rest = prompts.fetch_nearest_cache("key", [*ids, 12])
    assert rest == [*ids, 12]
    assert cache[1].offset == 0
    monkeypatch.setattr(Staging, "store", fail)
    insert(prompts, model, tiny.tokens(50, seed=9))
    assert prompts.failures == {"store": 1}
    assert "could not store a prompt: planted" in caplog.text


def test_a_cache_of_other_tokens_is_not_stored(prompts, models):
    model = models("qwen3_next")
    cache = make_prompt_cache(model)
    feed(model, cache, tiny.tokens(50))
    prompts.insert_cache("key", tiny.tokens(49), cache)
    assert prompts.failures == {"store": 1}
    assert prompts.nbytes == 0


@pytest.mark.parametrize("why", ["a draft model", None])
def test_what_cannot_be_stored_is_left_to_mlx_lm(models, why, caplog):
    """Another kind of cache, or a budget that is too small: within that budget, too."""
    model = models("lfm2")
    made = ServerPromptCache(TierSettings(2e-5 if why is None else 0.01), 4096, 10)
    with caplog.at_level(logging.WARNING):
        made.use(model, why)
    assert "mlx-lm's own cache" in caplog.text
    ids = tiny.tokens(40)
    for index in range(5):
        insert(made, model, tiny.tokens(40, seed=index))
        assert made.nbytes <= (2e-5 if why is None else 0.01) * 2**30
    if why is not None:
        insert(made, model, ids)
        cache, rest = made.fetch_nearest_cache("key", [*ids, 5])
        assert rest == [5]
        # A prompt that equals a stored one has a rest all the same.
        cache, rest = made.fetch_nearest_cache("key", ids)
        assert (cache, rest) == (None, ids)
    assert made.plan(ids, [10]) == []
    made.trim_to(n_bytes=0)
    assert len(made) == 0


def test_images_are_not_cached(prompts, models):
    """They are negative ids: a block must not end inside of one."""
    ids = [*tiny.tokens(40), *[-5] * 20, 11]
    assert prompts.plan(ids, []) == []
    model = models("qwen3_next")
    cache = make_prompt_cache(model)
    feed(model, cache, [abs(token) for token in ids])
    prompts.insert_cache("key", ids, cache)
    assert prompts.nbytes == 0
    assert prompts.fetch_nearest_cache("key", [*ids, 3]) == (None, [*ids, 3])
    assert prompts.failures == {"images": 1}


@pytest.fixture
def heard(prompts, monkeypatch):
    """What the policy is told of requests that ended: tokens of prompt and output."""
    told = []

    def finish(namespace, keys, tokens, output):
        told.append((tokens, output))

    monkeypatch.setattr(prompts._prompts._admissions, "finish", finish)
    return told


def test_a_policy_hears_of_an_output_at_its_end(prompts, models, heard):
    model, ids = models("qwen3_next"), tiny.tokens(70)
    prompts.plan(ids[:50], [])
    planned, rest = prompts.fetch_nearest_cache("key", ids[:50])
    assert rest == ids[:50]
    feed(model, planned, ids[:49])
    planned.store(49)
    assert heard == []
    feed(model, planned, ids[49:])
    prompts.insert_cache("key", ids, planned)
    assert heard == [(50, 20)]
    assert not prompts.failures


def test_rows_of_a_batch_are_told_apart(prompts, models, heard):
    """One prompt begins with another; two are equal; one row is taken out. All run at once."""
    model, ids = models("qwen3_next"), tiny.tokens(60)
    given = [ids[:40], ids, ids[:40], ids[:52], ids[:44]]
    outputs = [12, 3, 7, 9, 5]
    batch = Batches(model, prefill_step_size=8)
    uids = []
    for prompt, output in zip(given, outputs, strict=True):
        stops = prompts.plan(prompt, [20])
        cache, rest = prompts.fetch_nearest_cache("key", prompt)
        left = [stop - (len(prompt) - len(rest)) for stop in stops]
        segments, _ = _cut([rest], ["assistant"], left)
        uids += batch.insert_segments(segments=[segments], max_tokens=[output], caches=[cache])
    batch.remove([uids[3]])
    while True:
        read, written = batch.next()
        if not read and not written:
            break
        ends = [each.uid for each in read if each.end_of_segment and not each.end_of_prompt]
        for cache, tokens in batch.extract_cache(ends).values():
            prompts.insert_cache("key", tokens[:], cache, cache_type="assistant")
        for each in written:
            if each.finish_reason is not None:
                prompts.insert_cache("key", each.all_tokens[:], each.prompt_cache)
    assert sorted(heard) == sorted((len(given[at]), outputs[at]) for at in (0, 1, 2, 4))
    assert not prompts.failures
    assert not batch._prompts


def test_tails_are_bounded_and_told_from_blocks():
    tails = PartialBlocks(4)
    for index in range(70_000):
        tails.add(0, index.to_bytes(32, "little"), 3)
    assert len(tails._extras._lengths) == 1 << 16
    assert partial_key(b"", [1, 2, 3]) != partial_key(b"", [1, 2])
    tails.clear()
    tails.add(0, b"", 2)
    tails.add(0, b"", 3)
    found = [tokens for tokens, _ in tails.candidates(0, [], [1, 2, 3, 4], first=0)]
    assert found == [3, 2]
    assert [tokens for tokens, _ in tails.candidates(0, [], [1, 2, 3], first=0)] == [2]
    assert not list(tails.candidates(1, [], [1, 2, 3, 4], first=0))
