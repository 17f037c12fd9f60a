"""How many bytes a load copies, by the kind of its entries."""

from collections.abc import Iterable
from dataclasses import dataclass

from hybrid_pages import Geometry
from hybrid_pages.vllm.messages import LoadEntry
from hybrid_pages.vllm.metrics import KINDS


@dataclass(frozen=True)
class _Size:
    kind: str
    entry: int
    """The bytes of a whole entry on one rank."""
    blocks: tuple[int, ...]
    """The bytes of each of its engine blocks."""


class LoadBytes:
    """The sizes of a geometry's entries, and of their parts."""

    def __init__(self, geometry: Geometry) -> None:
        self._sizes = []
        for item in geometry.classes:
            groups = [geometry.groups[index] for index in item.groups]
            blocks = [
                group.bytes // group.blocks_per_entry
                for group in groups
                for _ in range(group.blocks_per_entry)
            ]
            self._sizes.append(_Size(KINDS[item.kind], item.rank_bytes, tuple(blocks)))

    def of(self, entries: Iterable[LoadEntry]) -> dict[str, int]:
        """The bytes that a load of these entries copies on each rank, by kind."""
        nbytes: dict[str, int] = {}
        for index, _, targets, _ in entries:
            size, copied = self._sizes[index], self._sizes[index].entry
            if None in targets:
                parts = zip(size.blocks, targets, strict=True)
                copied = sum(part for part, block in parts if block is not None)
            nbytes[size.kind] = nbytes.get(size.kind, 0) + copied
        return nbytes
