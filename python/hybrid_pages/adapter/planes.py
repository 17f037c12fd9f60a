"""Memory that the planes of arenas on this machine are still to take.

A plane is an anonymous file that has its size from the start and takes memory as it is used or
pinned. Of two that are made at once, each finds free what the other is about to take.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

from hybrid_pages._core import Arena
from hybrid_pages.adapter.memory import GIB, Free, groups_of, limits, require_memory

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
    left = [_less(free, still_to_take(arena.path, free.group)) for free in limits()]
    require_memory(host_gb, free=min(left, key=lambda free: free.nbytes))


def _less(free: Free, others: int) -> Free:
    if not others:
        return free
    less = f"{free}, less {others / GIB:.1f} GiB that other planes are still to take"
    return replace(free, nbytes=max(0, free.nbytes - others), limit=f"{less}: what is left")


def still_to_take(path: str, group: str = "") -> int:
    """Bytes that planes of other processes, as far as this one may look into them, are to take.

    path: of a plane that does not count.
    group: only of processes in this control group, by its path.
    """
    own = os.stat(path)
    left = {(own.st_dev, own.st_ino): 0}
    for file in _open_files(group):
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


def _open_files(group: str) -> Iterator[str]:
    for process in _processes():
        if group and group not in groups_of(process):
            continue
        folder = f"/proc/{process}/fd"
        try:
            yield from (f"{folder}/{name}" for name in os.listdir(folder))
        except OSError:  # another user's, or it has ended
            continue
