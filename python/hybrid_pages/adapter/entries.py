"""Stores entries from an engine in the cache and restores them: whole, or not at all."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from hybrid_pages._core import Cache, Geometry, LeaseEntry, ReadLease, Restore, TransferError

_log = logging.getLogger(__name__)

Checksums = list[list[int]]
"""The checksum of each rank's shard of each entry, in the order of the lease's entries."""

_POLL_SECONDS = 0.0005
_RETRIES = 4
"""How often one lookup tries to restore. Each try but the first follows one that found damage."""


@dataclass
class Moved:
    """Counts of bytes copied, of copies that failed, and of entries that were not stored.

    late_loads: lookups that waited too long for a tier. skipped_entries: entries that were not
    stored, by reason.
    """

    stored_bytes: int = 0
    restored_bytes: int = 0
    failed_loads: int = 0
    late_loads: int = 0
    failed_stores: int = 0
    skipped_entries: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Reach:
    """The longest prefix that a request can resume from.

    blocks: its length. leases: hold its entries, in one lease or in several one after another.
    """

    blocks: int
    leases: Iterator[ReadLease]


class Entries:
    """Stores and loads entries of one geometry through a cache. Counts in ``moved``.

    wait_seconds: how long a lookup waits for tiers below the host. After that, what the host has
    is used.
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

        Entries that exist already are left out. Those that find no room are left out, too, and
        counted by reason in ``moved.skipped_entries``.

        Args:
            namespace: of the request.
            keys: of the blocks [0, end).
            copy: copies entries into their slots.
            first: the first block whose pages were not given to the cache before.
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
            self._note_skipped(lease.skipped, len(wanted))
            entries = lease.entries
            if not entries:
                return
            lease.commit(copy(entries))
        self.moved.stored_bytes += self._bytes(entries)

    @contextmanager
    def reach(self, namespace: int, keys: Sequence[bytes], *, limit: int) -> Iterator[Reach]:
        """The longest prefix that all tiers together have, held for :meth:`load`.

        Waits until the first entries that the host lacks have arrived. Where that takes too long,
        or they cannot be read, the longest prefix that the host has is used.

        limit: the most blocks.
        """
        restore = self._bring(namespace, keys, limit)
        if restore is not None:
            with restore:
                yield Reach(restore.blocks, self._take(restore))
            return
        lease = self.cache.acquire(namespace, keys, limit=limit)
        if lease is None:
            yield Reach(0, iter(()))
            return
        with lease:
            yield Reach(lease.blocks, iter((lease,)))

    def load(self, reach: Reach, copy: Callable[[Iterator[ReadLease], int], None]) -> int:
        """Restores the prefix of a reach, once; how many blocks were restored.

        copy: gets the leases and the number of their blocks together, and copies the entries of
        each lease out of their slots before it asks for the next lease. If it raises TransferError,
        nothing is restored, and the entries of the lease that it was copying are dropped.
        """
        if not reach.blocks:
            return 0
        copying: ReadLease | None = None
        nbytes = 0

        def waves() -> Iterator[ReadLease]:
            nonlocal copying, nbytes
            for lease in reach.leases:
                copying = lease
                yield lease
                nbytes += self._bytes(lease.entries)
                copying = None

        try:
            copy(waves(), reach.blocks)
        except TransferError as error:
            _log.warning("could not restore a prompt, which is computed instead: %s", error)
            self.moved.failed_loads += 1
            if copying is not None:
                self.cache.invalidate(copying)
            return 0
        self.moved.restored_bytes += nbytes
        return reach.blocks

    def _bring(self, namespace: int, keys: Sequence[bytes], limit: int) -> Restore | None:
        """A restore whose first wave is ready; None if what the host has is to be used."""
        until = time.monotonic() + self._wait_seconds
        for _ in range(_RETRIES):
            hit = self.cache.lookup(namespace, keys, limit=limit)
            while hit.asking and time.monotonic() < until:
                time.sleep(_POLL_SECONDS)
                hit = self.cache.lookup(namespace, keys, limit=limit)
            if hit.blocks <= hit.host:
                return None
            restore = self.cache.restore(namespace, keys, limit=limit)
            if restore is None:
                return None
            progress = _wait(restore, until)
            if progress == "ready":
                return restore
            restore.end()
            if progress != "failed":
                self.moved.late_loads += 1
                return None
        return None

    def _take(self, restore: Restore) -> Iterator[ReadLease]:
        """The leases of a restore's waves, each released before the next one.

        Raises:
            TransferError: a wave cannot be read, or takes too long.
        """
        while (progress := _wait(restore, time.monotonic() + self._wait_seconds)) != "done":
            lease = restore.take()
            if lease is None:
                raise TransferError(f"restore: expected its next wave, found it {progress}")
            with lease:
                yield lease

    def _note_skipped(self, skipped: Mapping[str, int], wanted: int) -> None:
        """Counts entries that were not stored, and warns the first time."""
        reasons = {
            reason: count
            for reason, count in skipped.items()
            if count and reason not in ("resident", "in_writing")
        }
        if reasons and not self.moved.skipped_entries:
            _log.warning(
                "%d of %d entries of a prompt were not stored (%s), so it cannot be resumed from "
                "its end: raise host_gb if prompts of this length come again",
                sum(reasons.values()),
                wanted,
                ", ".join(reasons),
            )
        self.moved.skipped_entries.update(reasons)

    def _bytes(self, entries: Sequence[LeaseEntry]) -> int:
        classes = self.geometry.classes
        return sum(classes[entry.class_index].entry_bytes for entry in entries)


def _wait(restore: Restore, until: float) -> str:
    """The progress of a restore when something can be taken from it, or at the time ``until``."""
    while (progress := restore.progress()) in ("queued", "waiting"):
        if time.monotonic() >= until:
            break
        time.sleep(_POLL_SECONDS)
    return progress
