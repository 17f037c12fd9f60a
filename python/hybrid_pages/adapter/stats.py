"""The counts of a ``PrefixCache``, for all frameworks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from hybrid_pages._core import Arena, Cache
from hybrid_pages.adapter.entries import Moved


@dataclass(frozen=True)
class Stats:
    """Counts since the start, and the entries in host memory now.

    - requests: calls that looked up their prefix; hits: those that restored a part of it.
    - uncached: calls that ran without the cache, by the argument or the reason for that.
    - changes: how often the model was found changed, by what had changed. Entries from before a
      change are not used after it. Changes while a text was computed count, too.
    - prompt_tokens: of the requests, the sum of restored_tokens and computed_tokens.
    - restored_bytes, stored_bytes: copied out of and into host memory.
    - failed_loads: restores that failed, so that the prompt was computed. failed_stores: stores
      that failed. late_loads: lookups that waited too long for a tier below the host.
    - skipped_entries: entries that were not stored, by reason. ``no_room``: the budget is full of
      entries in use or of the same prompt. A prompt larger than the budget is never restored.
    - pages, windows, checkpoints: entries of full attention, of sliding windows and of recurrent
      states; resident_bytes: their size, of the host_bytes of the budget.
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
class CallCounts:
    """The counts of one ``PrefixCache`` that its store does not have."""

    requests: int = 0
    hits: int = 0
    prompt_tokens: int = 0
    restored_tokens: int = 0
    uncached: Counter[str] = field(default_factory=Counter)

    def served(self, tokens: int, restored: int) -> None:
        """Counts a request whose prompt has so many tokens, of which some were restored."""
        self.requests += 1
        self.hits += restored > 0
        self.prompt_tokens += tokens
        self.restored_tokens += restored

    def stats(
        self, changes: Mapping[str, int], moved: Moved, index: Cache | None, arena: Arena | None
    ) -> Stats:
        """All counts together.

        changes: of the model's watch. moved: of the entries. index, arena: of the store; None if
        there is no store.
        """
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
