"""Prefixes that end inside a block: which ones there are, and the keys of their last blocks."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence

_MOST = 1 << 16
_MARK = b"tail"


def tail_key(before: bytes, token_ids: Sequence[int]) -> bytes:
    """The key of a block that ends after these tokens; before: of the block in front of it.

    No full block has such a key: what it is a digest of has another length.
    """
    raw = array("q", token_ids).tobytes()
    return hashlib.blake2b(before + _MARK + raw, digest_size=32).digest()


class Tails:
    """How many tokens the tails behind each prefix have: a hint where to look, and no promise.

    The last 65536 prefixes are remembered.
    """

    def __init__(self, block_tokens: int) -> None:
        self._size = block_tokens
        self._lengths: OrderedDict[tuple[int, bytes], set[int]] = OrderedDict()

    def add(self, namespace: int, before: bytes, tokens: int) -> None:
        """Notes a tail of so many tokens behind the block with the key ``before``."""
        key = namespace, before
        self._lengths.setdefault(key, set()).add(tokens)
        self._lengths.move_to_end(key)
        if len(self._lengths) > _MOST:
            self._lengths.popitem(last=False)

    def candidates(
        self, namespace: int, keys: Sequence[bytes], token_ids: Sequence[int], *, first: int
    ) -> Iterator[tuple[int, list[bytes]]]:
        """Prefixes of ``token_ids[:-1]`` with a tail, deepest first: how many tokens, and keys.

        keys: of the full blocks of token_ids. first: blocks; prefixes with fewer are left out.
        """
        for blocks in range(len(keys), first - 1, -1):
            before = keys[blocks - 1] if blocks else b""
            start = blocks * self._size
            for tail in sorted(self._lengths.get((namespace, before), ()), reverse=True):
                if start + tail < len(token_ids):
                    ids = token_ids[start : start + tail]
                    yield start + tail, [*keys[:blocks], tail_key(before, ids)]

    def clear(self) -> None:
        self._lengths.clear()
