"""Strided memory as runs of adjacent bytes."""

from collections.abc import Iterable, Sequence

from hybrid_pages._core import GeometryError


def merge(dims: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same places in the same order, in as few dimensions as possible.

    Args:
        dims: (extent, stride), outermost first.
    """
    merged: list[tuple[int, int]] = []
    for size, stride in dims:
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    return merged


def runs(dims: Sequence[tuple[int, int]], itemsize: int, *, most: int) -> list[tuple[int, int]]:
    """(offset, length) in bytes of what lies together, in the dimensions' order.

    Args:
        dims: (extent, stride in bytes), outermost first, extents at least 1.
        itemsize: bytes at each place.
        most: how many runs there may be.

    Raises:
        GeometryError: more than that.
    """
    merged, length = merge(dims), itemsize
    if merged and merged[-1][1] == itemsize:
        length *= merged.pop()[0]
    count = 1
    for size, _ in merged:
        count *= size
    if count > most:
        raise GeometryError(
            f"expected at most {most} contiguous pieces per block, found {count}: choose a layout "
            "in which more bytes lie together"
        )
    offsets = [0]
    for size, stride in merged:
        offsets = [offset + index * stride for offset in offsets for index in range(size)]
    return [(offset, length) for offset in offsets]
