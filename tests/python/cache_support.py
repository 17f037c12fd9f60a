"""A small cache whose prompts are strings: one letter per block, one key per prefix.

A capital letter at the end is a tail: of one token, if it is an A.
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any

from hybrid_pages._core import (
    Cache,
    Geometry,
    Group,
    InvalidArgumentError,
    Layer,
    Segment,
    WriteLease,
    tail_key,
)

PAGE, CHECKPOINT = 0, 1
SLOT_BYTES = 64


def layer(name: str, size: int) -> Layer:
    return Layer(name, [Segment("data", "uint8", [size])])


def hybrid(*, ranks: int = 1, window_tokens: int | None = None, block_tokens: int = 16) -> Geometry:
    """A page of one slot per rank, a checkpoint of three, a window page of one."""
    groups = [Group("attention", [layer("a", 64)]), Group("recurrent", [layer("r", 160)])]
    if window_tokens is not None:
        groups.append(Group("window", [layer("w", 64)], window_tokens=window_tokens))
    identity = {"model": "tiny"}
    return Geometry(block_tokens=block_tokens, groups=groups, ranks=ranks, identity=identity)


def make(slots: int = 64, *, slot_bytes: int = SLOT_BYTES, **geometry) -> tuple[Cache, int]:
    cache = Cache(hybrid(**geometry), slot_bytes=slot_bytes, slots=slots)
    return cache, cache.namespace(b"engine")


def keys(prompt: str) -> list[bytes]:
    """One chained hash per letter."""
    found: list[bytes] = []
    for end, letter in enumerate(prompt, 1):
        digest = hashlib.sha256(prompt[:end].encode()).digest()
        if "A" <= letter <= "Z":
            before = found[-1] if found else b""
            digest = tail_key(before, digest, ord(letter) - ord("A") + 1)
        found.append(digest)
    return found


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


def put(cache: Cache, namespace: int, prompt: str, entries: list[tuple[int, int]]) -> None:
    with cache.reserve(namespace, keys(prompt), entries) as lease:
        assert len(lease.entries) == len(entries)
        commit(lease)


# Wrong numbers for a cache with one namespace.
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

# Every method that takes keys.
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


def use_in_a_fork(process: Any) -> None:
    """Uses the cache of a process that stored "abc" in a fork of it, which has none of the tier's
    threads, then restores that. Ends the process."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        assert process.restore("abcd") == 3
        sys.exit(os.waitstatus_to_exitcode(status))
    for prompt in "defghijk":
        for known in "abcd", prompt:
            process.cache.lookup(process.namespace, keys(known))
            process.cache.promote(process.namespace, keys(known))
        with process.cache.reserve(process.namespace, keys(prompt), whole(prompt)) as lease:
            commit(lease)
        process.cache.poll()
    os._exit(0)
