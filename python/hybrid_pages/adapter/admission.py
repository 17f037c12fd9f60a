"""Tells the cache's policy when requests arrive and end."""

import time
from collections.abc import Sequence

from hybrid_pages._core import Admission, Cache, Hints, PrefixKeys

Keys = Sequence[bytes] | PrefixKeys


class Admissions:
    """Announces requests to a cache's policy. Each of their blocks has a key."""

    def __init__(self, cache: Cache, block_tokens: int) -> None:
        self._cache, self._block_tokens = cache, block_tokens

    def admit(
        self, namespace: int, keys: Keys, tokens: int, hints: Hints | None = None
    ) -> Admission:
        """Announces a prompt; the policy's answer says which boundaries deserve a checkpoint.

        Args:
            namespace: of the request.
            keys: of the prompt's full blocks.
            tokens: of the prompt.
            hints: what the application says of the request.
        """
        return self._cache.admit(
            namespace,
            keys,
            now=time.monotonic_ns() // 1_000_000,
            tokens=tokens,
            blocks=tokens // self._block_tokens,
            limit=last_boundary(tokens, self._block_tokens),
            hints=hints,
        )

    def finish(self, namespace: int, keys: Keys, tokens: int, output_tokens: int) -> None:
        """Announces the end of a request.

        Args:
            namespace: of the request.
            keys: of the full blocks of the prompt and the output.
            tokens: of the prompt.
            output_tokens: of the output.
        """
        blocks = min(tokens // self._block_tokens, len(keys))
        if blocks:
            self._cache.finish(namespace, keys, end=blocks, output_tokens=output_tokens)


def last_boundary(tokens: int, block_tokens: int) -> int:
    """The deepest boundary, in blocks, that leaves a prompt at least one token to compute."""
    return max(tokens - 1, 0) // block_tokens


def deserving(admission: Admission) -> set[int]:
    """The boundaries, in blocks, that deserve a checkpoint: the policy's, and the fork."""
    fork = () if admission.fork is None else (admission.fork,)
    return {*admission.boundaries, *fork}
