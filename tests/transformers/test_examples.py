"""The examples of prefix reuse run, and notice texts and logits that are wrong."""

import runpy
from pathlib import Path

import pytest

from hybrid_pages.transformers import CacheStore, PrefixCache

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, *words):
    return runpy.run_path(str(EXAMPLES / name))["main"](*words)


def test_the_second_question_about_a_document_restores_it():
    assert run("prefix_cache.py", []) == [0, 448]


def test_a_wrong_text_ends_the_example(monkeypatch):
    generate = PrefixCache.generate

    def spoil(self, *given, **more):
        return generate(self, *given, **more) + 1

    monkeypatch.setattr(PrefixCache, "generate", spoil)
    with pytest.raises(AssertionError, match="expected the text"):
        run("prefix_cache.py", [])


def test_a_restored_cache_goes_on_as_the_stored_one():
    assert run("cache_store.py") == 256


def test_a_wrong_restore_ends_the_example(monkeypatch):
    restore = CacheStore.restore

    def spoil(self, cache, token_ids):
        restored = restore(self, cache, token_ids)
        next(layer for layer in cache.layers if hasattr(layer, "keys")).keys.zero_()
        return restored

    monkeypatch.setattr(CacheStore, "restore", spoil)
    with pytest.raises(AssertionError, match="expected the logits"):
        run("cache_store.py")
