"""The memory that planes of arenas on this machine will take, but have not taken yet.

A plane is an anonymous file that has its size from the start and takes memory only as it is used or
pinned. Where two planes are made at once, each sees memory as free that the other will take.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace

from hybrid_pages._core import Arena
from hybrid_pages.adapter.memory import GIB, Free, groups_of, limits, require_memory

_NAME = "/memfd:hybrid-pages"


def require_plane(arena: Arena, host_gb: float) -> None:
    """Rejects a plane that does not fit beside those of other processes.

    Processes that make planes at once create them first and call this then: of any two, at least
    one sees the other's plane.

    Args:
        arena: with this process's plane, whose memory is not reserved yet.
        host_gb: the plane's part of the budget, in GiB.

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
    """How many bytes the planes of other processes will still take.

    Processes that this one may not look into are left out.

    Args:
        path: of this process's plane, which does not count.
        group: path of a control group; only processes in it count. Empty for all.
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
    """The other processes. Planes of this one do not count: no two ranks share a process."""
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
