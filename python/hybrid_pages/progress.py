"""Progress bars of long commands."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any


def progress(total: int, unit: str, *, scale: bool = False) -> AbstractContextManager[Any]:
    """A progress bar on standard error, if that is a terminal. None if tqdm is not installed.

    total: the number of units. unit: its name. scale: whether the bar counts in Ki, Mi and so on,
    as for bytes.
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
