"""Counts answers whose states were not kept, although a later prompt could have resumed there.

A prompt that repeats an earlier answer finds no pages and no state after the earlier prompt, so the
cache takes it for a new prompt. This module remembers the keys of boundaries whose states existed
but were not wanted, and counts later prompts that pass one.
"""

from collections.abc import Iterable

from hybrid_pages._core import PrefixKeys

_MOST = 16_384
"""How many boundaries are remembered; the oldest are forgotten first. There is one per several
hundred decoded tokens."""


class Answers:
    """Remembers boundaries in answers, by namespace and key."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._left: dict[tuple[int, bytes], None] = {}

    def ended(
        self, namespace: int, keys: PrefixKeys, left: Iterable[int], kept: Iterable[int]
    ) -> None:
        """Called when a request has ended.

        left: boundaries, in blocks, whose states were not kept. kept: boundaries with a checkpoint.
        """
        known = len(keys)
        for block in kept:
            if 0 < block <= known:
                self._left.pop((namespace, keys[block - 1]), None)
        for block in left:
            if 0 < block <= known:
                name = namespace, keys[block - 1]
                self._left.pop(name, None)
                self._left[name] = None
        while len(self._left) > self._most:
            del self._left[next(iter(self._left))]

    def depth(self, namespace: int, keys: PrefixKeys, fork: int | None) -> int:
        """The deepest such boundary of a prompt up to its fork, in blocks; 0 for none."""
        if not self._left:
            return 0
        blocks = range(min(fork or 0, len(keys)), 0, -1)
        return next((block for block in blocks if (namespace, keys[block - 1]) in self._left), 0)

    def forget(self) -> None:
        """Forgets all boundaries, since everything computed so far is outdated."""
        self._left.clear()
