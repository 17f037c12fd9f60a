"""Policies and budgets as the lab's commands take them, and bytes as they show them."""

from __future__ import annotations

import difflib
import re
import reprlib
from dataclasses import dataclass
from decimal import Decimal

from hybrid_pages._core import POLICIES
from hybrid_pages.arguments import WrongArgument
from hybrid_pages.text import count, size

BOUND = "bound"
"""Not a policy: the most that any policy could hit."""

RATIO = 3
"""The size of a checkpoint in pages, if it is not given."""

_NAMES = (*POLICIES, BOUND)
_SIZES = {"MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_MOST_BYTES = 1 << 50


@dataclass(frozen=True)
class Budget:
    """A number of bytes, or a share of the room for all pages and checkpoints of a trace."""

    label: str
    fraction: float | None = None
    bytes: int | None = None


def policies(text: str) -> list[str]:
    """Names, separated by commas, each once.

    Raises:
        WrongArgument: for an unknown name; lists the nearest one and all.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in _NAMES:
            near = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise WrongArgument(
                f"no policy is called {name!r}: {hint}expected some of {', '.join(_NAMES)}"
            )
    return names


def budgets(text: str) -> list[Budget]:
    """Shares such as 0.5% and sizes such as 64GiB, separated by commas: the shares first.

    Raises:
        WrongArgument: for anything else.
    """
    found = list(dict.fromkeys(_budget(word.strip()) for word in text.split(",")))
    return sorted(found, key=lambda budget: budget.fraction is None)


def share(text: str) -> float:
    """A share such as 20%.

    Raises:
        WrongArgument: for anything else.
    """
    found = [budget.fraction for budget in budgets(text)]
    if len(found) != 1 or found[0] is None:
        raise WrongArgument(
            f"expected one share of the dense footprint such as 20%, found {reprlib.repr(text)}"
        )
    return found[0]


def amount(nbytes: int) -> str:
    """Bytes in the largest unit of which there is at least one."""
    return size(nbytes, ",.1f") if nbytes >= 1024 else count(nbytes, "byte")


def _budget(word: str) -> Budget:
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(%|MiB|GiB|TiB)", word, re.ASCII)
    number = Decimal(match[1]) if match else Decimal(0)
    # Decimal arithmetic, so that 0.5 % is exactly 0.005.
    shown = format(number.normalize(), "f")
    if match and match[2] == "%":
        fraction = float(number / 100)
        if fraction > 0 and number <= 100:
            return Budget(f"{shown}%", fraction=fraction)
    elif match and 1 <= number * _SIZES[match[2]] < _MOST_BYTES:
        return Budget(f"{shown}{match[2]}", bytes=int(number * _SIZES[match[2]]))
    raise WrongArgument(
        "expected shares of the dense footprint above 0% up to 100% such as 0.5%, or sizes above 0 "
        f"and below {_MOST_BYTES >> 40}TiB such as 64GiB, separated by commas, "
        f"found {reprlib.repr(word)}"
    )
