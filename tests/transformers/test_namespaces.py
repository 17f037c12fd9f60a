"""Salts come and go: what a store knows of one goes with its last entry."""

from contextlib import contextmanager

import pytest

import tiny
from hybrid_pages import InvalidArgumentError
from hybrid_pages.adapter import keys
from hybrid_pages.adapter import store as stores
from hybrid_pages.transformers import PrefixCache
from runs import BLOCK


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_a_salt_is_forgotten_with_its_last_entry(model, monkeypatch):
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        store, numbers = cache.store, []

        @contextmanager
        def noted(*args):
            with keys.holding(*args) as number:
                numbers.append(number)
                yield number

        monkeypatch.setattr(stores, "holding", noted)
        for _ in range(3):
            cache.generate(tiny.tokens(3 * BLOCK + 2, 1), max_new_tokens=2, cache_salt="a visitor")
        assert cache.stats().hits == 2
        assert len(set(numbers)) == 1
        assert store.index.lookup(numbers[0], []).blocks == 0
        store.clear()
        with pytest.raises(InvalidArgumentError, match="freed"):
            store.index.lookup(numbers[0], [])
