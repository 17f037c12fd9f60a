"""The identity of what outlives its process."""

import pytest

from hybrid_pages import Geometry, Group, Layer, Segment
from hybrid_pages.adapter.identity import BYTES, short_lived, stable_identity


def geometry(*, size=4, tokens=16, ranks=1, **identity):
    group = Group("attention", [Layer("a", [Segment("kv", "uint8", [size])])])
    return Geometry(block_tokens=tokens, groups=[group], ranks=ranks, identity=identity)


FACTS = {"weights": "12ab", "torch": "2"}
PLACES = ("model",)


def test_it_is_the_same_in_every_place_and_order():
    first = stable_identity(geometry(model="/a", dtype="half"), FACTS, places=PLACES)
    second = stable_identity(
        geometry(dtype="half", model="/b"), dict(reversed(FACTS.items())), places=PLACES
    )
    assert first == second and len(first) == BYTES


@pytest.mark.parametrize(
    "other",
    [
        dict(size=8),
        dict(tokens=32),
        dict(ranks=2),
        dict(dtype="float"),
        dict(dtype="half", backend="x"),
    ],
)
def test_everything_in_a_geometry_counts(other):
    mine = stable_identity(geometry(dtype="half"), FACTS, places=PLACES)
    given = {"dtype": "half"} | other
    assert stable_identity(geometry(**given), FACTS, places=PLACES) != mine


@pytest.mark.parametrize("facts", [{}, FACTS | {"weights": "34cd"}, FACTS | {"more": ""}])
def test_every_fact_counts(facts):
    mine = stable_identity(geometry(), FACTS, places=PLACES)
    assert stable_identity(geometry(), facts, places=PLACES) != mine


def test_a_place_counts_unless_it_is_named_as_one():
    found = [stable_identity(geometry(model=name), FACTS) for name in ("/a", "/b")]
    assert found[0] != found[1]


def test_what_is_short_lived_never_comes_back():
    assert short_lived() != short_lived()
