"""Keys of prefixes and identities of namespaces, for frameworks without hashes of their own."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hybrid_pages._core import Cache, InvalidArgumentError

_MOST_EXTRAS = 1 << 16


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
        raw = _words(ids.tolist() if hasattr(ids, "tolist") else ids)
        if sys.byteorder == "big":
            raw.byteswap()
        for start in range(0, len(raw), size):
            before = self.keys[-1] if self.keys else b""
            block = raw[start : start + size].tobytes()
            self.keys.append(hashlib.blake2b(before + block, digest_size=32).digest())


def _words(token_ids: Sequence[int]) -> array[int]:
    try:
        return array("q", token_ids)
    except OverflowError:
        raise InvalidArgumentError(
            "token_ids: expected integers of 64 bits, found one that needs more"
        ) from None


def extra_key(before: bytes, mark: bytes, token_ids: Sequence[int] = ()) -> bytes:
    """The key of an *extra*: an entry behind a prefix's last full block that is no full block.

    It differs from the keys of all blocks, since the digest is made from another number of bytes.

    Args:
        before: key of the last full block; empty if the prefix has none.
        mark: the kind of extra.
        token_ids: the tokens in it, fewer than a block has.
    """
    raw = _words(token_ids).tobytes()
    return hashlib.blake2b(before + mark + raw, digest_size=32).digest()


class Extras:
    """Which prefixes have extras behind their last full block, and how many tokens these have.

    A hint where to look: the cache may have dropped the entries. The 65536 prefixes that were
    noted last are remembered.
    """

    def __init__(self) -> None:
        self._lengths: OrderedDict[tuple[int, bytes], set[int]] = OrderedDict()

    def add(self, namespace: int, before: bytes, tokens: int = 0) -> None:
        """Notes an extra of so many tokens behind the block with the key ``before``."""
        key = namespace, before
        self._lengths.setdefault(key, set()).add(tokens)
        self._lengths.move_to_end(key)
        if len(self._lengths) > _MOST_EXTRAS:
            self._lengths.popitem(last=False)

    def lengths(self, namespace: int, before: bytes) -> list[int]:
        """The numbers of tokens of the extras behind a block, the largest first."""
        return sorted(self._lengths.get((namespace, before), ()), reverse=True)

    def drop(self, namespace: int, before: bytes) -> None:
        """Forgets the extras behind a block."""
        self._lengths.pop((namespace, before), None)

    def clear(self) -> None:
        """Forgets all extras."""
        self._lengths.clear()


def identity(salt: str, state: str = "") -> bytes:
    """The identity of a namespace, from a salt and the name of a model's state."""
    # JSON may have a half of a surrogate pair in it.
    text = f"{state}/{salt}".encode(errors="surrogatepass")
    return hashlib.blake2b(text, digest_size=32).digest()


def of_tenant(tenant: bytes, identity: bytes) -> bytes:
    """The identity of a named tenant's namespace. Tiers below the host read the name from it."""
    return b"tenant" + len(tenant).to_bytes(8, "little") + tenant + identity


@contextmanager
def holding(cache: Cache, identity: bytes) -> Iterator[int]:
    """Holds a namespace for a ``with`` block. Later it stays as long as it has entries."""
    number = cache.namespace(identity)
    try:
        yield number
    finally:
        cache.release_namespace(number)
