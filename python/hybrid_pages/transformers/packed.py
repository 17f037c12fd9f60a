"""Packed prefixes: how a cache is stored whose window layers hold a part of a block.

A window layer keeps only the tokens that it still sees, and the first of them is rarely the first
of a block. A cache that was filled before anybody stored its blocks one by one thus has only a part
of the first block that its last boundary needs. That part must not become the page of the block,
which other boundaries need whole. So the prefix is stored *packed*: behind its last block it has
one more, with a key of its own and no tokens, whose window pages begin with the part. The part is
never longer than a page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hybrid_pages._core import PageClass
from hybrid_pages.adapter.keys import Extras, extra_key
from hybrid_pages.transformers.layout import CacheTensor, Layout

_MARK = b"packed"


class PackedPrefixes:
    """Which prefixes were stored packed: a hint where to look. The last 65536 are remembered."""

    def __init__(self) -> None:
        self._extras = Extras()

    def add(self, namespace: int, last: bytes) -> None:
        """Notes a prefix by the key of its last block."""
        self._extras.add(namespace, last)

    def drop(self, namespace: int, last: bytes) -> None:
        """Forgets a prefix that is not in the cache any more."""
        self._extras.drop(namespace, last)

    def deepest(
        self, namespace: int, keys: Sequence[bytes], *, first: int, limit: int
    ) -> Iterator[int]:
        """The lengths of the packed prefixes of a prompt, in blocks, the longest first.

        keys: of the prompt's blocks. Prefixes of at most ``first`` or more than ``limit`` blocks
        are left out.
        """
        for blocks in range(limit, first, -1):
            if self._extras.lengths(namespace, keys[blocks - 1]):
                yield blocks

    def clear(self) -> None:
        """Forgets all prefixes."""
        self._extras.clear()


def packed_keys(keys: Sequence[bytes]) -> list[bytes]:
    """The keys of a packed prefix, from those of its blocks."""
    return [*keys, extra_key(keys[-1], _MARK)]


def packed_tokens(layout: Layout, blocks: int) -> dict[CacheTensor, tuple[int, int]]:
    """The tokens [first, end) that the last page of a packed prefix holds, by window tensor."""
    return {
        spec: _packed_tokens(layout, item, blocks)
        for item in _windows(layout)
        for spec in layout.class_arrays(item.index)
    }


def deepest_boundary(layout: Layout, cache: Any, blocks: int) -> tuple[int, bool]:
    """The deepest boundary whose windows a cache still holds, and whether it has to be packed.

    blocks: the boundary is at most there. 0 for none.
    """
    held = {item.index: layout.first_held(item.index, cache) for item in _windows(layout)}
    size = layout.block_tokens
    for end in range(blocks, 0, -1):
        needs = [
            (held[item.index], _packed_tokens(layout, item, end)[0]) for item in _windows(layout)
        ]
        if all(first <= needed for first, needed in needs):
            whole = all(
                held[item.index] <= max(0, end - (item.window_blocks or 0)) * size
                for item in _windows(layout)
            )
            return end, not whole
        if any(first > end * size for first, _ in needs):
            break
    return 0, False


def _packed_tokens(layout: Layout, item: PageClass, blocks: int) -> tuple[int, int]:
    window = layout.geometry.groups[item.groups[0]].window_tokens
    if window is None or item.window_blocks is None:
        return 0, 0
    first = max(0, blocks * layout.block_tokens - (window - 1))
    return first, max(first, (blocks + 1 - item.window_blocks) * layout.block_tokens)


def _windows(layout: Layout) -> list[PageClass]:
    return [item for item in layout.geometry.classes if item.window_blocks is not None]
