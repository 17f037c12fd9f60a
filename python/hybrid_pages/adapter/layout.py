"""How the arrays of a framework's cache make up a geometry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from hybrid_pages._core import Geometry, Group, Layer
from hybrid_pages.adapter.errors import SettingsError


class ArraySpec(Protocol):
    """An array of a framework's cache: one layer of the geometry, with one segment."""

    @property
    def is_state(self) -> bool:
        """Whether it is a recurrent state; otherwise it holds keys or values."""
        ...

    @property
    def window(self) -> int | None:
        """How many tokens a sliding-window layer sees; None for any other."""
        ...

    def as_layer(self) -> Layer:
        """The array as a layer of the geometry."""
        ...


Array = TypeVar("Array", bound=ArraySpec)


@dataclass(frozen=True)
class CacheLayout(Generic[Array]):
    """The geometry of one model's caches, and the arrays in it.

    groups: the arrays of each group of the geometry, in the geometry's order.
    """

    geometry: Geometry
    groups: tuple[tuple[Array, ...], ...]

    @property
    def block_tokens(self) -> int:
        """The tokens of a block."""
        return self.geometry.block_tokens

    @property
    def has_states(self) -> bool:
        """Whether a boundary needs recurrent states."""
        return any(item.kind == "recurrent" for item in self.geometry.classes)

    def class_arrays(self, class_index: int) -> Iterator[Array]:
        """The arrays of an entry of a class, in the order of its payload."""
        for group in self.geometry.classes[class_index].groups:
            yield from self.groups[group]

    def arrays(self) -> Iterator[Array]:
        """All arrays that have bytes."""
        for group in self.groups:
            yield from group


def grouped(
    arrays: Sequence[Array], *, block_tokens: int, identity: Mapping[str, str]
) -> tuple[Geometry, tuple[tuple[Array, ...], ...]]:
    """The geometry of some arrays, at least one, and the arrays of each of its groups.

    Full attention is the first group, each width of a sliding window one more, and all recurrent
    states are the last.
    """
    tokens = [array for array in arrays if not array.is_state]
    widths = sorted({array.window for array in tokens if array.window is not None})
    members: list[tuple[str, int | None, list[Array]]] = [
        ("attention", None, [array for array in tokens if array.window is None]),
        *(("window", width, [a for a in tokens if a.window == width]) for width in widths),
        ("recurrent", None, [array for array in arrays if array.is_state]),
    ]
    members = [member for member in members if member[2]]
    geometry = Geometry(
        block_tokens=block_tokens,
        groups=[
            Group(kind, [array.as_layer() for array in group], window_tokens=width)
            for kind, width, group in members
        ],
        identity=dict(identity),
    )
    return geometry, tuple(tuple(group) for _, _, group in members)


def require_blocks_in_windows(geometry: Geometry) -> None:
    """Rejects blocks that are as long as a sliding window or longer.

    Raises:
        SettingsError: names ``block_tokens`` and the window.
    """
    for group in geometry.groups:
        if group.window_tokens is not None and group.window_tokens <= geometry.block_tokens:
            raise SettingsError(
                f"block_tokens: expected less than the sliding window of {group.window_tokens} "
                f"tokens, found {geometry.block_tokens}"
            )


def has_only_flags(layer: Any) -> bool:
    """Whether an object in a framework's cache keeps nothing: each attribute is None or a bool.

    Such are the places of layers of experts, and of layers that use another layer's keys.
    """
    slots = [name for kind in type(layer).__mro__ for name in getattr(kind, "__slots__", ())]
    attributes = getattr(layer, "__dict__", None)
    if attributes is None or slots:
        return False
    return all(value is None or isinstance(value, bool) for value in attributes.values())
