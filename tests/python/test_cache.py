"""The cache from Python, as a connector uses it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_support import (
    CHECKPOINT,
    PAGE,
    SLOT_BYTES,
    commit,
    keys,
    make,
    put,
    store,
    whole,
)
from hybrid_pages import _core
from hybrid_pages._core import (
    Admission,
    Hit,
    InvalidArgumentError,
)


def test_what_was_committed_is_found_and_loaded() -> None:
    cache, namespace = make(ranks=2)
    lease = cache.reserve(namespace, keys("abc"), whole("abc"))
    assert not lease.skipped
    written = [(entry.class_index, entry.block_index) for entry in lease.entries]
    assert written == [(PAGE, 0), (PAGE, 1), (PAGE, 2), (CHECKPOINT, 2)]
    assert [len(entry.slots) for entry in lease.entries] == [2, 2, 2, 5]
    assert all(entry.checksums == [] for entry in lease.entries)
    assert cache.lookup(namespace, keys("abc")).blocks == 0
    lease.commit([[10, 11], [20, 21], [30, 31], [2**64 - 1, 0]])
    assert lease.ended

    found = cache.lookup(namespace, keys("abcd"))
    assert (found.blocks, found.pages) == (3, 3)
    with cache.acquire(namespace, keys("abcd"), first=2) as read:
        assert (read.first, read.blocks, read.released) == (2, 3, False)
        assert [entry.slots for entry in read.entries] == [e.slots for e in lease.entries[2:]]
        assert [entry.checksums for entry in read.entries] == [[30, 31], [2**64 - 1, 0]]
    assert read.released
    assert cache.acquire(namespace, keys("abcd"), first=3) is None


def test_a_stride_takes_the_hash_at_each_end_of_a_block() -> None:
    cache, namespace = make()
    fine = keys("aabbcc")
    with cache.reserve(namespace, fine, whole("abc"), stride=2) as lease:
        commit(lease)
    assert cache.lookup(namespace, fine, stride=2).blocks == 3
    assert cache.lookup(namespace, fine[1::2]).blocks == 3
    assert cache.lookup(namespace, fine[:5], stride=2) == cache.lookup(namespace, fine[1:4:2])
    assert cache.lookup(namespace, fine, stride=7).blocks == 0


def test_a_limit_keeps_the_last_token_to_be_computed() -> None:
    cache, namespace = make()
    store(cache, namespace, "abc")
    found = cache.lookup(namespace, keys("abc"), limit=2)
    assert (found.blocks, found.pages) == (0, 2)
    assert cache.acquire(namespace, keys("abc"), limit=2) is None
    assert cache.lookup(namespace, keys("abc"), limit=0).pages == 0
    assert cache.lookup(namespace, keys("abc"), limit=10**6).blocks == 3


def test_only_the_last_window_is_loaded() -> None:
    cache, namespace = make(window_tokens=33)
    window, state = 1, 2
    entries = [(PAGE, i) for i in range(4)] + [(window, i) for i in (2, 3)] + [(state, 3)]
    with cache.reserve(namespace, keys("abcd"), entries) as lease:
        commit(lease)
    with cache.acquire(namespace, keys("abcd")) as read:
        loaded = {(entry.class_index, entry.block_index) for entry in read.entries}
    assert loaded == set(entries)


@pytest.mark.parametrize("sequence", [list, tuple], ids=["list", "tuple"])
def test_any_sequence_of_hashes_will_do(sequence) -> None:
    class Hashes(Sequence):
        def __init__(self, items: list[bytes]) -> None:
            self.items = items

        def __len__(self) -> int:
            return len(self.items)

        def __getitem__(self, at):
            return self.items[at]

    cache, namespace = make()
    store(cache, namespace, "abc")
    assert cache.lookup(namespace, sequence(keys("abc"))).blocks == 3
    assert cache.lookup(namespace, Hashes(keys("abc"))).blocks == 3


def test_a_lookup_says_why_pages_are_no_hit() -> None:
    # Room for four pages and one checkpoint.
    cache, namespace = make(slots=7)

    def missing(prompt: str) -> str | None:
        return cache.lookup(namespace, keys(prompt)).missing

    assert missing("abcd") is None
    put(cache, namespace, "abcd", [(PAGE, i) for i in range(4)])
    assert missing("abcd") == "never_made"
    with cache.reserve(namespace, keys("ab"), [(CHECKPOINT, 1)]):
        assert missing("abcd") == "writing"
        assert missing("a") == "never_made"
        found = cache.lookup(namespace, keys("abcd"))
        assert (found.blocks, found.coming) == (0, 2)
    assert missing("abcd") == "never_made"
    put(cache, namespace, "ab", [(CHECKPOINT, 1)])
    assert missing("ab") is None
    put(cache, namespace, "abcd", [(CHECKPOINT, 3)])
    assert missing("abcd") is None
    assert missing("abc") == "evicted"
    with cache.reserve(namespace, keys("a"), [(CHECKPOINT, 0)]):
        assert missing("abcd") == "writing"
    assert missing("abcd") == "evicted"
    found = cache.lookup(namespace, keys("abc"))
    assert repr(found) == "Hit(blocks=0, pages=3, missing='evicted')"
    assert found != cache.lookup(namespace, keys("abx"))


def test_a_lookup_says_that_a_window_is_missing() -> None:
    cache, namespace = make(window_tokens=16)
    window, state = 1, 2
    put(cache, namespace, "ab", [(PAGE, 0), (PAGE, 1), (state, 1)])
    assert cache.lookup(namespace, keys("ab")).missing == "window"
    assert cache.lookup(namespace, keys("a")).missing == "never_made"
    put(cache, namespace, "ab", [(window, 1)])
    assert cache.lookup(namespace, keys("ab")).missing is None


def test_stats_name_every_count() -> None:
    cache, namespace = make()
    store(cache, namespace, "ab")
    assert {name: count for name, count in cache.stats().items() if count} == {
        "slots": 64,
        "ready_slots": 64,
        "free_slots": 64 - 5,
        "slot_bytes": SLOT_BYTES,
        "pages": 2,
        "checkpoints": 1,
        "page_bytes": 2 * SLOT_BYTES,
        "checkpoint_bytes": 3 * SLOT_BYTES,
        "nodes": 2,
        "stored_pages": 2,
        "stored_checkpoints": 1,
        "metadata_bytes": cache.stats()["metadata_bytes"],
    }
    zero = {name for name, count in cache.stats().items() if not count}
    assert zero == {
        "windows",
        "window_bytes",
        "leased_slots",
        "writing_entries",
        "stored_windows",
        "evicted_pages",
        "evicted_checkpoints",
        "evicted_windows",
        "reclaimed",
        "tenants",
    }


def test_with_the_host_alone_nothing_is_promoted() -> None:
    cache, namespace = make()
    store(cache, namespace, "ab")
    found = cache.lookup(namespace, keys("ab"))
    assert (found.blocks, found.host) == (2, 2)
    assert not cache.promote(namespace, keys("ab"))
    assert not cache.promote(namespace, keys("xy"), first=1, limit=1)
    with pytest.raises(InvalidArgumentError):
        cache.promote(namespace + 1, keys("ab"))


def test_values_compare_print_and_cannot_be_changed() -> None:
    cache, namespace = make()
    store(cache, namespace, "a")
    found = cache.lookup(namespace, keys("a"))
    assert repr(found) == "Hit(blocks=1, pages=1, missing=None)"
    assert found == cache.lookup(namespace, keys("ab"))
    assert found != cache.lookup(namespace, keys("b"))
    assert hash(found) == hash(cache.lookup(namespace, keys("a")))
    admission = cache.admit(namespace, keys("a"), now=0, tokens=17)
    assert repr(admission) == "Admission(boundaries=[], fork=None)"
    assert admission == cache.admit(namespace, keys("a"), now=1, tokens=17)
    with cache.acquire(namespace, keys("a")) as read:
        entry = read.entries[0]
        assert repr(entry) == "LeaseEntry(class_index=0, block_index=0, slots=[0], checksums=[0])"
        read.entries.clear()
        entry.slots.clear()
        assert len(read.entries) == 2
        assert entry.slots == [0]
    for value, name in (
        (found, "blocks"),
        (admission, "fork"),
        (entry, "slots"),
        (read, "first"),
        (cache, "slots"),
    ):
        with pytest.raises(AttributeError):
            setattr(value, name, 1)
    for made_by_the_cache in (Hit, Admission, _core.LeaseEntry, _core.ReadLease, _core.WriteLease):
        with pytest.raises(TypeError):
            made_by_the_cache()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text("ab", min_size=1, max_size=6), st.integers(0, 4)), max_size=40))
def test_every_slot_is_accounted_for(steps: list[tuple[str, int]]) -> None:
    cache, namespace = make(slots=12)
    for prompt, action in steps:
        if action == 0:
            cache.reserve(namespace, keys(prompt), whole(prompt)).abort()
        elif action == 1 and (read := cache.acquire(namespace, keys(prompt))):
            with read:
                cache.invalidate(read)
        else:
            with cache.reserve(namespace, keys(prompt), whole(prompt)) as lease:
                slots = [slot for entry in lease.entries for slot in entry.slots]
                assert len(set(slots)) == len(slots)
                commit(lease)
        stats = cache.stats()
        assert stats["free_slots"] + stats["pages"] + 3 * stats["checkpoints"] == 12
        assert stats["leased_slots"] == stats["writing_entries"] == 0
        found = cache.lookup(namespace, keys(prompt))
        assert found.blocks <= found.pages <= len(prompt)


def test_threads_share_a_cache() -> None:
    cache, namespace = make(slots=30)
    failures: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            for round_ in range(200):
                prompt = "abcdefgh"[: 1 + (worker + round_) % 8]
                with cache.reserve(namespace, keys(prompt), whole(prompt)) as lease:
                    commit(lease)
                if read := cache.acquire(namespace, keys(prompt)):
                    read.release()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    stats = cache.stats()
    assert stats["leased_slots"] == stats["writing_entries"] == 0
    assert stats["free_slots"] + stats["pages"] + 3 * stats["checkpoints"] == 30
