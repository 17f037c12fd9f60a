"""Checks of arguments with a value for each row, made before anything changes."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from hybrid_pages._core import InvalidArgumentError


def whole_numbers(name: str, values: Iterable[int]) -> list[int]:
    """The values as a list of ints. Rejects booleans, which may be meant as a mask."""
    numbers = []
    for value in values:
        try:
            if isinstance(value, bool) or str(getattr(value, "dtype", "")) == "torch.bool":
                raise TypeError
            numbers.append(operator.index(value))
        except TypeError:
            raise InvalidArgumentError(
                f"{name}: expected whole numbers, found {value!r} of type {type(value).__name__}"
            ) from None
    return numbers


def per_row(name: str, values: Iterable[int], size: int) -> list[int]:
    """The values as a list with one number for each row, none of them negative."""
    numbers = whole_numbers(name, values)
    if len(numbers) != size:
        raise InvalidArgumentError(
            f"{name}: expected one number for each of {size} rows, found {len(numbers)}"
        )
    if any(number < 0 for number in numbers):
        raise InvalidArgumentError(f"{name}: expected numbers of at least 0, found {numbers}")
    return numbers


def row_indices(values: Iterable[int], size: int) -> list[int]:
    """The values as a list of rows, in any order and each once."""
    rows = whole_numbers("rows", values)
    if not rows:
        raise InvalidArgumentError(
            "rows: expected at least one, found none; drop the batch instead"
        )
    if any(not 0 <= row < size for row in rows):
        raise InvalidArgumentError(f"rows: expected indices from 0 to {size - 1}, found {rows}")
    if len(set(rows)) != len(rows):
        raise InvalidArgumentError(f"rows: expected each row once, found {rows}")
    return rows


def at_least_one(name: str, value: int) -> int:
    """The value as an int of at least 1."""
    (number,) = whole_numbers(name, [value])
    if number < 1:
        raise InvalidArgumentError(f"{name}: expected at least 1, found {number}")
    return number
