"""Answers whose states were not kept: what a later prompt would have resumed from.

A prompt that sends an answer again finds neither pages nor a state behind the prompt of that
answer. The cache can't tell that from a prompt that is new. So boundaries whose states were there
and not wanted are remembered by their keys, and a prompt that passes one counts.
"""

from collections.abc import Iterable

from hybrid_pages._core import PrefixKeys

_MOST = 16_384
"""Boundaries that are remembered; the oldest go first. A boundary is hundreds of tokens that were
decoded one by one."""


class Answers:
    """Remembers boundaries in answers, by namespace and key."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._left: dict[tuple[int, bytes], None] = {}

    def ended(
        self, namespace: int, keys: PrefixKeys, left: Iterable[int], kept: Iterable[int]
    ) -> None:
        """A request has ended. left: boundaries, in blocks, whose states were not kept; kept: those
        that got a checkpoint."""
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
        """The deepest of them on the way to a prompt's fork, in blocks; 0 for none."""
        if not self._left:
            return 0
        blocks = range(min(fork or 0, len(keys)), 0, -1)
        return next((block for block in blocks if (namespace, keys[block - 1]) in self._left), 0)

    def forget(self) -> None:
        """What was computed so far is old."""
        self._left.clear()
