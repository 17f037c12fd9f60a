"""Which token each byte of a page belongs to, for pages that are stored in part."""

from collections.abc import Sequence
from typing import TypeAlias

from hybrid_pages.vllm.versions import Placement

TokenPart: TypeAlias = tuple[int, list[tuple[int, int]], int]
"""A part of an engine block, see :class:`~hybrid_pages.LayerMap`."""

_KERNEL, _HEAD, _TOKEN, _CONTENT = range(4)
_TILE = 16
"""Words of a row of an AMX tile. A word has one item of four bytes, or two smaller ones: of keys
both are of one token, of values they are of two neighbouring tokens."""


def token_parts(
    placement: Placement, sizes: Sequence[int], order: Sequence[int], item: int
) -> list[TokenPart] | None:
    """The token parts of an engine block; None if its tensor is not as the kernels need it.

    Args:
        placement: where the kernels place tokens.
        sizes: kernel blocks, heads, tokens and contents of the engine block.
        order: these four dimensions in the order of memory, outermost first.
        item: bytes of an item.
    """
    if placement == "strides":
        return _by_strides(sizes, order, item)
    kernels, heads, tokens, content = sizes
    outer = [dim for dim in order if sizes[dim] > 1]
    if outer != sorted(outer) or content % 2:
        return None
    parts = _columns if placement == "columns" else _tiles
    of_head = parts(tokens, content // 2, item)
    if of_head is None:
        return None
    return [
        (kernel * tokens, dims, cell)
        for kernel in range(kernels)
        for _ in range(heads)
        for dims, cell in of_head
    ]


def _by_strides(sizes: Sequence[int], order: Sequence[int], item: int) -> list[TokenPart]:
    steps = {_KERNEL: sizes[_TOKEN], _TOKEN: 1}
    dims = [(sizes[dim], steps.get(dim, 0)) for dim in order if sizes[dim] > 1]
    cell = item
    while dims and dims[-1][1] == 0:
        cell *= dims.pop()[0]
    return [(0, dims, cell)]


_HeadParts: TypeAlias = list[tuple[list[tuple[int, int]], int]]


def _columns(tokens: int, width: int, item: int) -> _HeadParts | None:
    """A head's keys, transposed, and its values."""
    return [([(width, 0), (tokens, 1)], item), ([(tokens, 1)], width * item)]


def _tiles(tokens: int, width: int, item: int) -> _HeadParts | None:
    each = 1 if item == 4 else 2
    if width % _TILE or tokens % _TILE:
        return None
    keys = [(tokens // _TILE, _TILE), (width // each, 0), (_TILE, 1)]
    values = [(width // _TILE, 0), (tokens // each, each), (_TILE, 0), (each, 1)]
    return [(keys, each * item), (values, item)]
