"""Entries on their way from an engine to the cache and back: published whole, restored whole."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hybrid_pages._core import Cache, Geometry, LeaseEntry, ReadLease, TransferError

Checksums = list[list[int]]
"""Of each entry, in the lease's order, the checksum of each rank's shard."""


_POLL_SECONDS = 0.0005


@dataclass
class Moved:
    """Bytes copied so far, copies that failed, and lookups that waited too long for a tier."""

    stored_bytes: int = 0
    restored_bytes: int = 0
    failed_loads: int = 0
    late_loads: int = 0
    failed_stores: int = 0


class Entries:
    """Stores and loads entries of one geometry through a cache. Counts in ``moved``.

    wait_seconds: how long a lookup waits for tiers below the host; then the host's hit counts.
    """

    def __init__(self, geometry: Geometry, cache: Cache, *, wait_seconds: float = 0.0) -> None:
        self.geometry, self.cache, self.moved = geometry, cache, Moved()
        self._wait_seconds = wait_seconds

    def store(
        self,
        namespace: int,
        keys: Sequence[bytes],
        copy: Callable[[Sequence[LeaseEntry]], Checksums],
        *,
        first: int = 0,
        first_held: Callable[[int], int] | None,
        states: bool,
    ) -> None:
        """Stores the pages of the blocks [first, end) and the states after the last of them.

        Entries that are there already, or find no room, are left out.

        Args:
            namespace: of the request.
            keys: of the blocks [0, end).
            copy: copies entries into their slots.
            first: the first block that was not offered before.
            first_held: the first token whose bytes the layers of a class still hold, by the
                class's index: an earlier page is left out. None: no pages are stored.
            states: whether the states after the last block are stored.

        Raises:
            TransferError: a copy failed; nothing was published.
        """
        end, size = len(keys), self.geometry.block_tokens
        wanted: list[tuple[int, int]] = []
        for item in self.geometry.classes:
            if item.kind == "recurrent":
                wanted += [(item.index, end - 1)] if states else []
            elif first_held is not None:
                start = max(first, -(-first_held(item.index) // size))
                wanted += [(item.index, block) for block in range(start, end)]
        with self.cache.reserve(namespace, keys, wanted) as lease:
            entries = lease.entries
            if not entries:
                return
            lease.commit(copy(entries))
        self.moved.stored_bytes += self._bytes(entries)

    def reach(self, namespace: int, keys: Sequence[bytes], *, limit: int) -> int:
        """The joint hit of the host, at most ``limit`` blocks, when what tiers below add to it has
        been read."""
        until = time.monotonic() + self._wait_seconds
        while True:
            hit = self.cache.lookup(namespace, keys, limit=limit)
            if hit.blocks <= hit.host or not self.cache.promote(namespace, keys, limit=limit):
                return self.cache.lookup(namespace, keys, limit=limit).host
            if time.monotonic() >= until:
                self.moved.late_loads += 1
                return hit.host
            time.sleep(_POLL_SECONDS)

    def load(
        self,
        namespace: int,
        keys: Sequence[bytes],
        copy: Callable[[ReadLease], None],
        *,
        limit: int,
    ) -> int:
        """Restores the hit that :meth:`reach` finds; how many blocks that were.

        copy: copies what a lease covers out of its slots. If it raises TransferError, the entries
        are dropped, and nothing is restored.
        """
        self.reach(namespace, keys, limit=limit)
        lease = self.cache.acquire(namespace, keys, limit=limit)
        if lease is None:
            return 0
        with lease:
            try:
                copy(lease)
            except TransferError:
                self.moved.failed_loads += 1
                self.cache.invalidate(lease)
                return 0
            self.moved.restored_bytes += self._bytes(lease.entries)
            return lease.blocks

    def _bytes(self, entries: Sequence[LeaseEntry]) -> int:
        classes = self.geometry.classes
        return sum(classes[entry.class_index].entry_bytes for entry in entries)
