"""The budget ``host_gb``, in slots, and whether this machine and this model fit it."""

import math
import os

from hybrid_pages import BudgetError, Geometry
from hybrid_pages.vllm.settings import GIB


def require_memory(host_gb: float) -> None:
    """Refuses a budget beyond this machine's memory.

    Raises:
        BudgetError: names ``host_gb``.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if host_gb * GIB > memory:
        raise BudgetError(
            f"host_gb: expected at most this machine's memory, {memory / GIB:.1f} GiB, found "
            f"{host_gb:g} GiB: lower it in kv_connector_extra_config"
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
            f"host_gb: expected at least {least:g} GiB, which hold one block of "
            f"{geometry.block_tokens} tokens with its states, found {host_gb:g} GiB: raise it in "
            "kv_connector_extra_config (some hundred times as much makes a useful cache)"
        )
    return slots
