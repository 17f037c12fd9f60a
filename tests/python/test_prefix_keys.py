"""Keys that are read once, of a prefix that grows and that may be replaced."""

from __future__ import annotations

import pytest

from cache_support import keys, make, store
from hybrid_pages import InvalidArgumentError
from hybrid_pages._core import PrefixKeys


def read(*prompts: str, stride: int = 1) -> PrefixKeys:
    found = PrefixKeys(stride)
    for prompt in prompts:
        found.read(keys(prompt))
    return found


@pytest.mark.parametrize("before", ["", "a", "abcd"])
def test_a_prefix_is_found_by_keys_that_were_read_step_by_step(before: str) -> None:
    cache, namespace = make()
    store(cache, namespace, "abcd")
    found = read(before, "abcdef")
    assert len(found) == 6
    assert cache.lookup(namespace, found) == cache.lookup(namespace, keys("abcdef"))
    assert cache.lookup(namespace, found, limit=3).pages == 3
    with cache.acquire(namespace, found) as lease:
        assert lease.blocks == 4


@pytest.mark.parametrize("before", ["axy", "abcx", "abcdxy", "x"])
def test_keys_of_tokens_that_were_replaced_are_forgotten(before: str) -> None:
    cache, namespace = make()
    store(cache, namespace, "abcd")
    store(cache, namespace, before)
    assert cache.lookup(namespace, read(before)).blocks == len(before)
    assert cache.lookup(namespace, read(before, "abcd")).blocks == 4


def test_a_prefix_that_became_shorter_is_shorter() -> None:
    assert len(read("abcd", "ab")) == 2
    found = read("abcd")
    found.clear()
    assert len(found) == 0
    found.append(keys("a")[0])
    found.append(keys("ab")[1])
    assert len(found) == 2


def test_of_several_hashes_a_block_the_last_is_the_key() -> None:
    cache, namespace = make()
    with cache.reserve(namespace, keys("abcd"), [(0, 0), (0, 1), (1, 1)], stride=2) as lease:
        lease.commit([[0]] * 3)
    found = read("abc", "abcde", stride=2)
    assert (len(found), cache.lookup(namespace, found).blocks) == (2, 2)


def test_wrong_keys_and_strides_are_refused() -> None:
    cache, namespace = make()
    with pytest.raises(InvalidArgumentError, match="stride: expected at least 1"):
        PrefixKeys(0)
    with pytest.raises(InvalidArgumentError, match="stride: expected 1 with PrefixKeys"):
        cache.lookup(namespace, read("ab"), stride=2)
    found = read("ab")
    with pytest.raises(InvalidArgumentError, match="8 to 32 bytes"):
        found.read([*keys("ab"), b"short"])
    with pytest.raises(TypeError):
        found.append("text")
    assert len(found) == 2
