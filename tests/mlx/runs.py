"""Cold runs to compare with, and what equal means."""

import mlx.core as mx
from mlx_lm import stream_generate
from mlx_lm.models.cache import make_prompt_cache

BLOCK = 16
# Cold runs of mlx-lm that are cut at different places differ by up to 8e-5 in log-probs.
NOISE = 3e-4
# What a wrong page or state changes at least: far above the noise.
VISIBLE = 1e-2


def feed(model, cache, ids, step=None):
    """Runs tokens through a model, so many at a time; the logits of all."""
    step = step or max(1, len(ids))
    found = [
        model(mx.array([ids[first : first + step]]), cache=cache)
        for first in range(0, len(ids), step)
    ]
    logits = mx.concatenate(found, axis=1)
    mx.eval(logits, [part.state for part in cache])
    return logits


def apart(left, right):
    """The largest difference between two arrays."""
    return mx.abs(left.astype(mx.float32) - right.astype(mx.float32)).max().item()


def equal(left, right):
    return bool(mx.array_equal(left, right).item())


def cold(model, tokenizer, prompt, new=6, **kwargs):
    """Tokens, log-probs and text of mlx-lm's own `stream_generate`."""
    return collect(stream_generate(model, tokenizer, prompt, new, **kwargs))


def collect(responses):
    tokens, logprobs, text, last = [], [], "", None
    for last in responses:
        tokens.append(last.token)
        logprobs.append(last.logprobs)
        text += last.text
    return tokens, logprobs, text, last


def agree(cache, tokenizer, prompt, new=6, salt="", **kwargs):
    """Generates with the cache and without: tokens, texts and log-probs have to be equal.

    How many tokens of the prompt were restored, and the new ones.
    """
    wanted = cold(cache.model, tokenizer, prompt, new, **kwargs)
    before = cache.stats()
    found = collect(cache.stream_generate(tokenizer, prompt, new, cache_salt=salt, **kwargs))
    require_equal(wanted, found)
    return cache.stats().restored_tokens - before.restored_tokens, found[0]


def require_equal(wanted, found):
    assert found[0] == wanted[0]
    assert found[2] == wanted[2]
    assert found[3].finish_reason == wanted[3].finish_reason
    assert found[3].prompt_tokens == wanted[3].prompt_tokens
    assert found[3].generation_tokens == wanted[3].generation_tokens
    worst = max(apart(a, b) for a, b in zip(wanted[1], found[1], strict=True))
    assert worst < NOISE, worst


def fresh(model):
    return make_prompt_cache(model)
