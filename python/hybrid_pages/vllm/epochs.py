"""What was computed before a reset, or by earlier weights of an adapter, and must not be published.

A reset of this cache says: what was computed until now is worth nothing, for example since the
weights have changed. The engine may still hold such bytes: in requests that run, and in its own
prefix cache, which it empties only when no block is in use. Whoever goes on from them is *stale*,
and so is whoever goes on from what a stale request leaves in the engine's cache.
"""

import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.v1.core.kv_cache_utils import get_block_hash

from hybrid_pages.vllm.states import Tables
from hybrid_pages.vllm.tracking import Reload, Tracked, namespace_identity

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.request import Request


@dataclass
class _Adapter:
    """An adapter as it was last loaded."""

    generation: int = 0
    files: tuple[object, ...] | None = None
    used: bool = False
    old_keys: frozenset[bytes] = frozenset()
    """Of blocks that the engine held when it was loaded again."""


@dataclass
class _Old:
    """Keys of blocks in the engine's own cache that are not to be trusted."""

    keys: set[bytes] = field(default_factory=set)
    makers: dict[str, Tracked] = field(default_factory=dict)
    """Stale requests: the keys of their blocks are such keys, and become more."""

    def first_of(self, keys: Sequence[bytes], *, spoiled: bool = False) -> int | None:
        """The first of some keys that is not to be trusted, or only of those that spoiled requests
        hold."""
        wrong = [
            set(maker.request.block_hashes[maker.wrong_from :])
            for maker in self.makers.values()
            if maker.spoiled or not spoiled
        ]
        if not spoiled:
            wrong.append(self.keys)
        return next(
            (index for index, key in enumerate(keys) if any(key in held for held in wrong)), None
        )


