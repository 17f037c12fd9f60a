"""Memory that the planes of arenas on this machine are still to take.

A plane is an anonymous file that has its size from the start and takes memory as it is used or
pinned. Of two that are made at once, each finds free what the other is about to take.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

from hybrid_pages._core import Arena
from hybrid_pages.adapter.memory import GIB, free_memory, require_memory

_NAME = "/memfd:hybrid-pages"


def require_plane(arena: Arena, host_gb: float) -> None:
    """Rejects a plane that was just made and does not fit beside all that were made before.

    Whoever makes planes at once makes them first and asks then: each sees the others' or is seen.

    Args:
        arena: with this process's plane, of memory that is not reserved yet.
        host_gb: its part of the budget, in GiB.

    Raises:
        BudgetError: names ``host_gb``, and what limits it.
    """
    free, others = free_memory(), still_to_take(arena.path)
    if others:
        less = f"{free}, less {others / GIB:.1f} GiB that other planes are still to take"
        free = replace(free, nbytes=max(0, free.nbytes - others), limit=f"{less}: what is left")
    require_memory(host_gb, free=free)


def still_to_take(path: str) -> int:
    """Bytes that planes of other processes, as far as this one may look into them, are to take.

    path: of a plane that does not count.
    """
    own = os.stat(path)
    left = {(own.st_dev, own.st_ino): 0}
    for file in _open_files():
        try:
            if os.readlink(file).startswith(_NAME):
                found = os.stat(file)
                # Huge pages are reserved already.
                if found.st_blksize == own.st_blksize:
                    taken = found.st_blocks * 512
                    left.setdefault((found.st_dev, found.st_ino), max(0, found.st_size - taken))
        except OSError:  # it was closed meanwhile
            continue
    return sum(left.values())


def _processes() -> Iterable[str]:
    """All others: no two ranks share a process, and an earlier engine of this one is gone."""
    own = str(os.getpid())
    return (name for name in os.listdir("/proc") if name.isdigit() and name != own)


def _open_files() -> Iterator[str]:
    for process in _processes():
        folder = f"/proc/{process}/fd"
        try:
            yield from (f"{folder}/{name}" for name in os.listdir(folder))
        except OSError:  # another user's, or it has ended
            continue
