"""Slots in shared memory."""

from typing import final

from hybrid_pages._stubs.geometry import Geometry

@final
class Arena:
    """Slots in shared memory. Nothing is left behind when the processes that map it are gone.

    path: where other processes of the same user open it, as long as its creator lives.
    """

    @staticmethod
    def create(geometry: Geometry, *, slot_bytes: int, slots: int) -> Arena: ...
    @staticmethod
    def open(path: str, geometry: Geometry) -> Arena: ...
    @property
    def path(self) -> str: ...
    @property
    def slots(self) -> int: ...
    @property
    def slot_bytes(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def read(self, slot: int) -> bytes:
        """One slot's bytes. For tools and tests, while nothing writes the slot."""

    def write(self, slot: int, data: bytes) -> None:
        """Write a slot's first bytes. For tools and tests, while nothing else uses it."""
