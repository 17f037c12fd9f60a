"""Geometry from Python: values, refusals, JSON, pickling."""

from __future__ import annotations

import json
import pickle

import pytest

from hybrid_pages import _core
from hybrid_pages._core import Arena, Geometry, Group, Layer, Segment


def layer(name: str, size: int = 8) -> Layer:
    return Layer(name, [Segment("data", "uint8", [size])])


def geometry(**changes) -> Geometry:
    arguments = {
        "block_tokens": 16,
        "groups": [
            Group("attention", [Layer("a", [Segment("kv", "bfloat16", (2, 16, 4))])]),
            Group("recurrent", [Layer("r", [Segment("conv", "bfloat16", [3]), ssm()])]),
            Group("window", [layer("w")], window_tokens=40),
        ],
        "ranks": 2,
        "identity": {"model": "tiny", "revision": "1"},
    }
    return Geometry(**(arguments | changes))


def ssm(dtype: str = "float32") -> Segment:
    return Segment("ssm", dtype, [4, 4])


def test_every_property_is_what_was_given() -> None:
    made = geometry()
    assert (made.block_tokens, made.ranks) == (16, 2)
    assert made.identity == {"model": "tiny", "revision": "1"}
    attention, recurrent, window = made.groups
    assert (attention.kind, attention.window_tokens, attention.bytes) == ("attention", None, 256)
    assert (window.kind, window.window_tokens) == ("window", 40)
    assert [segment.name for segment in recurrent.layers[0].segments] == ["conv", "ssm"]
    segment = attention.layers[0].segments[0]
    assert (segment.dtype, segment.shape, segment.bytes) == ("bfloat16", (2, 16, 4), 256)
    assert attention.layers[0].name == "a"
    assert attention.layers[0].bytes == 256


def test_classes_say_what_an_entry_is() -> None:
    classes = geometry().classes
    kinds = [(c.index, c.kind, c.groups, c.window_blocks) for c in classes]
    assert kinds == [
        (0, "attention", (0,), None),
        (1, "window", (2,), 3),
        (2, "recurrent", (1,), None),
    ]
    assert [(c.rank_bytes, c.entry_bytes) for c in classes] == [(256, 512), (8, 16), (70, 140)]
    with pytest.raises(TypeError):
        _core.PageClass()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Segment("k", "float12", [1]), "expected one of bool"),
        (lambda: Segment("k", "uint8", [0]), "at least 1"),
        (lambda: Segment("", "uint8", [1]), "expected a name"),
        (lambda: Segment("k", "float64", [2**62]), "exceeds memory"),
        (lambda: Layer("a", []), "expected 1 to 64 segments"),
        (lambda: Layer("a", [ssm(), ssm()]), "found twice"),
        (lambda: Group("mamba", [layer("a")]), "expected attention, window or recurrent"),
        (lambda: Group("window", [layer("a")]), "window_tokens"),
        (lambda: Group("attention", [layer("a")], window_tokens=4), "expected no window_tokens"),
        (lambda: Group("attention", [layer("a")], blocks_per_entry=0), "blocks_per_entry, found 0"),
        (lambda: Group("recurrent", [layer("a")], blocks_per_entry=1025), "expected 1 to 1024"),
        (lambda: geometry(block_tokens=0), "block_tokens"),
        (lambda: geometry(ranks=0), "ranks"),
        (lambda: geometry(groups=[]), "groups"),
        (lambda: geometry(groups=[Group("attention", [layer("a"), layer("a")])]), "found twice"),
    ],
)
def test_impossible_values_are_geometry_errors(make, message: str) -> None:
    with pytest.raises(_core.GeometryError, match=message) as caught:
        make()
    assert isinstance(caught.value, (_core.HybridPagesError, ValueError))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Segment("k", "uint8", [-1]),
        lambda: Segment("k", "uint8", [2**64]),
        lambda: Segment("k", "uint8", [10**5000]),
        lambda: geometry(ranks=-1),
        lambda: geometry().slots_per_entry(-1, 512),
        lambda: geometry().slots_per_entry(3, 512),
        lambda: geometry().slots_per_entry(0, 0),
        lambda: Arena.create(geometry(), slot_bytes=512, slots=8, numa_node=-1),
        lambda: Arena.create(geometry(), slot_bytes=512, slots=8, numa_node=1 << 32),
        lambda: Segment("\ud800", "uint8", [1]),
        lambda: Layer("\ud800", [ssm()]),
        lambda: geometry(identity={"model": "\ud800"}),
        lambda: geometry(identity={"\ud800": "model"}),
    ],
)
def test_values_out_of_range_are_invalid_arguments(make) -> None:
    with pytest.raises(_core.InvalidArgumentError, match="expected"):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Segment(1, "uint8", [1]),
        lambda: Segment("k", "uint8", [1.5]),
        lambda: Segment("k", "uint8", "12"),
        lambda: Segment("k", "uint8", 3),
        lambda: Layer("a", [1]),
        lambda: Layer("a", ssm()),
        lambda: Group("attention", [ssm()]),
        lambda: Group("window", [layer("a")], window_tokens="4"),
        lambda: Group("attention", [layer("a")], None, 2),
        lambda: Group("attention", [layer("a")], blocks_per_entry=None),
        lambda: geometry(identity=None),
        lambda: geometry(identity={"model": 1}),
        lambda: geometry(block_tokens=None),
        lambda: Geometry(16, [], 1, {}),
        lambda: Geometry.from_json(b"{}"),
        lambda: geometry().difference("x"),
    ],
)
def test_wrong_types_are_type_errors(make) -> None:
    with pytest.raises(TypeError):
        make()


