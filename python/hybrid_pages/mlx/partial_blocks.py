"""Prefixes that end inside a block: which ones there are, and the keys of their last blocks.

The tokens of a prefix behind its last full block are its *tail*.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hybrid_pages.adapter.keys import Extras, extra_key

_MARK = b"tail"


def partial_key(before: bytes, token_ids: Sequence[int]) -> bytes:
    """The key of a block that ends after these tokens, which no full block has.

    before: the key of the block in front of it; empty if there is none.
    """
    return extra_key(before, _MARK, token_ids)


class PartialBlocks:
    """How many tokens the tails behind each prefix have: a hint where to look.

    The last 65536 prefixes are remembered.
    """

    def __init__(self, block_tokens: int) -> None:
        self._size = block_tokens
        self._extras = Extras()

    def add(self, namespace: int, before: bytes, tokens: int) -> None:
        """Notes a tail of so many tokens behind the block with the key ``before``."""
        self._extras.add(namespace, before, tokens)

    def candidates(
        self, namespace: int, keys: Sequence[bytes], token_ids: Sequence[int], *, first: int
    ) -> Iterator[tuple[int, list[bytes]]]:
        """The prefixes of ``token_ids[:-1]`` that have a tail, deepest first.

        Args:
            namespace: of the request.
            keys: of the full blocks of token_ids.
            token_ids: the prompt.
            first: blocks; prefixes with fewer are left out.

        Yields:
            How many tokens a prefix has, and the keys of its blocks with that of its tail.
        """
        for blocks in range(len(keys), first - 1, -1):
            before = keys[blocks - 1] if blocks else b""
            start = blocks * self._size
            for tail in self._extras.lengths(namespace, before):
                if start + tail < len(token_ids):
                    ids = token_ids[start : start + tail]
                    yield start + tail, [*keys[:blocks], partial_key(before, ids)]

    def clear(self) -> None:
        """Forgets all tails."""
        self._extras.clear()
