"""Which cases of a parametrized test run: by default, every pair of values of two parameters once.

A test with several ``parametrize`` marks has the product of their values as its cases. Most faults
show with one value or with two values together, so that a part of the product finds them:

* ``--cases=pairs``, the default: every pair of values of two marks is in one case at least.
* ``--cases=each``: every value of every mark is in one case at least.
* ``--cases=one``: one case of every test. Tests differ in which one, so that together they see most
  values. It is for a second version of a library, where all pairs run on the first one. What the
  mark ``every_version`` is on, a test or a module, runs with all pairs there, too; what the mark
  ``any_version`` is on does not run there at all.
* ``--cases=all``: the whole product, and what the mark ``long`` is on, which no other choice runs.

The choice depends on nothing but the names of the cases that are collected. A seed is not paired
with other values: each seed runs once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from itertools import combinations
from zlib import crc32

import pytest

STRENGTHS = {"one": 0, "each": 1, "pairs": 2}
SEEDS = {"seed"}
"""Parameters whose values mean nothing."""

Values = Sequence[Hashable]
"""The value of each axis, in a case."""


def covering(cases: Sequence[Values], seeds: set[int], strength: int) -> list[int]:
    """The numbers of cases that have, together, all sets of `strength` values that any case has.

    seeds: axes whose values are taken once each, with whatever values beside them. Greedily: the
    next case is the first of those that add the most.
    """
    if strength == 0 or not cases:
        return [0] if cases else []
    axes = range(len(cases[0]))
    paired = [axis for axis in axes if axis not in seeds]
    sets = [*combinations(paired, min(strength, len(paired))), *((axis,) for axis in axes)]
    adds = [{(axes, *(case[axis] for axis in axes)) for axes in sets} for case in cases]
    missing = set[Hashable]().union(*adds)
    chosen = []
    while missing:
        best = max(range(len(cases)), key=lambda i: len(adds[i] & missing))
        chosen.append(best)
        missing -= adds[best]
    return sorted(chosen)


def _axes(item: pytest.Function) -> dict[tuple[str, ...], Hashable]:
    """The parameters that each ``parametrize`` mark gives here, and which of its values they have.

    All cases of a test share the objects that its marks list, so objects are told by identity.
    """
    left = {name: id(value) for name, value in item.callspec.params.items()}
    axes = {}
    for mark in item.iter_markers("parametrize"):
        names = mark.kwargs.get("argnames", mark.args[0] if mark.args else ())
        names = [n.strip() for n in names.split(",")] if isinstance(names, str) else names
        found = {name: left.pop(name) for name in names if name in left}
        if found:
            axes[tuple(found)] = tuple(found.values())
    return axes | {(name,): value for name, value in left.items()}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases",
        choices=[*STRENGTHS, "all"],
        default="pairs",
        help="which cases of parametrized tests run (tests/plugins/pairwise.py)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "every_version: differs between versions of a library")
    config.addinivalue_line("markers", "any_version: says nothing of the version of a library")
    config.addinivalue_line("markers", "long: runs with --cases=all alone")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    cases = config.getoption("cases")
    if cases == "all":
        return
    tests = defaultdict(list)
    marks = ["long", *(["any_version"] if cases == "one" else [])]
    left_out = {item for item in items if any(map(item.get_closest_marker, marks))}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and item not in left_out:
            tests[item.parent, item.originalname].append(item)
    for group in tests.values():
        group.sort(key=lambda item: crc32(item.nodeid.encode()))
        axes = [_axes(item) for item in group]
        seeds = {i for i, names in enumerate(axes[0]) if SEEDS.intersection(names)}
        differs = cases == "one" and group[0].get_closest_marker("every_version") is not None
        strength = STRENGTHS["pairs" if differs else cases]
        chosen = covering([tuple(a.values()) for a in axes], seeds, strength)
        left_out |= set(group) - {group[i] for i in chosen}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
