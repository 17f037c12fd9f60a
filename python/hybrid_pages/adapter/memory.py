"""The memory that this process may take: what is free, and what its control groups leave it.

Sources: ``proc(5)`` for ``/proc/meminfo`` and ``/proc/self/cgroup``, the kernel's
``admin-guide/cgroup-v2.rst`` and ``cgroup-v1/memory.rst``.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hybrid_pages._core import BudgetError

GIB = 1 << 30
AUTO_SHARE = 0.5
"""The part of the free memory that ``"auto"`` takes; the rest is the engine's and others'."""

_MEMINFO, _CGROUP, _MOUNT = "/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup"


@dataclass(frozen=True)
class Free:
    """Bytes that can still be taken, and what limits them."""

    nbytes: int
    limit: str

    def __str__(self) -> str:
        return f"{self.limit}, {self.nbytes / GIB:.1f} GiB"


def memory_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def the_machine() -> Free:
    """All memory of this machine, whoever uses it now."""
    return Free(memory_bytes(), "this machine's memory")


def free_memory() -> Free:
    """What can be taken now without the system ending a process: the least of what the machine has
    free and of what each control group above this process leaves it. Page cache counts as free."""
    found = [the_machine()]
    available = _fields(Path(_MEMINFO)).get("MemAvailable:")
    if available is not None:
        found.append(Free(available * 1024, "the machine's free memory (MemAvailable)"))
    found += _left_by_groups()
    return min(found, key=lambda free: free.nbytes)


def require_memory(host_gb: float, engine_cores: int = 1, *, free: Free | None = None) -> None:
    """Rejects a budget that is not above 0, or budgets that exceed the free memory together.

    Args:
        host_gb: the budget of each engine core for all its ranks, in GiB.
        engine_cores: how many of them this machine has.
        free: what can be taken; by default :func:`free_memory`.

    Raises:
        BudgetError: names ``host_gb``, and what limits it.
    """
    if not host_gb > 0:
        raise BudgetError(f"host_gb: expected more than 0, found {host_gb}")
    free, total = free or free_memory(), host_gb * engine_cores
    if total * GIB <= free.nbytes:
        return
    found, remedy = f"{host_gb:g} GiB", "lower it"
    if engine_cores > 1:
        found = f"{engine_cores} engine cores x {found} = {total:g} GiB"
        remedy = f"lower it to less than {free.nbytes / GIB / engine_cores:.1f} GiB each"
    raise BudgetError(f"host_gb: expected at most {free}, found {found}: {remedy}")


def auto_host_gb(engine_cores: int = 1) -> float:
    """The budget that ``"auto"`` stands for: a share of the free memory for each engine core, in
    GiB, rounded down to hundredths."""
    share = free_memory().nbytes * AUTO_SHARE / max(1, engine_cores)
    return math.floor(share / GIB * 100) / 100


def _left_by_groups() -> Iterator[Free]:
    """What the limit of each control group of this process leaves."""
    try:
        lines = Path(_CGROUP).read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _left_along(Path(_MOUNT), path, "memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            mount = Path(_MOUNT) / "memory"
            yield from _left_along(
                mount, path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
            )


def _left_along(mount: Path, path: str, limit: str, usage: str, prefix: str) -> Iterator[Free]:
    """What the group at a path and those above it leave. In a container the path may name nothing
    below the mount: then the mount is the container's own group."""
    group = mount / path.lstrip("/")
    if ".." in group.parts or not group.is_dir():
        group = mount
    for at in (group, *group.parents):
        if mount not in (at, *at.parents):
            return
        most, used = _number(at / limit), _number(at / usage)
        if most is None or used is None or most >= memory_bytes():
            continue
        stat = _fields(at / "memory.stat")
        cached = stat.get(f"{prefix}active_file", 0) + stat.get(f"{prefix}inactive_file", 0)
        yield Free(
            max(0, most - max(0, used - cached)),
            f"what the memory limit of the control group {at} ({most / GIB:.1f} GiB) leaves",
        )


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # "max"
        return None


def _fields(file: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    try:
        rows = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
