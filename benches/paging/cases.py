"""The cases that are measured: piece sizes and counts, directions, and work running beside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
LAYERS = 16
DIRECTIONS = ("store", "load", "both")

SIZES = (16 * KIB, 24 * KIB, 64 * KIB, 256 * KIB, MIB, 3 * MIB)
COUNTS = (16, 256, 1024, 4096)
MOST_BYTES = GIB


@dataclass(frozen=True)
class Case:
    """`count` pieces of `size` bytes each way; `busy` beside a running matmul."""

    size: int
    count: int
    direction: str
    busy: bool

    @property
    def nbytes(self) -> int:
        """Payload of one round."""
        return self.size * self.count

    def __str__(self) -> str:
        beside = "busy" if self.busy else "idle"
        return f"{self.count:4} x {kib(self.size):>8} {self.direction:5} {beside}"


def cases(
    sizes: tuple[int, ...] = SIZES,
    counts: tuple[int, ...] = COUNTS,
    most_bytes: int = MOST_BYTES,
) -> Iterator[Case]:
    """By size; those that the goals name and the largest counts come first."""
    for size in sizes:
        fitting = [count for count in counts if count * size <= most_bytes]
        for count in reversed(fitting):
            for direction in DIRECTIONS:
                yield Case(size, count, direction, busy=False)
                if count in fitting[-2:]:
                    yield Case(size, count, direction, busy=True)


def kib(nbytes: int) -> str:
    """A size in KiB or MiB."""
    return f"{nbytes // MIB} MiB" if nbytes % MIB == 0 else f"{nbytes // KIB} KiB"
