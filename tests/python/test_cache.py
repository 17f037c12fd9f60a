"""The cache from Python: what a connector does, and every way to call it wrongly."""

from __future__ import annotations

import gc
import hashlib
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid_pages import _core
from hybrid_pages._core import (
    Admission,
    BudgetError,
    Cache,
    Geometry,
    Group,
    Hit,
    InvalidArgumentError,
    Layer,
    LeaseError,
    Segment,
    WriteLease,
)

PAGE, CHECKPOINT = 0, 1
SLOT_BYTES = 64


def layer(name: str, size: int) -> Layer:
    return Layer(name, [Segment("data", "uint8", [size])])


def hybrid(*, ranks: int = 1, window_tokens: int | None = None) -> Geometry:
    """A page of one slot a rank, a checkpoint of three, a window page of one."""
    groups = [Group("attention", [layer("a", 64)]), Group("recurrent", [layer("r", 160)])]
    if window_tokens is not None:
        groups.append(Group("window", [layer("w", 64)], window_tokens=window_tokens))
    return Geometry(block_tokens=16, groups=groups, ranks=ranks, identity={"model": "tiny"})


def make(slots: int = 64, **geometry) -> tuple[Cache, int]:
    cache = Cache(hybrid(**geometry), slot_bytes=SLOT_BYTES, slots=slots)
    return cache, cache.namespace(b"engine")


def keys(prompt: str) -> list[bytes]:
    """A letter a hash, chained."""
    return [hashlib.sha256(prompt[: i + 1].encode()).digest() for i in range(len(prompt))]


def whole(prompt: str) -> list[tuple[int, int]]:
    return [(PAGE, i) for i in range(len(prompt))] + [(CHECKPOINT, len(prompt) - 1)]


def commit(lease: WriteLease, ranks: int = 1) -> None:
    lease.commit([[entry.slots[0]] * ranks for entry in lease.entries])


def store(cache: Cache, namespace: int, prompt: str) -> None:
    with cache.reserve(namespace, keys(prompt), whole(prompt)) as lease:
        commit(lease)


def settled(cache: Cache) -> dict[str, int]:
    """Everything but the memory of tables, which may keep what they grew to."""
    return {name: count for name, count in cache.stats().items() if name != "metadata_bytes"}


# what a connector does


def test_what_was_committed_is_found_and_loaded() -> None:
    cache, namespace = make(ranks=2)
    lease = cache.reserve(namespace, keys("abc"), whole("abc"))
    assert lease.skipped == {"resident": 0, "in_writing": 0, "no_room": 0, "orphan": 0}
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


@pytest.mark.parametrize("end", [0, 4])
def test_finish_refuses_an_end_that_no_key_has(used, end: int) -> None:
    cache, namespace = used
    with pytest.raises(InvalidArgumentError, match=f"expected 1 to 3, .* found {end}"):
        cache.finish(namespace, keys("abc"), end=end, output_tokens=1)


