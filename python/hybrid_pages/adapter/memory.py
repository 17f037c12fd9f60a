"""How much memory this process may take, by the machine and by its control groups.

Sources: ``proc(5)`` for ``/proc/meminfo`` and ``/proc/self/cgroup``, the kernel's
``admin-guide/cgroup-v2.rst``, ``cgroup-v1/memory.rst`` and ``mm/hugetlbpage.rst``.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hybrid_pages._core import BudgetError

GIB, HUGE_PAGE = 1 << 30, 2 << 20
AUTO_SHARE = 0.5
"""The part of the free memory that ``"auto"`` takes. The engine and others need the rest."""

_MEMINFO, _CGROUP, _MOUNT = "/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup"
_HUGE = "/sys/kernel/mm/hugepages/hugepages-2048kB"
_COUNTS = ("nr_hugepages", "free_hugepages", "resv_hugepages")


@dataclass(frozen=True)
class Free:
    """How many bytes can still be taken, and what limits them."""

    nbytes: int
    limit: str
    group: str = ""
    """The control group that limits them, by its path; empty for the machine."""

    def __str__(self) -> str:
        return f"{self.limit}, {self.nbytes / GIB:.1f} GiB"


def memory_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def the_machine() -> Free:
    """All memory of this machine, whoever uses it now."""
    return Free(memory_bytes(), "this machine's memory")


def free_memory() -> Free:
    """How much can be taken now without a process being ended: the least of :func:`limits`."""
    return min(limits(), key=lambda free: free.nbytes)


def limits() -> list[Free]:
    """How much the machine and each control group of this process leave, page cache included."""
    found = [the_machine()]
    available = _fields(Path(_MEMINFO)).get("MemAvailable:")
    if available is not None:
        found.append(Free(available * 1024, "the machine's free memory (MemAvailable)"))
    return found + list(_left_by_groups())


def groups_of(process: str) -> set[str]:
    """The paths of the control groups that limit another process's memory; none if it has ended."""
    paths = (path for path, _ in _paths("memory", f"/proc/{process}/cgroup"))
    return {str(at) for path in paths for at in (path, *path.parents)}


def require_memory(
    host_gb: float, engine_cores: int = 1, *, nodes: int = 1, free: Free | None = None
) -> None:
    """Rejects a budget that is not above 0, or budgets that exceed the free memory together.

    Args:
        host_gb: the budget of each engine core for all its ranks, in GiB.
        engine_cores: how many of them this machine has.
        nodes: over how many nodes the ranks of each are spread evenly, of which this is one.
        free: what can be taken; by default :func:`free_memory`.

    Raises:
        BudgetError: names ``host_gb``, and what limits it.
    """
    if not host_gb > 0:
        raise BudgetError(
            f"host_gb: expected more than 0, found {host_gb}: say how many GiB the cache may take"
        )
    free, total = free or free_memory(), host_gb * engine_cores / nodes
    if total * GIB <= free.nbytes:
        return
    found, remedy = f"{host_gb:g} GiB", "lower it"
    if engine_cores > 1 or nodes > 1:
        most = free.nbytes / GIB / engine_cores * nodes
        remedy = f"lower it to less than {most:.1f} GiB"
        if nodes > 1:
            found += f" on {nodes} nodes"
        if engine_cores > 1:
            found, remedy = f"{engine_cores} engine cores x {found}", f"{remedy} each"
        found += f" = {total:g} GiB"
        found += " here" if nodes > 1 else ""
    raise BudgetError(f"host_gb: expected at most {free}, found {found}: {remedy}")


