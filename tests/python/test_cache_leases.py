"""How leases end: committed, aborted, released, dropped, or used after their end."""

from __future__ import annotations

import gc

import pytest

from cache_support import (
    commit,
    keys,
    make,
    settled,
    store,
    whole,
)
from hybrid_pages._core import (
    InvalidArgumentError,
    LeaseError,
)


def test_a_context_left_without_a_commit_aborts() -> None:
    cache, namespace = make()
    before = settled(cache)
    with pytest.raises(RuntimeError), cache.reserve(namespace, keys("ab"), whole("ab")):
        raise RuntimeError("the copy failed")
    assert settled(cache) == before


def test_a_lease_that_nobody_keeps_ends() -> None:
    cache, namespace = make()
    store(cache, namespace, "ab")
    before = settled(cache)
    leases = [cache.acquire(namespace, keys("ab")), cache.reserve(namespace, keys("x"), [(0, 0)])]
    assert cache.stats()["leased_slots"] == 6
    del leases
    gc.collect()
    assert settled(cache) == before


def test_a_lease_outlives_its_cache() -> None:
    cache, namespace = make()
    store(cache, namespace, "ab")
    read, write = (
        cache.acquire(namespace, keys("ab")),
        cache.reserve(namespace, keys("x"), [(0, 0)]),
    )
    del cache
    gc.collect()
    assert read is not None
    assert read.blocks == 2
    commit(write)
    read.release()


def test_a_failed_load_is_invalidated_once_for_all() -> None:
    cache, namespace = make()
    store(cache, namespace, "abc")
    with cache.acquire(namespace, keys("abc"), first=1) as read:
        assert cache.invalidate(read) == 3
        assert cache.invalidate(read) == 0
        assert cache.stats()["free_slots"] == 64 - 1 - 5
    assert cache.lookup(namespace, keys("abc")) == cache.lookup(namespace, keys("a"))
    assert cache.stats()["free_slots"] == 63


def test_after_clear_leases_end_without_harm() -> None:
    cache, namespace = make()
    store(cache, namespace, "abc")
    read = cache.acquire(namespace, keys("abc"))
    write = cache.reserve(namespace, keys("xyz"), whole("xyz"))
    gone = cache.reserve(namespace, keys("pq"), whole("pq"))
    assert cache.clear() == 4
    commit(write)
    gone.abort()
    assert cache.lookup(namespace, keys("xyz")).pages == 0
    assert read is not None
    read.release()
    assert cache.stats()["free_slots"] == 64
    assert cache.namespace(b"engine") == namespace


@pytest.mark.parametrize(
    ("error", "bad"),
    [
        (TypeError, 7),
        (TypeError, [1, 2, 3]),
        (TypeError, ["a", "b", "c"]),
        (TypeError, [[1.0], [1], [1]]),
        (TypeError, [[None], [1], [1]]),
        (InvalidArgumentError, []),
        (InvalidArgumentError, [[1], [2]]),
        (InvalidArgumentError, [[1], [2], [3], [4]]),
        (InvalidArgumentError, [[1], [2], []]),
        (InvalidArgumentError, [[1], [2], [3, 4]]),
        (InvalidArgumentError, [[1], [2], [-3]]),
        (InvalidArgumentError, [[1], [2], [2**64]]),
    ],
)
def test_bad_checksums_are_refused_and_the_lease_goes_on(error: type[Exception], bad) -> None:
    cache, namespace = make()
    lease = cache.reserve(namespace, keys("ab"), whole("ab"))
    before = settled(cache)
    with pytest.raises(error):
        lease.commit(bad)
    assert settled(cache) == before
    assert not lease.ended
    lease.commit([[1], [2], [3]])
    assert cache.lookup(namespace, keys("ab")).blocks == 2


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_write_lease_ends_once(end: str) -> None:
    cache, namespace = make()
    lease = cache.reserve(namespace, keys("a"), whole("a"))
    if end == "commit":
        commit(lease)
    else:
        lease.abort()
    after = settled(cache)
    with pytest.raises(LeaseError):
        commit(lease)
    lease.abort()
    assert lease.ended
    assert settled(cache) == after


def test_leases_that_ended_or_are_foreign_are_refused(used) -> None:
    cache, namespace = used
    other, its_namespace = make()
    store(other, its_namespace, "ab")
    foreign = other.acquire(its_namespace, keys("ab"))
    released = cache.acquire(namespace, keys("ab"))
    released.release()
    released.release()
    write = cache.reserve(namespace, keys("x"), [(0, 0)])
    before = settled(cache), settled(other)
    for error, bad in (
        (LeaseError, released),
        (LeaseError, foreign),
        (TypeError, write),
        (TypeError, 1),
    ):
        with pytest.raises(error):
            cache.invalidate(bad)
    assert (settled(cache), settled(other)) == before
