"""Progress bars of long commands."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any


def progress(total: int, unit: str, *, scale: bool = False) -> AbstractContextManager[Any]:
    """A bar on a terminal, or None if tqdm is not installed.

    total: in units. scale: shows thousands and millions of units, as for bytes.
    """
    try:
        from tqdm import tqdm
    except ImportError:
        return nullcontext()
    bar: AbstractContextManager[Any] = tqdm(
        total=total,
        unit=unit,
        unit_scale=scale,
        unit_divisor=1024 if scale else 1000,
        file=sys.stderr,
        disable=None,
        leave=False,
    )
    return bar
