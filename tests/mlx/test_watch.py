"""What is seen of a model that changes: without it, texts would be wrong."""

import copy

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

import tiny
from hybrid_pages.mlx import CacheStore, PrefixCache, UnsupportedError
from hybrid_pages.mlx.model_watch import ModelWatch
from runs import BLOCK, agree, collect

PROMPT = tiny.tokens(40)


def layer(model):
    return model.model.layers[1]


def transposed(model):
    layer(model).self_attn.q_proj.weight = layer(model).self_attn.q_proj.weight.T


def transposed_in_place(model):
    weight = layer(model).self_attn.q_proj.weight
    weight[:] = weight.T


def first_row_everywhere(model):
    weight = layer(model).self_attn.q_proj.weight
    weight[:] = weight[:1]


def other_dtype(model):
    norm = layer(model).operator_norm
    norm.weight = norm.weight.view(mx.int32)


def written_by_numpy(model):
    view = np.array(layer(model).self_attn.q_proj.weight, copy=False)
    view *= 2


def shared_layer(model):
    model.spare = model.model.layers[2]


def argument(model):
    model.args.rope_theta = 5.0


def patched_class(model):
    norm = type(layer(model).operator_norm)

    class Norm(norm):
        def __call__(self, x):
            return super().__call__(x) * 2

    layer(model).operator_norm.__class__ = Norm


@pytest.mark.parametrize(
    "change",
    [
        transposed,
        transposed_in_place,
        first_row_everywhere,
        other_dtype,
        written_by_numpy,
        shared_layer,
        argument,
        patched_class,
    ],
)
def test_every_change_is_seen_by_a_look_and_in_the_middle(change):
    model = tiny.make("lfm2")
    model.spare = model.model.layers[0]
    watch = ModelWatch(model)
    before = watch.look()
    assert not watch.changed_since(before)
    change(model)
    mx.eval(model.parameters())
    assert watch.changed_since(before)
    assert watch.look() != before
    assert sum(watch.changes.values()) == 1
    assert not watch.changed_since(watch.look(), sampled=False)


@pytest.mark.parametrize("equal", [lambda a: mx.array(np.array(a)), copy.copy, lambda a: a * 1])
def test_equal_arrays_are_no_change(equal):
    """gemma3n gives itself such ones in each pass."""
    model = tiny.make("lfm2")
    watch = ModelWatch(model)
    before = watch.look()
    projection = layer(model).self_attn.q_proj
    projection.weight = equal(projection.weight)
    assert not watch.changed_since(before)
    assert watch.look() == before
    projection.weight = projection.weight + 1
    assert watch.look() != before
    assert watch.changes == {"weights": 1}


def test_modules_that_are_swapped_for_each_other_are_seen():
    """Nothing of theirs has changed: only where they are."""
    model = tiny.make("lfm2")
    watch = ModelWatch(model)
    before = watch.look()
    layers = model.model.layers
    layers[0], layers[2] = layers[2], layers[0]
    assert watch.changed_since(before)
    assert watch.look() != before


def other_weight(model):
    projection = layer(model).self_attn.q_proj
    before, projection.weight = projection.weight, -projection.weight
    return lambda: setattr(projection, "weight", before)


def other_setting(model):
    norm = layer(model).operator_norm
    before, norm.eps = norm.eps, 50.0
    return lambda: setattr(norm, "eps", before)


def written_over(model):
    weight = layer(model).self_attn.q_proj.weight
    before = copy.copy(weight)
    weight[3:9] = 4.0

    def undo():
        weight[:] = before

    return undo


CHANGES = [other_weight, other_setting, written_over]


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_undone_before_a_block_ends_is_seen(tokenizer, change):
    """Between two tokens of a suspended text."""
    model = tiny.make("lfm2")
    with PrefixCache(model, host_gb=0.05, block_tokens=BLOCK) as cache:
        sequence, undo = list(PROMPT), None
        for response in cache.stream_generate(tokenizer, PROMPT, 40):
            sequence.append(response.token)
            if response.generation_tokens == 2:
                undo = change(model)
            if response.generation_tokens == 4:
                undo()
        assert cache.stats().changes == {"while computing": 1}
        # Up to the last block before the change.
        assert agree(cache, tokenizer, [*sequence, 9, 9])[0] == 32


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_processor_changes_and_undoes_is_seen(tokenizer, change):
    model, undo = tiny.make("lfm2"), []

    def process(tokens, logits):
        if len(tokens) == 43:
            undo.append(change(model))
        if len(tokens) == 45:
            undo.pop()()
        return logits

    with PrefixCache(model, host_gb=0.05, block_tokens=BLOCK) as cache:
        texts = cache.stream_generate(tokenizer, PROMPT, 40, logits_processors=[process])
        found = collect(texts)[0]
        assert cache.stats().changes == {"while computing": 1}
        assert agree(cache, tokenizer, [*PROMPT, *found, 9, 9])[0] == 32


