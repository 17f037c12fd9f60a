"""The entries of one model in host memory and the tiers below it."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TypeVar

from hybrid_pages._core import Geometry
from hybrid_pages.adapter.encryption import tell_of_keys
from hybrid_pages.adapter.entries import Entries, Moved
from hybrid_pages.adapter.identity import about, stable_identity
from hybrid_pages.adapter.keys import holding, identity, of_tenant
from hybrid_pages.adapter.pool import Pool
from hybrid_pages.adapter.tiers import TierSettings, close_tier

_Self = TypeVar("_Self", bound="Closing")


class Closing(ABC):
    """An object with threads or memory of its own, closed at the end of a ``with`` block."""

    @abstractmethod
    def close(self) -> None:
        """Ends its threads. The second call does nothing."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class EntryStore(Closing):
    """A cache with its arena and tiers, in one process, for the caches of one model.

    index: which entries there are. arena: holds them. entries: stores and loads them.

    Args:
        geometry: of the entries.
        tiers: checked settings.
        policy: which entries stay, and which boundaries get a checkpoint.
        facts: what entries that outlive the process depend on, besides the geometry.
        private: whether the arena is memory of this process alone.
        log: gets what an operator should read of the tiers.

    Raises:
        BudgetError, DiskError, ForeignError, RemoteError, SettingsError: as :class:`Pool`.
    """

    def __init__(
        self,
        geometry: Geometry,
        tiers: TierSettings,
        *,
        policy: str,
        facts: Mapping[str, str],
        private: bool = False,
        log: logging.Logger,
    ) -> None:
        pool = Pool(
            geometry,
            host_gb=tiers.host_gb,
            policy=policy,
            disk=tiers.disk(),
            remote=tiers.remote(),
            identity=stable_identity(geometry, facts),
            about=about(geometry, facts),
            private=private,
        )
        self.index, self.arena = pool.cache, pool.arena
        self._encrypts = bool(tiers.encrypt_key)
        self._disk, self._remote, self._tier_log = pool.disk, pool.remote, log
        self.entries = Entries(geometry, pool.cache, wait_seconds=tiers.wait_seconds)
        tell_of_keys(tiers.encrypt_key, log)
        for note in self._disk.notes() if self._disk is not None else ():
            log.warning("the disk: %s", note)

    @property
    def geometry(self) -> Geometry:
        """The make-up of the model's pages and checkpoints."""
        return self.entries.geometry

    @property
    def moved(self) -> Moved:
        """Counts of what was stored and loaded."""
        return self.entries.moved

    def using(self, salt: str, state: str = "") -> AbstractContextManager[int]:
        """The namespace of a salt and a state of the model, held in a ``with`` block."""
        name = identity(salt, state)
        if self._encrypts and salt:  # each salt has a key of its own
            name = of_tenant(salt.encode("utf-8", "surrogatepass"), name)
        return holding(self.index, name)

    def clear(self) -> None:
        """Forgets every page and checkpoint."""
        self.index.clear()

    def close(self) -> None:
        """Ends the use of the tiers. The second call does nothing."""
        for note in close_tier(self._disk):
            self._tier_log.warning("the disk: %s", note)
        for note in close_tier(self._remote):
            self._tier_log.warning("%s", note)
