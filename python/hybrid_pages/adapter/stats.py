"""What a ``PrefixCache`` counts, whatever framework its model is of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from hybrid_pages._core import Arena, Cache
from hybrid_pages.adapter.entries import Moved


@dataclass(frozen=True)
class Stats:
    """Counts since the start, and what is in host memory now.

    requests: calls that looked up their prefix. hits: those that restored some of it. uncached:
    other calls, by the argument or the reason why they ran without the cache. changes: how often
    the model was found changed, so that what had been stored is not used any more, by what it was;
    what changed while a text was computed, which was not stored then, among them.
    prompt_tokens = restored_tokens + computed_tokens, of the requests. failed_loads: restores that
    failed and were computed. failed_stores: stores that failed. late_loads: lookups that waited too
    long for a disk. skipped_entries: entries that were not stored, by reason: ``no_room`` where the
    budget is full of what is in use or of the same prompt, so that a prompt larger than the budget
    is never restored. Entries are pages (full attention), windows (sliding) and checkpoints
    (recurrent states); resident_bytes is what they take of host_bytes.
    """

    requests: int
    hits: int
    uncached: dict[str, int]
    changes: dict[str, int]
    prompt_tokens: int
    restored_tokens: int
    computed_tokens: int
    restored_bytes: int
    stored_bytes: int
    failed_loads: int
    failed_stores: int
    late_loads: int
    skipped_entries: dict[str, int]
    pages: int
    windows: int
    checkpoints: int
    resident_bytes: int
    host_bytes: int


@dataclass
class Counts:
    """What one cache counts itself."""

    requests: int = 0
    hits: int = 0
    prompt_tokens: int = 0
    restored_tokens: int = 0
    uncached: Counter[str] = field(default_factory=Counter)

    def served(self, tokens: int, restored: int) -> None:
        """Notes a request: the tokens of its prompt, and how many of them were restored."""
        self.requests += 1
        self.hits += restored > 0
        self.prompt_tokens += tokens
        self.restored_tokens += restored

    def stats(
        self, changes: Mapping[str, int], moved: Moved, index: Cache | None, arena: Arena | None
    ) -> Stats:
        """All counts, with those of the store, if there is one."""
        now = Counter[str]() if index is None else index.stats()
        return Stats(
            requests=self.requests,
            hits=self.hits,
            uncached=dict(self.uncached),
            changes=dict(changes),
            prompt_tokens=self.prompt_tokens,
            restored_tokens=self.restored_tokens,
            computed_tokens=self.prompt_tokens - self.restored_tokens,
            restored_bytes=moved.restored_bytes,
            stored_bytes=moved.stored_bytes,
            failed_loads=moved.failed_loads,
            failed_stores=moved.failed_stores,
            late_loads=moved.late_loads,
            skipped_entries=dict(moved.skipped_entries),
            pages=now["pages"],
            windows=now["windows"],
            checkpoints=now["checkpoints"],
            resident_bytes=now["page_bytes"] + now["window_bytes"] + now["checkpoint_bytes"],
            host_bytes=0 if arena is None else arena.nbytes,
        )
