"""Which combinations of parameters run: those in which every pair of values is."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from pairwise import covering

pytest_plugins = ["pytester"]

SUITE = """
import pytest

@pytest.mark.parametrize("shape", ["a", "b", "c", "d"])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("ranks", "drafts"), [(1, 0), (1, 2), (2, 0)])
def test_product(shape, asynchronous, ranks, drafts): pass

@pytest.mark.parametrize("shape", ["a", "b", "c", "d"])
@pytest.mark.parametrize("seed", range(5))
def test_seeds(shape, seed): pass

@pytest.fixture(params=["x", "y"])
def kind(request): return request.param

@pytest.mark.every_version
@pytest.mark.parametrize("shape", ["a", "b", "c", "d"])
def test_differs(shape, kind): pass

def test_plain(): pass

@pytest.mark.any_version
def test_of_no_version(): pass

@pytest.mark.long
def test_long(): pass

@pytest.mark.parametrize("kind", ["short", pytest.param("long", marks=pytest.mark.long)])
def test_in_part(kind): pass
"""


@pytest.mark.parametrize("sizes", [(2, 2, 2), (4, 2, 3), (42, 2, 2), (3, 3, 3, 3), (5, 4)], ids=str)
def test_every_pair_of_values_is_in_a_chosen_case(sizes: tuple[int, ...]) -> None:
    cases = list(product(*map(range, sizes)))
    chosen = [cases[i] for i in covering(cases, set(), 2)]
    for a, b in combinations(range(len(sizes)), 2):
        pairs = set(product(range(sizes[a]), range(sizes[b])))
        assert {(case[a], case[b]) for case in chosen} == pairs
    assert len(chosen) <= 2 * sizes[0] * max(sizes[1:])


def test_each_seed_is_in_a_chosen_case_whatever_is_beside_it() -> None:
    cases = list(product(range(20), range(2), range(2)))
    chosen = [cases[i] for i in covering(cases, {0}, 2)]
    assert len(chosen) == 20
    assert {(b, c) for _, b, c in chosen} == set(product(range(2), range(2)))


def test_only_cases_that_exist_are_asked_for() -> None:
    assert covering([("a", 1), ("b", 2)], set(), 2) == [0, 1]
    assert covering([("a", 1)], set(), 2) == [0]
    assert covering([], set(), 2) == []


@pytest.mark.parametrize(
    ("cases", "passed"),
    [
        ("all", 24 + 20 + 8 + 1 + 1 + 3),
        ("pairs", 12 + 5 + 8 + 1 + 1 + 1),
        ("each", 4 + 5 + 4 + 1 + 1 + 1),
        ("one", 1 + 1 + 8 + 1 + 0 + 1),
    ],
)
def test_an_option_says_how_many_cases_run(
    pytester: pytest.Pytester, cases: str, passed: int
) -> None:
    pytester.makepyfile(SUITE)
    done = pytester.inline_run("-p", "pairwise", f"--cases={cases}")
    done.assertoutcome(passed=passed)


def test_a_case_that_is_named_runs(pytester: pytest.Pytester) -> None:
    file = pytester.makepyfile(SUITE)
    for case in ("test_product[1-0-True-d]", "test_product[2-0-False-a]", "test_seeds[3-b]"):
        pytester.inline_run("-p", "pairwise", f"{file}::{case}").assertoutcome(passed=1)
