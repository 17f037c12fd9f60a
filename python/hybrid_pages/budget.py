"""The budget ``host_gb``: what it holds, and whether machine and model fit it."""

import math
import os

from hybrid_pages._core import BudgetError, Geometry

GIB = 1 << 30


def memory_bytes() -> int:
    """This machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def require_memory(host_gb: float) -> None:
    """Refuses a budget beyond this machine's memory.

    Raises:
        BudgetError: names ``host_gb``.
    """
    if host_gb * GIB > memory_bytes():
        raise BudgetError(
            f"host_gb: expected at most this machine's memory, {memory_bytes() / GIB:.1f} GiB, "
            f"found {host_gb:g} GiB: lower it"
        )


def slots_of(host_gb: float, geometry: Geometry, slot_bytes: int) -> int:
    """How many slots of ``slot_bytes`` the budget buys.

    Raises:
        BudgetError: it cannot hold one entry of each class, or exceeds this machine's memory.
    """
    require_memory(host_gb)
    slots = int(host_gb * GIB) // slot_bytes
    needed = sum(geometry.slots_per_entry(item.index, slot_bytes) for item in geometry.classes)
    if slots < needed:
        least = math.ceil(needed * slot_bytes / GIB * 1e4) / 1e4
        raise BudgetError(
            f"host_gb: expected at least {least:g} GiB ({needed * slot_bytes} bytes), which hold "
            f"one block of {geometry.block_tokens} tokens with its states, found {host_gb:g} GiB: "
            "raise it (a useful cache takes some hundred times as much)"
        )
    return slots
