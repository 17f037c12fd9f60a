"""In the place of a store where a newer mlx-lm has caches that nobody here understands yet."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

from hybrid_pages.adapter.entries import Moved
from hybrid_pages.adapter.store import Closing
from hybrid_pages.mlx.model_watch import ModelState


class NoStore(Closing):
    """A store, its watch and its index of a model that always runs without the cache.

    reason: why, as :attr:`Stats.uncached` names it.
    """

    def __init__(self, reason: str) -> None:
        self.watch, self.index = self, self
        self.moved, self.changes = Moved(), Counter[str]()
        self.arena = SimpleNamespace(nbytes=0)
        self._state = ModelState("", reason)

    def look(self) -> ModelState:
        """What a watch says of a model that cannot use the cache."""
        return self._state

    def stats(self) -> Counter[str]:
        """What an index has: nothing."""
        return Counter()

    def weights_changed(self) -> None:
        """Nothing was stored."""

    def drop(self) -> None:
        """It holds no model."""

    def clear(self) -> None:
        """It holds no entries."""

    def close(self) -> None:
        """It holds no threads."""
