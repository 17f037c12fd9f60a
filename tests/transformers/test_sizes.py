"""Sizes of a live cache are those that the config predicts, and the store's geometry is both."""

from types import SimpleNamespace

import pytest
import torch
import transformers

import tiny
from hybrid_pages.transformers import CacheStore, UnsupportedError, cache_bytes, geometry_of
from runs import BLOCK, feed, new_cache

ALL = list(tiny.MODELS)
PROMPT = 70


def predicted(geometry, tokens, keeps):
    """Bytes by kind of a cache that has seen tokens: window groups keep `keeps(window)` of them."""
    total = dict.fromkeys(("attention", "window", "conv", "recurrent"), 0)
    for group in geometry.groups:
        held = tokens if group.window_tokens is None else min(tokens, keeps(group.window_tokens))
        for layer in group.layers:
            for segment in layer.segments:
                if group.kind == "recurrent":
                    total[segment.name] += segment.bytes
                else:
                    total[group.kind] += segment.bytes // geometry.block_tokens * held
    return total


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ALL)
def test_a_live_cache_has_the_bytes_that_the_config_predicts(make, name, dtype):
    model = make(name, dtype=dtype)
    geometry = geometry_of(model.config, block_tokens=BLOCK, dtype=dtype)
    ids = tiny.tokens(PROMPT, 1)
    dynamic, static = new_cache(model), new_cache(model, 128)
    assert set(cache_bytes(dynamic).values()) == {0}
    for cache in (dynamic, static):
        feed(model, cache, ids, 0)
    found = cache_bytes(dynamic)
    assert found == predicted(geometry, PROMPT, lambda window: window - 1)
    assert cache_bytes(static) == predicted(geometry, 128, lambda window: window)
    assert found["attention"] > 0
    assert (found["window"] > 0) == (name == "gemma3")
    assert (found["conv"] > 0) == (name != "gemma3")
    assert (found["recurrent"] > 0) == (name not in ("gemma3", "lfm2"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ALL)
def test_the_geometry_of_a_live_model_is_the_configs(make, name, dtype):
    with CacheStore(make(name, dtype=dtype), host_gb=0.01, block_tokens=BLOCK) as store:
        live = store.geometry
        identity = live.identity
        config = make(name).config
        of_config = geometry_of(config, block_tokens=BLOCK, dtype=dtype, identity=identity)
        assert live.difference(of_config) is None
        other = geometry_of(config, block_tokens=BLOCK, dtype=torch.float16, identity=identity)
        assert live.difference(other) is not None


def test_rows_of_a_batch_are_counted_together(make):
    model = make("falcon-h1")
    one, three = new_cache(model), new_cache(model)
    feed(model, one, tiny.tokens(20, 1), 0)
    feed(model, three, tiny.tokens(20, 1).repeat(3, 1), 0)
    assert cache_bytes(three) == {kind: 3 * size for kind, size in cache_bytes(one).items()}


def test_states_that_a_config_does_not_tell_are_refused():
    with pytest.raises(UnsupportedError, match=r"layer 0 .* cannot be told from the config"):
        geometry_of(transformers.NemotronHConfig())


def test_no_cache_has_no_size():
    with pytest.raises(UnsupportedError, match="expected a DynamicCache or StaticCache"):
        cache_bytes(SimpleNamespace(layers=[]))
