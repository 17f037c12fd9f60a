"""The layout of pages and checkpoints: segments, layers, groups and classes."""

from collections.abc import Mapping, Sequence
from typing import final

@final
class Segment:
    """A dense, typed piece of one layer's page or checkpoint on one rank.

    bytes: the size. dtype: bool, uint8, int8, float8_e4m3fn, float8_e5m2, bfloat16, float16,
    float32, float64, int16, int32 or int64.
    """

    def __new__(cls, name: str, dtype: str, shape: Sequence[int]) -> Segment: ...
    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def bytes(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class Layer:
    """One layer of the engine: the segments that it has in an engine block on one rank.

    The segments lie densely in order. bytes: their size in one block.
    """

    def __new__(cls, name: str, segments: Sequence[Segment]) -> Layer: ...
    @property
    def name(self) -> str: ...
    @property
    def segments(self) -> tuple[Segment, ...]: ...
    @property
    def bytes(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class Group:
    """Layers that share a block table.

    kind: attention, window or recurrent.
    window_tokens: how many tokens a layer of a window group sees, the present one included.
    blocks_per_entry: how many engine blocks a page has (if an engine block holds fewer tokens than
    a page) or a checkpoint has, 1 to 1024.
    bytes: the size of an entry on one rank.

    Raises GeometryError for an unknown kind, for a window in another kind of group or none in a
    window group, and for a number out of range.
    """

    def __new__(
        cls,
        kind: str,
        layers: Sequence[Layer],
        *,
        window_tokens: int | None = None,
        blocks_per_entry: int = 1,
    ) -> Group: ...
    @property
    def kind(self) -> str: ...
    @property
    def layers(self) -> tuple[Layer, ...]: ...
    @property
    def window_tokens(self) -> int | None: ...
    @property
    def blocks_per_entry(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...

@final
class PageClass:
    """Groups whose bytes at one block make up an entry, which is whole or absent for all ranks.

    groups: indices in the geometry. window_blocks: how many blocks a window reaches over; None for
    other kinds. rank_bytes: the size of an entry on one rank. entry_bytes: on all ranks.
    """

    @property
    def index(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def groups(self) -> tuple[int, ...]: ...
    @property
    def window_blocks(self) -> int | None: ...
    @property
    def rank_bytes(self) -> int: ...
    @property
    def entry_bytes(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Geometry:
    """The layout of the pages and checkpoints of one engine, and everything their bytes depend on.

    Two geometries are equal if their fingerprints are.

    block_tokens: the tokens of a page. An engine block may hold fewer, see :class:`Group`.
    classes: attention first, then windows from the narrowest, then recurrent.
    identity: other things that the bytes depend on, such as model, revision, layout and backend.
    fingerprint: a digest of all of that.
    """

    def __new__(
        cls,
        *,
        block_tokens: int,
        groups: Sequence[Group],
        ranks: int = 1,
        identity: Mapping[str, str],
    ) -> Geometry: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def groups(self) -> tuple[Group, ...]: ...
    @property
    def classes(self) -> tuple[PageClass, ...]: ...
    @property
    def identity(self) -> dict[str, str]: ...
    @property
    def fingerprint(self) -> bytes: ...
    def to_json(self) -> str: ...
    @staticmethod
    def from_json(text: str) -> Geometry: ...
    def suggest_slot_bytes(self) -> int:
        """A good size of a slot, for all ranks together.

        In each rank's plane it is the largest power of two from 512 B to 2 MiB that wastes at most
        1/64 of the memory by rounding.
        """

    def slots_per_entry(self, class_index: int, slot_bytes: int) -> int: ...
    def difference(self, other: Geometry) -> str | None:
        """The first difference in one line, with this geometry as the expected one.

        None if the geometries are equal.
        """

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self, /) -> int: ...