def put(cache: Cache, namespace: int, prompt: str, entries: list[tuple[int, int]]) -> None:
    with cache.reserve(namespace, keys(prompt), entries) as lease:
        assert len(lease.entries) == len(entries)
        commit(lease)


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
        "free_slots": 64 - 5,
        "slot_bytes": SLOT_BYTES,
        "pages": 2,
        "checkpoints": 1,
        "page_bytes": 2 * SLOT_BYTES,
        "checkpoint_bytes": 3 * SLOT_BYTES,
        "nodes": 2,
        "metadata_bytes": cache.stats()["metadata_bytes"],
    }
    zero = {name for name, count in cache.stats().items() if not count}
    assert zero == {
        "windows",
        "window_bytes",
        "leased_slots",
        "writing_entries",
        "evicted_pages",
        "evicted_checkpoints",
        "evicted_windows",
        "reclaimed",
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


# bad input


@pytest.mark.parametrize(
    ("error", "changes"),
    [
        (TypeError, {"geometry": "attention"}),
        (TypeError, {"slots": 1.5}),
        (TypeError, {"slots": "8"}),
        (TypeError, {"slot_bytes": None}),
        (TypeError, {"policy": 3}),
        (InvalidArgumentError, {"slots": -1}),
        (InvalidArgumentError, {"slots": 0}),
        (InvalidArgumentError, {"slots": 2**31}),
        (InvalidArgumentError, {"slots": 10**400}),
        (InvalidArgumentError, {"slot_bytes": 0}),
        (InvalidArgumentError, {"slot_bytes": -512}),
        (InvalidArgumentError, {"policy": "LRU"}),
        (BudgetError, {"slots": 3}),
    ],
)
def test_a_cache_refuses(error: type[Exception], changes: dict) -> None:
    arguments = {"geometry": hybrid(), "slot_bytes": SLOT_BYTES, "slots": 64} | changes
    with pytest.raises(error):
        Cache(arguments.pop("geometry"), **arguments)


def test_a_budget_too_small_says_what_is_needed() -> None:
    with pytest.raises(BudgetError, match=r"expected .* 256 bytes .* found 192 bytes"):
        Cache(hybrid(), slot_bytes=SLOT_BYTES, slots=3)


BAD_KEYS = [
    (TypeError, b"abc"),
    (TypeError, "abc"),
    (TypeError, ""),
    (TypeError, None),
    (TypeError, 3),
    (TypeError, {0: bytes(32)}),
    (TypeError, {bytes(32)}),
    (TypeError, [1, 2]),
    (TypeError, ["a" * 32]),
    (TypeError, [None]),
    (TypeError, [bytearray(32)]),
    (InvalidArgumentError, [b""]),
    (InvalidArgumentError, [bytes(7)]),
    (InvalidArgumentError, [bytes(33)]),
    (InvalidArgumentError, [bytes(32), b"short"]),
]
BAD_NAMESPACES = [
    (TypeError, "0"),
    (TypeError, 0.0),
    (TypeError, None),
    (InvalidArgumentError, -1),
    (InvalidArgumentError, 1),
    (InvalidArgumentError, 2**32 - 1),
    (InvalidArgumentError, 2**32),
    (InvalidArgumentError, 2**70),
]
BAD_STRIDES = [
    (TypeError, 1.0),
    (TypeError, None),
    (TypeError, "1"),
    (InvalidArgumentError, 0),
    (InvalidArgumentError, -1),
    (InvalidArgumentError, 2**64),
]
BAD_COUNTS = [
    (TypeError, 1.0),
    (TypeError, "1"),
    (InvalidArgumentError, -1),
    (InvalidArgumentError, 2**64),
]
BAD_ENTRIES = [
    (TypeError, None),
    (TypeError, 3),
    (TypeError, "ab"),
    (TypeError, [0]),
    (TypeError, [[0, 0]]),
    (TypeError, [(0, "0")]),
    (TypeError, [(0.0, 0)]),
    (TypeError, [(0, 0), None]),
    (InvalidArgumentError, [(0,)]),
    (InvalidArgumentError, [(0, 0, 0)]),
    (InvalidArgumentError, [(0, -1)]),
    (InvalidArgumentError, [(-1, 0)]),
    (InvalidArgumentError, [(2, 0)]),
    (InvalidArgumentError, [(0, 0), (0, 3)]),
    (InvalidArgumentError, [(0, 2**64)]),
]


@pytest.fixture
def used() -> tuple[Cache, int]:
    cache, namespace = make()
    store(cache, namespace, "ab")
    return cache, namespace


CALLS = {
    "lookup": lambda cache, namespace, keys, **more: cache.lookup(namespace, keys, **more),
    "acquire": lambda cache, namespace, keys, **more: cache.acquire(namespace, keys, **more),
    "reserve": lambda cache, namespace, keys, **more: cache.reserve(
        namespace, keys, more.pop("entries", []), **more
    ),
    "admit": lambda cache, namespace, keys, **more: cache.admit(
        namespace, keys, **{"now": 0, "tokens": 48, **more}
    ),
    "finish": lambda cache, namespace, keys, **more: cache.finish(
        namespace, keys, **{"end": 1, "output_tokens": 1, **more}
    ),
}


def refused(used, call: str, error: type[Exception], **changes) -> None:
    cache, namespace = used
    before = settled(cache)
    arguments = {"namespace": namespace, "keys": keys("abc")} | changes
    with pytest.raises(error) as caught:
        CALLS[call](cache, **arguments)
    assert str(caught.value)
    assert settled(cache) == before


@pytest.mark.parametrize(("error", "bad"), BAD_KEYS)
@pytest.mark.parametrize("call", CALLS)
def test_bad_keys_are_refused(used, call: str, error: type[Exception], bad: object) -> None:
    refused(used, call, error, keys=bad)


@pytest.mark.parametrize(("error", "bad"), BAD_NAMESPACES)
@pytest.mark.parametrize("call", CALLS)
def test_bad_namespaces_are_refused(used, call: str, error: type[Exception], bad: object) -> None:
    refused(used, call, error, namespace=bad)


@pytest.mark.parametrize(("error", "bad"), BAD_STRIDES)
@pytest.mark.parametrize("call", CALLS)
def test_bad_strides_are_refused(used, call: str, error: type[Exception], bad: object) -> None:
    refused(used, call, error, stride=bad)


@pytest.mark.parametrize(("error", "bad"), BAD_COUNTS)
def test_bad_limits_and_firsts_are_refused(used, error: type[Exception], bad: object) -> None:
    refused(used, "lookup", error, limit=bad)
    refused(used, "acquire", error, limit=bad)
    refused(used, "acquire", error, first=bad)
    refused(used, "admit", error, limit=bad)
    refused(used, "admit", error, now=bad)
    refused(used, "admit", error, tokens=bad)
    refused(used, "finish", error, output_tokens=bad)


@pytest.mark.parametrize(("error", "bad"), BAD_ENTRIES)
def test_bad_entries_are_refused(used, error: type[Exception], bad: object) -> None:
    refused(used, "reserve", error, entries=bad)


def test_keys_of_another_prefix_are_refused(used) -> None:
    a, b = keys("ab")
    refused(used, "reserve", InvalidArgumentError, keys=[b, a], entries=[(0, 1)])
    refused(used, "reserve", InvalidArgumentError, keys=[b], entries=[(0, 0)])


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


@pytest.mark.parametrize(
    ("error", "bad"),
    [
        (TypeError, None),
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


def test_hashes_that_raise_leave_nothing_locked(used) -> None:
    class Broken(Sequence):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, at):
            raise KeyError(at)

    refused(used, "lookup", KeyError, keys=Broken())
    refused(used, "reserve", KeyError, keys=Broken(), entries=[(0, 0)])


# everything at once


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
