"""What the command line of ``hybrid-pages replay`` says: policies and budgets."""

from __future__ import annotations

import argparse
import difflib
import re
from dataclasses import dataclass
from decimal import Decimal

from hybrid_pages import POLICIES

BOUND = "bound"
"""Not a policy: what none can exceed."""

_NAMES = (*POLICIES, BOUND)
_SIZES = {"MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True)
class Budget:
    """A share of the dense footprint, or bytes."""

    label: str
    fraction: float | None = None
    bytes: int | None = None


def policies(text: str) -> list[str]:
    """Names, separated by commas, each once.

    Raises:
        argparse.ArgumentTypeError: for an unknown name, with the nearest one and all.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in _NAMES:
            near = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise argparse.ArgumentTypeError(
                f"no policy is called {name!r}: {hint}expected some of {', '.join(_NAMES)}"
            )
    return names


def budgets(text: str) -> list[Budget]:
    """Shares such as 0.5% and sizes such as 64GiB, separated by commas: the shares first.

    Raises:
        argparse.ArgumentTypeError: for anything else.
    """
    found = list(dict.fromkeys(_budget(word.strip()) for word in text.split(",")))
    return sorted(found, key=lambda budget: budget.fraction is None)


def _budget(word: str) -> Budget:
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(%|MiB|GiB|TiB)", word, re.ASCII)
    number = Decimal(match[1]) if match else Decimal(0)
    if match is None or not 0 < number < 10**9:
        raise argparse.ArgumentTypeError(
            "expected shares of the dense footprint such as 0.5% or sizes such as 64GiB, "
            f"above 0 and separated by commas, found {word!r}"
        )
    # Decimal arithmetic: 0.5 % is 0.005 and not a float beside it.
    shown = format(number.normalize(), "f")
    if match[2] == "%":
        return Budget(f"{shown}%", fraction=float(number / 100))
    return Budget(f"{shown}{match[2]}", bytes=int(number * _SIZES[match[2]]))
