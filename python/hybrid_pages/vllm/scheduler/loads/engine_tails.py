"""Tails that vLLM's own pool keeps: the last page and states of requests that have ended.

vLLM's prefix cache keeps whole blocks. What a request leaves behind them is given to whoever needs
a block next. Here it stays until vLLM evicts it like any cached block: its blocks are in that cache
under names that vLLM asks for in no lookup. A request that begins with the tail's tokens goes on
from it as from a hit inside a block: vLLM has the workers copy the blocks first.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from hybrid_pages.vllm import versions
from hybrid_pages.vllm.layout.grid import BlockGrid, Tables
from hybrid_pages.vllm.scheduler.requests.keys import Keys
from hybrid_pages.vllm.scheduler.requests.tails import can_have_tails
from hybrid_pages.vllm.scheduler.requests.tracked import Place, Tracked
from hybrid_pages.vllm.versions import LocalTail

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request

_LEAST_SWEPT = 256
"""How many tails there are, at least, before those that vLLM has evicted are looked for."""

_Stem = tuple[bytes, bytes]
"""What a request's bytes depend on besides its keys, and the key of the last whole block; empty at
the start of a prompt."""


@dataclass(slots=True)
class _Kept:
    """A tail in vLLM's pool."""

    end: int
    """Where it ends, in tokens."""
    name: bytes
    """The name of its blocks in vLLM's prefix cache."""
    blocks: "Sequence[KVCacheBlock]"
    """Its block in each of vLLM's groups."""
    answered: bool
    """Whether it ends an answer, from which mostly one prompt goes on."""
    user: str | None = None
    """The first request that has gone on from it."""
    shared: bool = False
    """Whether others have, too."""

    @property
    def left(self) -> "list[KVCacheBlock]":
        """Those of its blocks that vLLM has not evicted."""
        blocks = enumerate(self.blocks)
        return [
            block for group, block in blocks if versions.carries(block, self.name, group, self.end)
        ]

    @property
    def is_there(self) -> bool:
        """Whether vLLM has evicted none of its blocks."""
        return len(self.left) == len(self.blocks)


class EngineTail(NamedTuple):
    """A tail in vLLM's pool with which a request may begin."""

    place: Place
    local: LocalTail


