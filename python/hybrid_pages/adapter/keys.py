"""Names of prefixes and namespaces, for frameworks that have no hashes of their own."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hybrid_pages._core import Cache


class Prefix:
    """A growing sequence of token ids and the keys of its full blocks.

    A key is BLAKE2b of the key before it and the block's ids, as 8-byte little-endian integers.
    Ids are a sequence of integers, or an array ``[tokens]`` of integers with ``tolist``.
    """

    def __init__(self, token_ids: Any, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.keys: list[bytes] = []
        self.extend(token_ids)

    def extend(self, token_ids: Any) -> None:
        """Adds the keys of the blocks that the whole sequence has and this one lacks."""
        size, first = self.block_tokens, len(self.keys)
        ids = token_ids[first * size : len(token_ids) // size * size]
        raw = array("q", ids.tolist() if hasattr(ids, "tolist") else ids)
        if sys.byteorder == "big":
            raw.byteswap()
        for start in range(0, len(raw), size):
            before = self.keys[-1] if self.keys else b""
            block = raw[start : start + size].tobytes()
            self.keys.append(hashlib.blake2b(before + block, digest_size=32).digest())


def identity(salt: str, state: str = "") -> bytes:
    """The identity of a namespace: of a salt, and of the state of a model that computed in it."""
    return hashlib.blake2b(f"{state}/{salt}".encode(), digest_size=32).digest()


@contextmanager
def holding(cache: Cache, identity: bytes) -> Iterator[int]:
    """Holds the namespace of an identity until the block's end. It goes with its last entry."""
    number = cache.namespace(identity)
    try:
        yield number
    finally:
        cache.release_namespace(number)