class Epochs:
    """Tells bytes from before a reset from those after it.

    ``BlockPool.reset_prefix_cache`` replaces the pool's map of cached blocks: its identity tells
    whether the engine's own cache was emptied.
    """

    def __init__(self) -> None:
        self._pool: BlockPool | None = None
        self._seen: Any = None
        self._old = _Old()
        self._adapters: dict[bytes, _Adapter] = {}
        self._generations = itertools.count(1)

    def bind(self, pool: "BlockPool") -> None:
        """Takes the engine's block pool."""
        self._pool = pool
        self._seen = pool.cached_block_hash_to_block

    def engine_was_reset(self) -> bool:
        """Whether the engine has emptied its own prefix cache since the last call."""
        cached = None if self._pool is None else self._pool.cached_block_hash_to_block
        emptied = cached is not self._seen
        self._seen = cached
        if emptied:  # which it does only when no request holds a block
            self._old = _Old()
            for adapter in self._adapters.values():
                adapter.old_keys = frozenset()
        return emptied

    def reset(self, requests: Iterable[Tracked], loading: Iterable[str]) -> bool:
        """From now on nothing counts that was computed until now.

        Args:
            requests: those that are followed.
            loading: ids of the requests that are being loaded.

        Returns:
            Whether the engine's own cache still holds such bytes.
        """
        if not self.engine_was_reset():
            self._old.keys |= self._cached_keys()
        in_flight = set(loading)
        for tracked in requests:
            request = tracked.request
            if request.num_computed_tokens or request.request_id in in_flight:
                self.distrust(tracked)
        return bool(self._old.keys or self._old.makers)

    def distrust(self, tracked: Tracked, first: int = 0) -> None:
        """Nothing of a request is published, nor of who goes on from its blocks.

        Args:
            tracked: the request.
            first: of its keys, the first one whose block may hold wrong bytes.
        """
        tracked.wrong_from = min(first, tracked.wrong_from) if tracked.stale else first
        tracked.stale = True
        self._old.makers[tracked.request.request_id] = tracked

    def restarted(self, tracked: Tracked, position: int | None) -> None:
        """The engine has given up a request's blocks, which may stay in its own cache.

        Args:
            tracked: the request.
            position: keys of what it had computed; None if it had not run.
        """
        if self._old.makers.pop(tracked.request.request_id, None) is not None and position:
            self._old.keys.update(tracked.request.block_hashes[tracked.wrong_from : position])

    def spoil(self, tracked: Tracked, first: int) -> None:
        """A request has gone on from blocks that hold something else.

        As :meth:`distrust`, but until its end alone: then the engine's own cache loses its blocks.
        """
        tracked.spoiled = True
        self.distrust(tracked, first)

    def ended(self, tracked: Tracked, tables: Tables) -> None:
        """A request ended; its blocks may stay in the engine's own cache."""
        if self._old.makers.pop(tracked.request.request_id, None) is None:
            return
        if tracked.spoiled and self._pool is not None:
            self._pool.evict_blocks({block for ids in tables for block in ids if block})
        else:
            self._old.keys.update(tracked.request.block_hashes[tracked.wrong_from :])

    def admitted(self, tracked: Tracked, hit: Sequence[bytes], running: Iterable[Tracked]) -> None:
        """A request is scheduled for the first time in this admission.

        Args:
            tracked: the request.
            hit: keys of the blocks that it has from the engine's own cache.
            running: all requests that are followed.
        """
        adapter = None
        if tracked.request.lora_request is not None:
            if tracked.reload is not None:  # the worker loads its adapter for this step
                self._reloaded(tracked, tracked.reload, running)
                tracked.reload = None
            adapter = self._adapters[namespace_identity(tracked.request)]
            adapter.used = True
        if not (self._old.keys or self._old.makers or (adapter and adapter.old_keys)):
            return
        if (first := self._old.first_of(hit, spoiled=True)) is not None:
            self.spoil(tracked, first)
        elif (first := self._old.first_of(hit)) is not None:
            self.distrust(tracked, first)
        elif adapter and not adapter.old_keys.isdisjoint(hit):
            self.distrust(tracked)

    def _cached_keys(self) -> frozenset[bytes]:
        blocks = () if self._pool is None else self._pool.blocks
        held = (block.block_hash for block in blocks)
        return frozenset(get_block_hash(key) for key in held if key is not None)

    # ---- adapters

    def reload(self, request: "Request", pending: Reload | None) -> Reload | None:
        """What a request that says ``load_inplace`` will do to its adapter once it is scheduled.

        Args:
            request: vLLM's request.
            pending: what was said of this request before.
        """
        lora = request.lora_request
        if lora is None:
            return None
        known = self._adapters.setdefault(namespace_identity(request), _Adapter())
        if not getattr(lora, "load_inplace", False):
            return None
        files = _files(lora)
        if files is not None and files == known.files:
            return None
        if pending is not None and pending.files == files:
            return pending
        return Reload(next(self._generations), files)

    def identity(self, request: "Request", reload: Reload | None = None) -> bytes:
        """The identity of a request's namespace; one that reloads has a new one, of its own."""
        name = namespace_identity(request)
        if reload is not None:
            return namespace_identity(request, reload.generation)
        known = self._adapters.get(name)
        return namespace_identity(request, 0 if known is None else known.generation)

    def _reloaded(self, tracked: Tracked, reload: Reload, running: Iterable[Tracked]) -> None:
        name = namespace_identity(tracked.request)
        old = self._cached_keys() if self._adapters[name].used else frozenset()
        self._adapters[name] = _Adapter(reload.generation, reload.files, old_keys=old)
        for other in running:
            same = other is not tracked and namespace_identity(other.request) == name
            if same and other.request.num_computed_tokens:
                self.distrust(other)


def _files(lora: "LoRARequest") -> tuple[object, ...] | None:
    """What tells an adapter's files from rewritten ones; None if they cannot be read here."""
    try:
        with os.scandir(lora.lora_path) as entries:
            return tuple(
                sorted(
                    (
                        entry.name,
                        status.st_ino,
                        status.st_size,
                        status.st_mtime_ns,
                        status.st_ctime_ns,
                    )
                    for entry in entries
                    for status in (entry.stat(),)
                )
            )
    except OSError:
        return None