class EngineTails:
    """The tails in vLLM's pool.

    Args:
        grid: how vLLM cuts sequences into blocks.
        keys: makes the keys of prefixes.
        identity: tells everything that a request's bytes depend on besides its keys.
    """

    def __init__(self, grid: BlockGrid, keys: Keys, identity: "Callable[[Request], bytes]") -> None:
        self._tokens, self._keys, self._identity = grid.block_tokens, keys, identity
        # A page and a state of a tail then are one block of each group. Of one group alone, vLLM's
        # hits are taken as they are.
        whole = set(grid.table_tokens) == {grid.block_tokens}
        self._fits = whole and 1 < len(grid.groups) == len(grid.table_tokens)
        self._kept: dict[int, dict[_Stem, dict[bytes, _Kept]]] = {}
        """By how many whole blocks are before it, what these are, and its key."""
        self._count, self._sweeps_at = 0, _LEAST_SWEPT
        self._names = itertools.count()
        self._pool: BlockPool | None = None

    def bind(self, pool: "BlockPool") -> None:
        """Takes vLLM's block pool. If that tells routers of its blocks, it gets no others."""
        self._pool = None if pool.enable_kv_cache_events else pool

    def __len__(self) -> int:
        """How many tails are remembered, with some that vLLM has evicted."""
        return self._count

    def keep(self, tracked: Tracked, tables: Tables) -> bool:
        """Keeps the tail of a request that has ended, whose blocks vLLM is about to free. Returns
        whether there is one."""
        pool, request, end = self._pool, tracked.request, tracked.run.position
        if pool is None or not self._fits or end is None or not can_have_tails(request):
            return False
        # Otherwise the request was preempted, or its states have a token that vLLM has dropped.
        proven = end == request.num_computed_tokens and end <= request.num_tokens
        whole, tokens = divmod(end, self._tokens)
        if not tokens or not proven or len(self._keys.of(tracked)) < whole:
            return False
        if any(len(table) <= whole for table in tables):
            return False
        blocks = [versions.block_of(pool, table[whole]) for table in tables]
        if any(block.is_null or block.block_hash is not None for block in blocks):
            return False
        name = f"hybrid-pages tail {next(self._names)}".encode()
        kept = _Kept(end, name, blocks, answered=request.num_output_tokens > 1)
        key = self._keys.tails(tracked, whole, [tokens])[0]
        of_stem = self._kept.setdefault(whole, {}).setdefault(self._stem(tracked, whole), {})
        if (same := of_stem.get(key)) is not None:
            self._give_back(same)
        self._count += same is None
        of_stem[key] = kept
        for group, block in enumerate(blocks):
            versions.name(pool, block, kept.name, group, end)
        if self._count >= self._sweeps_at:
            self._sweep()
        return True

    def find(self, tracked: Tracked, joint: int, deepest: int, most: int) -> EngineTail | None:
        """The deepest tail that a request begins with, if it is deeper than vLLM's joint hit.

        Args:
            tracked: the request, which holds no blocks.
            joint: tokens of vLLM's joint hit.
            deepest: tokens of vLLM's own pages.
            most: how many tokens the request may begin with.
        """
        n = self._tokens
        if not self._count or not can_have_tails(tracked.request):
            return None
        known = min(len(self._keys.of(tracked)), deepest // n)
        identity = self._identity(tracked.request)  # it may look at the files of a LoRA
        for whole in sorted(self._kept, reverse=True):
            if whole > known:
                continue
            if (whole + 1) * n <= joint:
                break
            stem = identity, self._before(tracked, whole)
            for key, kept in self._fitting(tracked, whole, stem, most):
                if kept.end <= joint:
                    break
                if kept.is_there:
                    self._note_use(kept, tracked.request.request_id)
                    place = Place(kept.end, whole, key)
                    return EngineTail(place, LocalTail(kept.end, kept.blocks))
                self._give_back(kept)  # what is left of it
                self._forget(whole, stem, key)
        return None

    def _fitting(
        self, tracked: Tracked, whole: int, stem: _Stem, most: int
    ) -> Iterator[tuple[bytes, _Kept]]:
        """The tails behind so many blocks that have a request's tokens, the longest first."""
        of_stem = self._kept[whole].get(stem)
        if not of_stem:
            return
        ends = {kept.end for kept in of_stem.values() if kept.end <= most}
        fitting = [end - whole * self._tokens for end in sorted(ends)]
        for key in reversed(self._keys.tails(tracked, whole, fitting)):
            kept = of_stem.get(key)
            if kept is not None:
                yield key, kept

    def supersede(self, tracked: Tracked) -> None:
        """Gives back the ends of answers from which a request went on that has left its own, unless
        others have gone on from them, too."""
        for begun in tracked.began - tracked.shared:
            whole, tokens = divmod(begun, self._tokens)
            if not tokens:
                continue
            stem = self._stem(tracked, whole)
            key = self._keys.tails(tracked, whole, [tokens])[0]
            kept = self._kept.get(whole, {}).get(stem, {}).get(key)
            if kept is not None and kept.answered and not kept.shared:
                self._give_back(kept)
                self._forget(whole, stem, key)

    @staticmethod
    def _note_use(kept: _Kept, request_id: str) -> None:
        kept.shared |= kept.user not in (None, request_id)
        kept.user = kept.user or request_id

    def _give_back(self, kept: _Kept) -> None:
        """Lets vLLM use the blocks of a tail before others, those that it has not evicted."""
        if self._pool is not None:
            versions.give_back(self._pool, kept.left)

    def clear(self) -> None:
        """Forgets all tails: what was computed until now is outdated."""
        self._kept, self._count = {}, 0

    def _stem(self, tracked: Tracked, whole: int) -> _Stem:
        return self._identity(tracked.request), self._before(tracked, whole)

    @staticmethod
    def _before(tracked: Tracked, whole: int) -> bytes:
        return tracked.keys[whole - 1] if whole else b""

    def _forget(self, whole: int, stem: _Stem, key: bytes) -> None:
        of_whole = self._kept[whole]
        del of_whole[stem][key]
        self._count -= 1
        if not of_whole[stem]:
            del of_whole[stem]
        if not of_whole:
            del self._kept[whole]

    def _sweep(self) -> None:
        """Forgets the tails that vLLM has evicted."""
        for whole, of_whole in list(self._kept.items()):
            for stem, of_stem in list(of_whole.items()):
                for key, kept in list(of_stem.items()):
                    if not kept.is_there:
                        self._forget(whole, stem, key)
        self._sweeps_at = max(_LEAST_SWEPT, 2 * self._count)
