"""Host memory for a geometry: a budget, the slots that it buys, and the cache over them."""

import math
import os

from hybrid_pages._core import Arena, BudgetError, Cache, Geometry
from hybrid_pages.adapter.policies import require_policy

GIB = 1 << 30


class Pool:
    """A cache, and the arena that its slots lie in.

    Args:
        geometry: of the entries.
        host_gb: the budget in GiB.
        policy: name of the policy that the cache asks.
        tenant_share: the share of the budget that one tenant cannot exceed.

    Raises:
        BudgetError: the budget, or a tenant's share of it, cannot hold one entry of each class, or
            the budget exceeds this machine's memory.
        SettingsError: an unknown policy.
    """

    def __init__(
        self, geometry: Geometry, *, host_gb: float, policy: str, tenant_share: float = 1.0
    ) -> None:
        require_policy(policy)
        slot_bytes = geometry.suggest_slot_bytes()
        slots = slots_of(host_gb, geometry, slot_bytes)
        require_share(tenant_share, geometry, slot_bytes, slots)
        self.geometry = geometry
        self.cache = Cache(
            geometry,
            slot_bytes=slot_bytes,
            slots=slots,
            policy=policy,
            tenant_share=tenant_share,
        )
        self.arena = Arena.create(geometry, slot_bytes=slot_bytes, slots=slots)


def memory_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def require_memory(host_gb: float, engine_cores: int = 1) -> None:
    """Rejects a budget that is not above 0, or budgets that exceed this machine's memory together.

    Args:
        host_gb: the budget of each engine core, in GiB.
        engine_cores: how many of them this machine has.

    Raises:
        BudgetError: names ``host_gb``.
    """
    if not host_gb > 0:
        raise BudgetError(f"host_gb: expected more than 0, found {host_gb}")
    memory, total = memory_bytes() / GIB, host_gb * engine_cores
    if total > memory:
        found, remedy = f"{host_gb:g} GiB", "lower it"
        if engine_cores > 1:
            found = f"{engine_cores} engine cores x {found} = {total:g} GiB"
            remedy = f"lower it to less than {memory / engine_cores:.1f} GiB each"
        raise BudgetError(
            f"host_gb: expected at most this machine's memory, {memory:.1f} GiB, found {found}: "
            f"{remedy}"
        )


def slots_of(host_gb: float, geometry: Geometry, slot_bytes: int) -> int:
    """How many slots of ``slot_bytes`` the budget buys.

    Raises:
        BudgetError: it cannot hold one entry of each class, or exceeds this machine's memory.
    """
    require_memory(host_gb)
    slots = int(host_gb * GIB) // slot_bytes
    needed = _least_slots(geometry, slot_bytes)
    if slots < needed:
        least = math.ceil(needed * slot_bytes / GIB * 1e4) / 1e4
        raise BudgetError(
            f"host_gb: expected at least {least:g} GiB ({needed * slot_bytes} bytes), which hold "
            f"one block of {geometry.block_tokens} tokens with its states, found {host_gb:g} GiB: "
            "raise it (a useful cache takes some hundred times as much)"
        )
    return slots


def require_share(share: float, geometry: Geometry, slot_bytes: int, slots: int) -> None:
    """Rejects a tenant's share of so many slots that cannot hold one entry of each class.

    Raises:
        BudgetError: names ``tenant_share``.
    """
    needed = _least_slots(geometry, slot_bytes)
    if int(slots * share) < needed:
        raise BudgetError(
            f"tenant_share: expected at least {needed / slots:.4f} of these {slots} slots, so that "
            f"a tenant can have one entry of each kind, found {share:g}: raise it, or host_gb"
        )


def _least_slots(geometry: Geometry, slot_bytes: int) -> int:
    """Slots of one entry of each class."""
    return sum(geometry.slots_per_entry(item.index, slot_bytes) for item in geometry.classes)
