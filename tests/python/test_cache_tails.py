"""Tails from Python: prefixes that end inside a block. A capital letter is a tail."""

from __future__ import annotations

from typing import Any

import pytest

from cache_support import CHECKPOINT, PAGE, commit, keys, make, store, whole
from hybrid_pages import InvalidArgumentError
from hybrid_pages._core import PrefixKeys, tail_key


def prefix(prompt: str) -> PrefixKeys:
    found = PrefixKeys()
    found.read(keys(prompt))
    return found


def test_a_tail_stands_behind_the_keys_up_to_the_limit() -> None:
    cache, namespace = make()
    *_, tail = keys("abT")
    with cache.reserve(namespace, keys("abcd"), whole("abT"), limit=2, tail=tail) as lease:
        commit(lease)
    for known in (keys("abcd"), prefix("abcd")):
        assert cache.lookup(namespace, known, limit=2, tail=tail).blocks == 3
        assert cache.lookup(namespace, known, limit=2).blocks == 0
        lease = cache.acquire(namespace, known, first=1, limit=2, tail=tail)
        assert lease is not None
        places = [(entry.class_index, entry.block_index) for entry in lease.entries]
        assert places == [(PAGE, 1), (PAGE, 2), (CHECKPOINT, 2)]
        assert not cache.promote(namespace, known, limit=2, tail=tail)
        assert cache.restore(namespace, known, limit=2, tail=tail) is None
        assert cache.tail_lengths(namespace, known) == ([(2, [20])], False)
        assert cache.tail_lengths(namespace, known, limit=1) == ([], False)
        with pytest.raises(InvalidArgumentError, match=r"tail_key\(\)"):
            cache.lookup(namespace, known, limit=3, tail=tail)
    assert cache.has_tails(namespace, 2, [keys("abS")[2], tail]) == ([False, True], False)


def test_a_superseded_tail_goes_first() -> None:
    cache, namespace = make(slots=8)
    for prompt in ("A", "B"):
        store(cache, namespace, prompt)
    (newest,) = keys("B")
    cache.continue_tail(namespace, [], newest)
    cache.supersede(namespace, [], newest)
    store(cache, namespace, "x")
    found = [cache.lookup(namespace, keys(prompt)).blocks for prompt in "ABx"]
    assert found == [1, 0, 1]


@pytest.mark.parametrize(
    ("before", "digest", "tokens", "error"),
    [
        (b"short", bytes(19), 1, InvalidArgumentError),
        (b"", bytes(18), 1, InvalidArgumentError),
        (b"", bytes(19), 0, InvalidArgumentError),
        (b"", bytes(19), 2**32, InvalidArgumentError),
        (keys("T")[0], bytes(19), 1, InvalidArgumentError),
        (b"", "text", 1, TypeError),
        (b"", bytes(19), 1.0, TypeError),
    ],
)
def test_a_key_of_nothing_is_refused(
    before: bytes, digest: Any, tokens: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        tail_key(before, digest, tokens)


def test_a_key_has_its_parts_in_order() -> None:
    (before,) = keys("a")
    assert (
        tail_key(before, bytes(range(32)), 783) == bytes(range(19)) + before[:8] + b"\x0f\x03\0\0"
    )
    assert tail_key(b"", bytes(range(19)), 1) == bytes(range(19)) + bytes(8) + b"\x01\0\0\0"


@pytest.mark.parametrize("tail", [keys("a")[0], bytes(31), bytes(30)])
def test_other_keys_are_no_tails(tail: bytes) -> None:
    cache, namespace = make()
    calls = (cache.lookup, cache.acquire, cache.restore, cache.promote)
    for call in calls:
        with pytest.raises(InvalidArgumentError):
            call(namespace, [], tail=tail)
    for note in (cache.supersede, cache.continue_tail):
        with pytest.raises(InvalidArgumentError):
            note(namespace, [], tail)
    assert cache.stats()["nodes"] == 0