def test_without_a_look_in_each_pass_the_next_turn_is_wrong(tokenizer, monkeypatch):
    from hybrid_pages.mlx.runtime import ModelRuntime

    def passing(self, tokens):
        self.count += tokens

    monkeypatch.setattr(ModelRuntime, "passing", passing)
    with pytest.raises(AssertionError):
        test_what_is_undone_before_a_block_ends_is_seen(tokenizer, other_weight)


def test_a_closed_cache_lets_go_of_the_model(tokenizer):
    import gc
    import weakref

    model = tiny.make("lfm2")
    cache = PrefixCache(model, host_gb=0.05, block_tokens=BLOCK)
    collect(cache.stream_generate(tokenizer, PROMPT, 2))
    held = weakref.ref(layer(model))
    cache.close()
    del model, cache.model
    gc.collect()
    assert held() is None


# ---- models that are rejected


def test_a_mask_that_shows_more_than_the_cache_keeps_is_rejected(models):
    """Then a prompt gives other texts where it is cut elsewhere: plamo3 is one token off."""
    with pytest.raises(UnsupportedError, match=r"24 tokens that it keeps.* shows 25.*plamo3"):
        CacheStore(models("plamo3"), host_gb=0.05, block_tokens=BLOCK)


def test_keys_that_depend_on_the_length_of_a_pass_are_rejected():
    model = tiny.make("qwen3", rope_scaling=dict(type="dynamic", factor=2.0))
    with pytest.raises(UnsupportedError, match=r"DynamicNTKScalingRoPE at model\.layers\.\d"):
        CacheStore(model, host_gb=0.05)


def test_a_model_that_makes_parts_of_itself_when_it_runs_is_named_after_that():
    """Also what only a pass over one token makes."""

    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tiny.make("lfm2")
            self.layers = self.inner.layers
            self.make_cache = self.inner.make_cache
            self.several = self.single = None

        def __call__(self, inputs, cache=None):
            if inputs.shape[1] > 1 and self.several is None:
                self.several = mx.ones(3)
            if inputs.shape[1] == 1 and self.single is None:
                self.single = mx.compile(self.inner.model.embed_tokens)
            return self.inner(inputs, cache=cache)

    with CacheStore(Lazy(), host_gb=0.05) as store:
        assert store.watch.look().name == ""
        assert not store.watch.changes


class Dependent(nn.Module):
    """A model whose results depend on the other tokens of a pass."""

    def __init__(self, change, dtype):
        super().__init__()
        self.inner = tiny.make("lfm2", dtype=dtype)
        self.layers, self.make_cache = self.inner.layers, self.inner.make_cache
        norm = self.layers[1].operator_norm
        self.layers[1].operator_norm = Changed(norm, change)

    def __call__(self, inputs, cache=None):
        return self.inner(inputs, cache=cache)


class Changed(nn.Module):
    def __init__(self, norm, change):
        super().__init__()
        self.norm, self.change = norm, change

    def __call__(self, states):
        return self.change(self.norm(states))


def one_scale(states):
    """Activations rounded to 8 bits by the largest of the pass."""
    step = mx.abs(states).max() / 127
    return mx.round(states / step) * step


def norm_over_tokens(states):
    return states - 0.1 * states.mean(1, keepdims=True)


def mean_so_far(states):
    """Causal, but it begins anew in each pass."""
    counts = mx.arange(1, states.shape[1] + 1)[None, :, None]
    return states - states.cumsum(1) / counts


@pytest.mark.parametrize(
    ("change", "dtype", "compared"),
    [
        (one_scale, mx.float32, "with other tokens later in a pass"),
        (one_scale, mx.bfloat16, "with other tokens later in a pass"),
        (norm_over_tokens, mx.float32, "with other tokens later in a pass"),
        (mean_so_far, mx.float32, "in one pass and in 4"),
    ],
)
def test_results_that_depend_on_other_tokens_of_a_pass_are_rejected(change, dtype, compared):
    with pytest.raises(UnsupportedError, match=f"differ by .* of their size {compared}"):
        CacheStore(Dependent(change, dtype), host_gb=0.05, block_tokens=BLOCK)


def test_a_model_of_half_the_width_is_not_rejected():
    with CacheStore(tiny.make("lfm2", dtype=mx.bfloat16), host_gb=0.05, block_tokens=BLOCK):
        pass
