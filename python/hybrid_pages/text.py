"""Numbers and tables as commands print them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def size(nbytes: float, form: str = ".1f") -> str:
    """Bytes in the largest unit of which there is at least one.

    form: how the number is written where the unit is not a byte.
    """
    for scale, unit in _UNITS:
        if nbytes >= scale:
            return f"{nbytes / scale:{form}} {unit}"
    return f"{nbytes:.0f} B"


def finite(value: Any) -> Any:
    """What JSON can hold of a value: None for a number, also inside it, that is infinite or none
    at all."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    return value


def count(number: int, one: str, many: str = "") -> str:
    """A number with its noun."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row, its first cell to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for cells in rows:
        first, *others = (
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        lines.append("  ".join([first, *others]))
    return lines
