"""Slots in shared memory."""

from collections.abc import Sequence
from typing import final

from hybrid_pages._stubs.geometry import Geometry

@final
class Arena:
    """The memory that holds the slots: shared memory with one plane per rank.

    A slot of `slot_bytes` has `slot_bytes // ranks` bytes in each rank's plane. The memory is freed
    when all processes that map it have ended.

    ranks: the ranks whose planes this process has. paths: their paths, in the same order. Other
    processes of the same user can open a path while its creator runs. Private planes have none.
    """

    @staticmethod
    def create(
        geometry: Geometry,
        *,
        slot_bytes: int,
        slots: int,
        rank: int | None = None,
        huge_pages: str | None = None,
        numa_node: int | None = None,
        private: bool = False,
    ) -> Arena:
        """Make an arena whose slots are all zero.

        rank: make the plane of this rank only; None for all ranks.
        huge_pages: "2M" for pages of 2 MiB, which the system must have reserved. All of them are
        taken at once.
        numa_node: take memory from this node as long as it has some.
        private: make memory that no other process can open. On macOS all memory is private.

        Raises ArenaError if the system refuses, BudgetError for more than the machine's memory or
        its huge pages, InvalidArgumentError for slots that the ranks cannot share equally.
        """

    @staticmethod
    def open(paths: str | Sequence[str], geometry: Geometry) -> Arena:
        """Open planes that other processes created.

        Raises ForeignError if a plane was made for another geometry, ArenaError if a path leads to
        no plane, or if the planes do not belong together.
        """

    @property
    def path(self) -> str:
        """The path of the only plane; ArenaError if there are several, or if it is private."""

    @property
    def paths(self) -> list[str]: ...
    @property
    def warnings(self) -> list[str]:
        """Messages about wishes that could not be met, such as memory of a NUMA node."""

    @property
    def ranks(self) -> list[int]: ...
    @property
    def slots(self) -> int: ...
    @property
    def slot_bytes(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def read(self, slot: int) -> bytes:
        """The bytes of a slot, rank after rank. For tools and tests, while nothing writes there."""

    def write(self, slot: int, data: bytes) -> None:
        """Write the first bytes of a slot.

        For tools and tests, while nothing else uses the slot.
        """
