"""Finds the runs of adjacent bytes in strided memory."""

from collections.abc import Iterable, Sequence

from hybrid_pages._core import GeometryError


def merge(dims: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Joins dimensions that lie together: equal places in equal order, in fewer dimensions.

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
    """The (offset, length) in bytes of each run of adjacent bytes, in the dimensions' order.

    Args:
        dims: (extent, stride in bytes), outermost first, extents at least 1.
        itemsize: bytes of an item.
        most: how many runs there may be.

    Raises:
        GeometryError: there are more runs.
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
