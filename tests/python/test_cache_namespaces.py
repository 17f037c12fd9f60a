"""Namespaces: one number per identity, freed with its last hold and its last entry."""

from __future__ import annotations

import pytest

from cache_support import (
    BAD_NAMESPACES,
    CALLS,
    keys,
    make,
    settled,
    store,
)
from hybrid_pages._core import (
    InvalidArgumentError,
)


@pytest.mark.parametrize("bad", ["engine", 1, None, [1, 2]])
def test_an_identity_is_bytes(bad: object) -> None:
    cache, _ = make()
    with pytest.raises(TypeError):
        cache.namespace(bad)  # type: ignore[arg-type]


def test_an_identity_has_one_number() -> None:
    cache, namespace = make()
    assert cache.namespace(b"engine") == namespace
    assert len({cache.namespace(bytes([i])) for i in range(100)} | {namespace}) == 101
    assert cache.namespace(b"") == cache.namespace(b"")


def test_an_identity_is_freed_with_its_last_hold_and_its_last_entry() -> None:
    cache, engine = make(slots=8)
    first = cache.namespace(b"adapter")
    assert cache.namespace(b"adapter") == first
    store(cache, first, "ab")
    cache.release_namespace(first)
    cache.release_namespace(first)
    with pytest.raises(InvalidArgumentError, match="expected a number that is held"):
        cache.release_namespace(first)
    # Its entries keep it, until others take their room.
    assert cache.lookup(first, keys("ab")).blocks == 2
    store(cache, engine, "vwxyz")
    for use in CALLS.values():
        with pytest.raises(InvalidArgumentError, match=f"found {first}, which was freed"):
            use(cache, first, keys("ab"))
    assert cache.namespace(b"adapter") not in (first, engine)


@pytest.mark.parametrize(("error", "bad"), BAD_NAMESPACES)
def test_a_number_that_nobody_was_given_is_not_released(used, error, bad: object) -> None:
    cache, namespace = used
    before = settled(cache)
    with pytest.raises(error):
        cache.release_namespace(bad)
    assert settled(cache) == before
    assert cache.namespace(b"engine") == namespace


def test_memory_of_identities_returns() -> None:
    cache, _ = make()
    before = cache.stats()["metadata_bytes"]
    numbers = [cache.namespace(b"%d" % i) for i in range(1000)]
    grown = cache.stats()["metadata_bytes"] - before
    for number in numbers:
        cache.release_namespace(number)
    assert cache.stats()["metadata_bytes"] - before < grown / 10
