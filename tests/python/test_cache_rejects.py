"""Every way to call the cache wrongly raises a typed error and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cache_support import (
    BAD_NAMESPACES,
    CALLS,
    SLOT_BYTES,
    hybrid,
    keys,
    settled,
)
from hybrid_pages._core import (
    BudgetError,
    Cache,
    InvalidArgumentError,
)


@pytest.mark.parametrize("end", [0, 4])
def test_finish_refuses_an_end_that_no_key_has(used, end: int) -> None:
    cache, namespace = used
    with pytest.raises(InvalidArgumentError, match=f"expected 1 to 3, .* found {end}"):
        cache.finish(namespace, keys("abc"), end=end, output_tokens=1)


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


def test_hashes_that_raise_leave_nothing_locked(used) -> None:
    class Broken(Sequence):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, at):
            raise KeyError(at)

    refused(used, "lookup", KeyError, keys=Broken())
    refused(used, "reserve", KeyError, keys=Broken(), entries=[(0, 0)])
