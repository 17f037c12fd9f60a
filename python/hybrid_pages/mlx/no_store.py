"""Stands in for a store where a newer mlx-lm has kinds of caches that are not known here."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

from hybrid_pages.adapter.entries import Moved
from hybrid_pages.adapter.store import Closing
from hybrid_pages.mlx.model_watch import ModelState


class NoStore(Closing):
    """A store, its watch and its index in one, for a model that always runs without the cache.

    reason: why it does, for :attr:`Stats.uncached`.
    """

    def __init__(self, reason: str) -> None:
        self.watch, self.index = self, self
        self.moved, self.changes = Moved(), Counter[str]()
        self.arena = SimpleNamespace(nbytes=0)
        self._state = ModelState("", reason)

    def look(self) -> ModelState:
        """The state of a model that cannot use the cache."""
        return self._state

    def stats(self) -> Counter[str]:
        """The counts of an empty index."""
        return Counter()

    def weights_changed(self) -> None:
        """Does nothing: nothing was stored."""

    def drop(self) -> None:
        """Does nothing: there is no reference to a model."""

    def clear(self) -> None:
        """Does nothing: there are no entries."""

    def close(self) -> None:
        """Does nothing: there are no threads."""