def test_values_are_frozen_and_compared_by_what_they_hold() -> None:
    assert ssm() == ssm() != ssm("bfloat16")
    assert layer("a") == layer("a") != layer("b")
    assert Group("attention", [layer("a")]) == Group("attention", [layer("a")])
    assert Group("attention", [layer("a")]) != Group("recurrent", [layer("a")])
    assert geometry() == geometry() != geometry(ranks=1)
    assert geometry() != "geometry"
    assert geometry().classes == geometry(identity={}).classes
    assert len({ssm(), ssm(), ssm("int8")}) == 2
    assert len({layer("a"), layer("a")}) == len({geometry(), geometry()}) == 1
    for value, name in [(ssm(), "name"), (layer("a"), "bytes"), (geometry(), "ranks")]:
        with pytest.raises(AttributeError):
            setattr(value, name, 1)


def test_a_representation_says_what_a_value_is() -> None:
    assert repr(ssm()) == "Segment('ssm', 'float32', (4, 4))"
    assert eval(repr(layer("it's"))) == layer("it's")
    window = Group("window", [layer("w")], window_tokens=4)
    assert eval(repr(window)) == window
    several = Group("attention", [layer("a")], blocks_per_entry=3)
    assert eval(repr(several)) == several != Group("attention", [layer("a")])
    fingerprint = geometry().fingerprint.hex()
    expected = f"Geometry(block_tokens=16, groups=3, ranks=2, fingerprint={fingerprint[:12]}...)"
    assert repr(geometry()) == expected
    assert repr(geometry().classes[1]) == (
        "PageClass(index=1, kind='window', groups=(2,), window_blocks=3, rank_bytes=8, "
        "entry_bytes=16)"
    )


def test_json_and_pickle_bring_the_same_geometry_back() -> None:
    made = geometry()
    document = json.loads(made.to_json())
    assert made.to_json() == json.dumps(document, sort_keys=True, separators=(",", ":"))
    assert document["format_version"] == _core.FORMAT_VERSION
    for back in [Geometry.from_json(made.to_json()), pickle.loads(pickle.dumps(made))]:
        assert back == made
        assert back.fingerprint == made.fingerprint
        assert back.groups == made.groups
    assert len(made.fingerprint) == 32


def test_a_group_counts_all_blocks_of_an_entry() -> None:
    groups = [
        Group("attention", [layer("a", 10), layer("b", 6)], blocks_per_entry=4),
        Group("recurrent", [layer("r", 100)], blocks_per_entry=2),
    ]
    made = geometry(groups=groups)
    assert [(group.blocks_per_entry, group.bytes) for group in made.groups] == [(4, 64), (2, 200)]
    assert [(c.rank_bytes, c.entry_bytes) for c in made.classes] == [(64, 128), (200, 400)]
    assert made.groups[0].layers[0].bytes == 10
    written = json.loads(made.to_json())["groups"]
    assert [group["blocks_per_entry"] for group in written] == [4, 2]
    assert "blocks_per_entry" not in geometry().to_json()
    assert Geometry.from_json(made.to_json()).groups == made.groups
    single = geometry(groups=[Group("attention", [layer("a", 10), layer("b", 6)]), groups[1]])
    line = "group 0: blocks_per_entry expected 4, found 1"
    assert made.difference(single) == line


def test_json_of_another_version_is_foreign_and_anything_else_a_geometry_error() -> None:
    other = geometry().to_json().replace('"format_version":2', '"format_version":3')
    with pytest.raises(_core.ForeignError, match="expected format version 2, found 3"):
        Geometry.from_json(other)
    for text in ["", "[]", "nonsense", geometry().to_json()[:-1]]:
        with pytest.raises(_core.GeometryError, match="JSON"):
            Geometry.from_json(text)


def test_the_first_difference_is_named() -> None:
    def with_state(dtype: str) -> Geometry:
        return geometry(groups=[Group("recurrent", [Layer("x", [ssm(dtype)])])])

    assert with_state("float32").difference(with_state("float32")) is None
    line = "layer 'x': segment 'ssm': dtype expected float32, found bfloat16"
    assert with_state("float32").difference(with_state("bfloat16")) == line


def test_slots_are_suggested_and_counted() -> None:
    page = Group("attention", [layer("a", 3 << 20)])
    large = geometry(groups=[page], ranks=1)
    assert large.suggest_slot_bytes() == 1 << 20
    assert large.slots_per_entry(0, 1 << 20) == 3
    assert large.slots_per_entry(0, (1 << 20) - 1) == 4


def test_every_error_is_a_hybrid_pages_error() -> None:
    names = ["Geometry", "InvalidArgument", "Foreign", "Arena", "Budget", "Lease", "Transfer"]
    for name in names:
        error = getattr(_core, f"{name}Error")
        assert issubclass(error, _core.HybridPagesError)
        assert issubclass(error, ValueError) == (name in ("Geometry", "InvalidArgument"))
        assert error.__doc__
        assert pickle.loads(pickle.dumps(error("why"))).args == ("why",)
