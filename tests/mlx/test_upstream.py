"""What mlx-lm 0.32.2 gets wrong. If it is mended upstream, this turns red: docs are old then."""

import contextlib
import gc
import time

import mlx.core as mx
import pytest
from mlx_lm.generate import BatchGenerator, stream_generate
from mlx_lm.models.cache import ArraysCache, LRUPromptCache, make_prompt_cache
from mlx_lm.models.cache import can_trim_prompt_cache as trimmable

import cases
import tiny
from http_server import serving
from runs import NOISE, VISIBLE, apart, collect, feed


def test_one_request_ends_the_server(tmp_path):
    """Its prompt equals a stored one, so nothing is left to compute."""
    model = tiny.save("lfm2", tmp_path / "model")
    prompt = cases.words(60, 1)
    shorter = " ".join(prompt.split()[:-1])
    with serving(model, tmp_path / "ours.log", ours=True) as ours:
        for text in (prompt, shorter, prompt, shorter):
            ours.complete(text, tokens=2)
        assert ours.healthy()
    with serving(model, tmp_path / "stock.log", ours=False) as stock:
        stock.complete(prompt, tokens=2)
        with contextlib.suppress(OSError, AssertionError):
            stock.complete(shorter, tokens=2)
        until = time.monotonic() + 20
        while stock.healthy() and time.monotonic() < until:
            time.sleep(0.1)
        assert not stock.healthy()
        assert stock.post("/v1/completions", dict(prompt="w11 w12", max_tokens=2))[0] != 200


@pytest.mark.parametrize(
    ("name", "least"), [("falcon_h1", 1.5), ("jamba", 2), ("mamba2", 2), ("mamba", 2)]
)
def test_stored_prompts_hold_more_than_they_say(models, name, least):
    """States are views of the buffers of the whole prefill."""
    model, stored = models(name), LRUPromptCache()
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    for seed in range(4):
        ids = tiny.tokens(600, seed)
        cache = make_prompt_cache(model)
        feed(model, cache, ids)
        stored.insert_cache("key", ids, cache)
    del cache
    gc.collect()
    mx.clear_cache()
    assert (mx.get_active_memory() - before) / stored.nbytes > least


def test_a_hybrid_is_resumed_from_whole_entries_only(models):
    model, stored = models("qwen3_next"), LRUPromptCache()
    ids = tiny.tokens(100)
    cache = make_prompt_cache(model)
    assert not trimmable(cache)
    feed(model, cache, ids)
    stored.insert_cache("key", ids, cache)
    assert stored.fetch_nearest_cache("key", [*ids[:90], 9, 9, 9])[0] is None


def test_an_empty_row_cannot_be_extracted():
    with pytest.raises(TypeError):
        ArraysCache(2).extract(0)


def test_an_empty_rest_is_no_prompt(models):
    with pytest.raises(ValueError, match="empty prompt"):
        BatchGenerator(models("lfm2")).insert_segments([[[]]])


def test_processors_see_the_part_that_is_not_cached(models, tokenizer):
    """The server gives what is left of a prompt to `stream_generate` when it does not batch."""
    model, ids, seen = models("jamba"), tiny.tokens(60), []

    def note(tokens, logits):
        seen.append(tokens.tolist())
        return logits

    cache = make_prompt_cache(model)
    feed(model, cache, ids[:50])
    arguments = dict(prompt_cache=cache, logits_processors=[note])
    collect(stream_generate(model, tokenizer, ids[50:], 2, **arguments))
    assert seen[0] == ids[50:]


def test_the_texts_of_plamo3_depend_on_the_step(models):
    """Its masks show one token more than its windows keep; the other models have noise alone."""
    ids = tiny.tokens(3 * tiny.WINDOW)
    for name, least, most in (("plamo3", VISIBLE, 100), ("gear", 0, NOISE)):
        model = models(name)
        whole, cut = (feed(model, make_prompt_cache(model), ids, step) for step in (None, 7))
        assert least <= apart(whole, cut) <= most
