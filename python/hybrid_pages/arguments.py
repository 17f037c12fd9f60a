"""Numbers on command lines. A wrong one is a line of usage, before anything is loaded."""

from __future__ import annotations

import argparse
import math
import re
import reprlib
from collections.abc import Callable

from hybrid_pages.adapter.memory import GIB, memory_bytes


def whole(most: int) -> Callable[[str], int]:
    """Reads a whole number from 1 to ``most``; an argparse ``type``."""

    def read(text: str) -> int:
        # A bound on the digits, too: int() refuses thousands of them in words of its own.
        if not re.fullmatch(r"0{0,9}[1-9][0-9]{0,18}", text) or int(text) > most:
            raise argparse.ArgumentTypeError(
                f"expected a whole number from 1 to {most}, found {reprlib.repr(text)}"
            )
        return int(text)

    return read


def gib(least: float) -> Callable[[str], float]:
    """Reads a size in GiB from ``least`` to this machine's memory; an argparse ``type``."""

    def read(text: str) -> float:
        most = math.floor(memory_bytes() / GIB * 100) / 100
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        # False for what is no number.
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"expected a size in GiB from {least:g} to {most:.2f}, this machine's memory, "
                f"found {reprlib.repr(text)}"
            )
        return value

    return read
