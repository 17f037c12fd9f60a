"""The host memory of a cache: a budget, its slots, and the cache and the arena over them."""

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hybrid_pages._core import (
    POLICIES,
    Arena,
    BudgetError,
    Cache,
    Disk,
    Geometry,
    Mooncake,
    Remote,
)
from hybrid_pages.adapter.disk import DiskShare
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.adapter.memory import GIB, auto_host_gb, require_memory, the_machine
from hybrid_pages.adapter.remote import RemoteShare

OFFERED = ("reuse", "lru")
"""The policies for users. The others of ``POLICIES`` are accepted for comparison."""


@dataclass(frozen=True)
class Slots:
    """The slots that a budget pays for."""

    slot_bytes: int
    """The size of a slot in the planes of all ranks together."""
    count: int

    @classmethod
    def of(cls, host_gb: float, geometry: Geometry, *, nodes: int = 1) -> "Slots":
        """The slots of a budget in GiB, which is for all ranks together, on so many nodes.

        Raises:
            BudgetError: it cannot hold one entry of each class, or exceeds this machine's memory.
        """
        require_memory(host_gb, nodes=nodes, free=the_machine())
        slot_bytes = geometry.suggest_slot_bytes()
        slots = cls(slot_bytes, int(host_gb * GIB) // slot_bytes)
        needed = slots.least(geometry)
        if slots.count < needed:
            least = math.ceil(needed * slot_bytes / GIB * 1e4) / 1e4
            raise BudgetError(
                f"host_gb: expected at least {least:g} GiB ({needed * slot_bytes} bytes), which "
                f"hold one block of {geometry.block_tokens} tokens with its states, found "
                f"{host_gb:g} GiB: raise it (a useful cache takes some hundred times as much)"
            )
        return slots

    @property
    def nbytes(self) -> int:
        """The size of all slots together."""
        return self.slot_bytes * self.count

    def least(self, geometry: Geometry) -> int:
        """How many slots one entry of each class takes together."""
        needs = (geometry.slots_per_entry(i.index, self.slot_bytes) for i in geometry.classes)
        return sum(needs)

    def cache(
        self,
        geometry: Geometry,
        *,
        policy: str,
        tenant_share: float = 1.0,
        disk: Disk | None = None,
        remote: Remote | Mooncake | None = None,
    ) -> Cache:
        """An empty cache over these slots, and over the tiers below, if there are any.

        Raises:
            BudgetError: a tenant's share of them cannot hold one entry of each class.
        """
        needed = self.least(geometry)
        if int(self.count * tenant_share) < needed:
            raise BudgetError(
                f"tenant_share: expected at least {needed / self.count:.4f} of these {self.count} "
                "slots, so that a tenant can have one entry of each kind, found "
                f"{tenant_share:g}: raise it, or host_gb"
            )
        return Cache(
            geometry,
            slot_bytes=self.slot_bytes,
            slots=self.count,
            policy=policy,
            tenant_share=tenant_share,
            disk=disk,
            remote=remote,
        )


class Pool:
    """A cache, its tiers, and the arena with its slots, which has the planes of all ranks.

    Args:
        geometry: of the entries.
        host_gb: the budget in GiB, or ``"auto"`` for a safe share of the free memory.
        policy: name of the policy that the cache asks.
        disk: the cache's share of a disk.
        remote: the cache's use of a store that machines share.
        identity: of the entries in these tiers.
        about: a description of the identity, for people to read.
        private: whether the arena is memory of this process alone.

    Raises:
        BudgetError: the budget, or the disk's, cannot hold one entry of each class, or exceeds the
            memory that is free here.
        DiskError, ForeignError: the disk's directory cannot be used, another process uses it, or
            something else is in it.
        RemoteError: the store's client cannot be made, or its directory.
        SettingsError: an unknown policy.
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        host_gb: float | str,
        policy: str,
        disk: DiskShare | None = None,
        remote: RemoteShare | None = None,
        identity: bytes = b"",
        about: Mapping[str, object] = MappingProxyType({}),
        private: bool = False,
    ) -> None:
        require_policy(policy)
        budget = budget_of(host_gb)
        require_memory(budget)
        slots = Slots.of(budget, geometry)
        self.geometry = geometry
        self.disk: Disk | None = None
        if disk is not None:
            self.disk = disk.open(geometry, slot_bytes=slots.slot_bytes, policy=policy)
        self.remote: Remote | Mooncake | None = None
        if remote is not None:
            self.remote = remote.open(geometry, slot_bytes=slots.slot_bytes, policy=policy)
        self.cache = slots.cache(geometry, policy=policy, disk=self.disk, remote=self.remote)
        self.arena = Arena.create(
            geometry, slot_bytes=slots.slot_bytes, slots=slots.count, private=private
        )
        for tier in (self.disk, self.remote):
            if tier is not None:
                tier.connect(self.arena, identity)
                if not isinstance(tier, Mooncake):  # which keeps no descriptions
                    tier.describe(json.dumps(dict(about)))


def budget_of(host_gb: float | str, engine_cores: int = 1) -> float:
    """A budget in GiB: the number, or a share of the free memory for ``"auto"``.

    engine_cores: how many of them share the memory.

    Raises:
        SettingsError: anything else.
    """
    if host_gb == "auto":
        return auto_host_gb(engine_cores)
    if isinstance(host_gb, bool) or not isinstance(host_gb, (int, float)):
        raise SettingsError(
            f"host_gb: expected a number of GiB or 'auto', found {host_gb!r} of type "
            f"{type(host_gb).__name__}"
        )
    return host_gb


def require_policy(name: object) -> str:
    """Rejects what is not the name of a policy; returns the name.

    Raises:
        SettingsError: names the policies, and the most similar one.
    """
    if isinstance(name, str) and name in POLICIES:
        return name
    offered = ", ".join(map(repr, OFFERED))
    others = ", ".join(repr(other) for other in POLICIES if other not in OFFERED)
    near = difflib.get_close_matches(str(name), POLICIES, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise SettingsError(
        f"policy: expected one of {offered} (for comparison: {others}), found {name!r}{hint}"
    )
