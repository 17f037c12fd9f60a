"""Forks are known from keys, whatever was evicted."""

from __future__ import annotations

import pytest

from cache_support import (
    SLOT_BYTES,
    hybrid,
    keys,
    make,
    store,
)
from hybrid_pages._core import (
    Admission,
    Cache,
)


@pytest.mark.parametrize("policy", ["lru", "page-lru", "align-lru", "junction-lru", "reuse"])
def test_a_fork_is_known_from_keys_after_its_pages_went(policy: str) -> None:
    cache = Cache(hybrid(), slot_bytes=SLOT_BYTES, slots=8, policy=policy)
    namespace = cache.namespace(b"engine")

    def admit(prompt: str, now: int) -> Admission:
        hashes = keys(prompt)
        return cache.admit(namespace, hashes, now=now, tokens=16 * len(prompt) + 1)

    first = admit("abcd", 0)
    assert first.fork is None
    assert first.boundaries[-1] == 4
    store(cache, namespace, "abcd")
    store(cache, namespace, "wxyz")
    assert cache.lookup(namespace, keys("ab")).pages < 2
    second = admit("abef", 1)
    assert second.fork == 2
    assert 4 in second.boundaries
    assert admit("qrst", 3).fork is None


def test_a_fork_inside_an_output_is_known() -> None:
    cache, namespace = make()
    cache.admit(namespace, keys("ab"), now=0, tokens=33)
    cache.finish(namespace, keys("abcd"), end=2, output_tokens=40)
    store(cache, namespace, "ab")
    assert cache.admit(namespace, keys("abcde"), now=1, tokens=90).fork == 4


def test_a_fork_that_can_be_resumed_from_is_none() -> None:
    cache, namespace = make()
    cache.admit(namespace, keys("ab"), now=0, tokens=33)
    store(cache, namespace, "ab")
    assert cache.admit(namespace, keys("abcd"), now=1, tokens=65).fork is None
    assert cache.admit(namespace, keys("abce"), now=2, tokens=65).fork == 3


def test_a_fork_leaves_the_last_token_to_be_computed() -> None:
    cache, namespace = make()
    cache.admit(namespace, keys("abcd"), now=0, tokens=64)
    assert cache.admit(namespace, keys("abcd"), now=1, tokens=64, limit=3).fork == 3


def test_a_reset_forgets_forks() -> None:
    cache, namespace = make()
    cache.admit(namespace, keys("abcd"), now=0, tokens=64)
    cache.clear()
    assert cache.admit(namespace, keys("abcd"), now=1, tokens=65).fork is None
