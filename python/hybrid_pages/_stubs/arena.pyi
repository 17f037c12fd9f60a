"""Slots in shared memory."""

from collections.abc import Sequence
from typing import final

from hybrid_pages._stubs.geometry import Geometry

@final
class Arena:
    """Slots in shared memory, cut into one plane per rank. Nothing is left behind when the
    processes that map it are gone.

    A slot of `slot_bytes` has `slot_bytes // ranks` bytes in each rank's plane. A process may have
    all planes or some: `ranks` says which.

    paths: of these planes, in that order; where other processes of the same user open them, as long
    as the creator of each lives. Private planes have none.
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
        """New slots, all zero.

        rank: make the plane of this rank alone; None for all ranks.
        huge_pages: "2M" for pages of 2 MiB, which the system must have reserved; all are taken at
        once.
        numa_node: take memory from this node, while it has some.
        private: memory of this process alone, which no other one can open. Always so on macOS.

        Raises ArenaError if the system refuses, BudgetError beyond the machine's memory or its huge
        pages, InvalidArgumentError on slots that the ranks can't share equally.
        """

    @staticmethod
    def open(paths: str | Sequence[str], geometry: Geometry) -> Arena:
        """Planes that other processes created.

        Raises ForeignError if one was made for another geometry, ArenaError if one is no plane or
        is gone, or if they do not belong together.
        """

    @property
    def path(self) -> str:
        """Of the only plane; ArenaError if there are several, or if it is private."""

    @property
    def paths(self) -> list[str]: ...
    @property
    def warnings(self) -> list[str]:
        """What was wished of new planes and could not be had: the memory of a node."""

    @property
    def ranks(self) -> list[int]: ...
    @property
    def slots(self) -> int: ...
    @property
    def slot_bytes(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def read(self, slot: int) -> bytes:
        """One slot's bytes, rank after rank. For tools and tests, while nothing writes the slot."""

    def write(self, slot: int, data: bytes) -> None:
        """Write a slot's first bytes. For tools and tests, while nothing else uses it."""
