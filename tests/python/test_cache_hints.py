"""Hints and tenants through the binding: what is taken, what is refused, what they do."""

from __future__ import annotations

from typing import Any

import pytest

from cache_support import SLOT_BYTES, keys, layer
from hybrid_pages import BudgetError, Cache, Geometry, Group, Hints, InvalidArgumentError

PURE = Geometry(block_tokens=16, groups=[Group("attention", [layer("a", 64)])], identity={})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"priority": 11}, "priority: expected -10 to 10, found 11"),
        ({"priority": -200}, "priority: expected -10 to 10, found -200"),
        ({"retain": -0.1}, "retain: expected 0 to 86400 seconds, found -0.1"),
        ({"retain": 86_401}, "retain: expected 0 to 86400 seconds, found 86401"),
        ({"retain": float("nan")}, "retain: expected 0 to 86400 seconds, found NaN"),
    ],
)
def test_hints_out_of_range_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        Hints(**given)


def test_hints_show_what_they_say() -> None:
    hints = Hints(session=b"s", priority=-2, retain=1.5, store=False)
    assert repr(hints) == "Hints(priority=-2, retain=1.5, store=False)"


def stored(cache: Cache, namespace: int, prompt: str, now: int, hints: Hints | None = None) -> int:
    """Stores a prompt's pages; how many found room."""
    names = keys(prompt)
    cache.admit(namespace, names, now=now, tokens=len(names) * 16 + 1, hints=hints)
    entries = [(0, block) for block in range(len(names))]
    with cache.reserve(namespace, names, entries, hints=hints) as lease:
        lease.commit([[7]] * len(lease.entries))
        return len(lease.entries)


def test_what_is_retained_is_evicted_last() -> None:
    cache = Cache(PURE, slot_bytes=SLOT_BYTES, slots=8)
    namespace = cache.namespace(b"")
    hints = Hints(retain=60)
    kept = stored(cache, namespace, "K", 0, hints)
    for now, prompt in enumerate("abcdefghijklmnopqrst"):
        assert stored(cache, namespace, prompt, now) == kept
    assert cache.lookup(namespace, keys("K")).pages == 1
    assert cache.lookup(namespace, keys("a")).pages == 0


def test_a_request_that_is_not_to_be_stored_is_admitted_nowhere() -> None:
    cache = Cache(PURE, slot_bytes=SLOT_BYTES, slots=8, policy="lru")
    namespace = cache.namespace(b"")
    said = cache.admit(namespace, keys("abc"), now=0, tokens=49, hints=Hints(store=False))
    assert (said.boundaries, said.fork) == ([], None)


def test_a_tenant_has_its_share_and_no_more() -> None:
    cache = Cache(PURE, slot_bytes=SLOT_BYTES, slots=8, tenant_share=0.5)
    mine, others = cache.namespace(b"a", b"a"), cache.namespace(b"b", b"b")
    stored(cache, others, "z", 0)
    for now, prompt in enumerate("abcdefghij"):
        assert stored(cache, mine, prompt, now) == 1
    stats = cache.stats()
    assert stats["slots"] - stats["free_slots"] <= 4 + 4
    assert stats["tenants"] == 2
    assert cache.lookup(others, keys("z")).pages == 1
    with pytest.raises(InvalidArgumentError, match="tenant: expected the one"):
        cache.namespace(b"a", b"b")


@pytest.mark.parametrize("share", [0, -1, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(InvalidArgumentError, match="tenant_share: expected more than 0"):
        Cache(PURE, slot_bytes=SLOT_BYTES, slots=8, tenant_share=share)


def test_a_share_too_small_for_an_entry_is_refused() -> None:
    with pytest.raises(BudgetError, match="raise the share of a tenant"):
        Cache(PURE, slot_bytes=SLOT_BYTES, slots=8, tenant_share=0.01)


def test_what_is_expected_is_evicted_last_and_what_is_given_up_first() -> None:
    cache = Cache(PURE, slot_bytes=SLOT_BYTES, slots=8, policy="lru")
    namespace = cache.namespace(b"")
    for now, prompt in enumerate("KG"):
        stored(cache, namespace, prompt, now)
    assert cache.expect(namespace, keys("Kk"), now=5, hints=Hints(retain=60)) == 1
    assert cache.give_up(namespace, keys("G")) == 1
    assert cache.give_up(namespace, keys("G"), first=1) == 0
    room = cache.stats()["slots"] // (cache.stats()["slots"] - cache.stats()["free_slots"]) * 2
    for now in range(room - 1):
        stored(cache, namespace, chr(ord("a") + now), 10 + now)
    assert [cache.lookup(namespace, keys(name)).pages for name in "KGa"] == [1, 0, 1]


def test_neither_takes_nonsense() -> None:
    cache = Cache(PURE, slot_bytes=SLOT_BYTES, slots=8)
    namespace = cache.namespace(b"")
    with pytest.raises(InvalidArgumentError, match="namespace"):
        cache.give_up(namespace + 7, keys("a"))
    with pytest.raises(InvalidArgumentError, match="now: expected at most"):
        cache.expect(namespace, keys("a"), now=2**63, hints=Hints())
    with pytest.raises(TypeError):
        cache.expect(namespace, keys("a"), now=1)