def require_huge_pages(
    host_gb: float, ranks: int, engine_cores: int = 1, *, nodes: int = 1
) -> None:
    """Rejects budgets that exceed the free huge pages of 2 MiB together.

    Args:
        host_gb: the budget of each engine core for all its ranks, in GiB.
        ranks: of each engine core. Every rank's plane has one page more than its slots.
        engine_cores: how many of them this machine has.
        nodes: over how many nodes the ranks of each are spread evenly, of which this is one.

    Raises:
        BudgetError: names ``host_gb``, what limits it, and how to provide more.
    """
    each = int(host_gb * GIB / ranks) // HUGE_PAGE + 1
    needed = each * (ranks // nodes) * engine_cores
    pages = {name: _number(Path(_HUGE) / name) or 0 for name in _COUNTS}
    free = max(0, pages["free_hugepages"] - pages["resv_hugepages"])
    if needed > free:
        raise BudgetError(
            f"host_gb: expected {needed} free huge pages of 2 MiB for "
            f"{host_gb * engine_cores / nodes:g} GiB, found {free}: reserve them with `sysctl -w "
            f"vm.nr_hugepages={pages['nr_hugepages'] + needed - free}` on the machine (soon after "
            "boot, while memory is in one piece), lower host_gb, or leave huge_pages out"
        )
    for group in _huge_pages_left_by_groups():
        if needed * HUGE_PAGE > group.nbytes:
            raise BudgetError(
                f"host_gb: expected at most {group} for huge pages of 2 MiB, found "
                f"{needed * HUGE_PAGE / GIB:.1f} GiB: raise that limit (in Kubernetes "
                "hugepages-2Mi), lower host_gb, or leave huge_pages out"
            )


def auto_host_gb(engine_cores: int = 1) -> float:
    """The budget that ``"auto"`` stands for: a share of the free memory for each engine core, in
    GiB, rounded down to hundredths.

    Raises:
        BudgetError: there is next to nothing to share.
    """
    free = free_memory()
    share = math.floor(free.nbytes * AUTO_SHARE / max(1, engine_cores) / GIB * 100) / 100
    if not share:
        raise BudgetError(
            f"host_gb: expected free memory for 'auto' to take a share of, found {free}: free "
            "some, or name a size"
        )
    return share


def _left_by_groups() -> Iterator[Free]:
    """How much memory each control group of this process leaves.

    ``memory.high`` counts, too: above it the kernel ends no process, but slows all of them down.
    """
    for group, at, first in _groups("memory"):
        names = ("memory.limit_in_bytes",) if first else ("memory.max", "memory.high")
        limits = [limit for name in names if (limit := _number(at / name)) is not None]
        used = _number(at / ("memory.usage_in_bytes" if first else "memory.current"))
        if not limits or used is None or min(limits) >= memory_bytes():
            continue
        stat, prefix = _fields(at / "memory.stat"), "total_" if first else ""
        cached = stat.get(f"{prefix}active_file", 0) + stat.get(f"{prefix}inactive_file", 0)
        yield _left(group, at, "memory", min(limits), max(0, used - cached))


def _huge_pages_left_by_groups() -> Iterator[Free]:
    """How much each control group leaves for huge pages of 2 MiB, used and reserved ones."""
    for group, at, first in _groups("hugetlb"):
        limit, usage = ("limit_in_bytes", "usage_in_bytes") if first else ("max", "current")
        for kind in ("hugetlb.2MB", "hugetlb.2MB.rsvd"):
            most, used = _number(at / f"{kind}.{limit}"), _number(at / f"{kind}.{usage}")
            if most is not None and used is not None:
                yield _left(group, at, kind, most, used)


def _left(group: PurePosixPath, at: Path, what: str, most: int, used: int) -> Free:
    return Free(
        max(0, most - used),
        f"what the {what} limit of the control group {at} ({most / GIB:.1f} GiB) leaves",
        str(group),
    )


def _groups(controller: str) -> Iterator[tuple[PurePosixPath, Path, bool]]:
    """The control groups of this process, from the innermost to the outermost.

    In a container the path may not exist below the mount: then the mount is the container's group.

    Yields:
        The group's path, the folder with its files, and whether it is of cgroup version 1.
    """
    for path, first in _paths(controller, _CGROUP):
        mount = Path(_MOUNT) / controller if first else Path(_MOUNT)
        if ".." in path.parts or not (mount / path.relative_to("/")).is_dir():
            yield path, mount, first
            continue
        for group in (path, *path.parents):
            yield group, mount / group.relative_to("/"), first


def _paths(controller: str, file: str) -> Iterator[tuple[PurePosixPath, bool]]:
    """The paths of control groups in a file, and whether they are of cgroup version 1."""
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            yield PurePosixPath(path), bool(controllers)


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # "max"
        return None


def _fields(file: Path) -> dict[str, int]:
    """The lines of a file that have a name and a number, as a dict."""
    try:
        rows = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
