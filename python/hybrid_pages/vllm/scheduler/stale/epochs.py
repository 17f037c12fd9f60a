"""Keeps bytes from before a reset, or of a LoRA's earlier weights, from being published.

A reset of this cache means that everything computed until then is outdated, for example because the
weights have changed. The engine may still have outdated bytes: in running requests, and in its own
prefix cache, which it empties only when no block is in use. A request that goes on from outdated
bytes is *stale*, and so is one that goes on from blocks that a stale request left in the engine's
cache.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_pages.vllm import versions
from hybrid_pages.vllm.layout.grid import Tables
from hybrid_pages.vllm.scheduler.requests.tracked import Reload, Tracked, namespace_identity
from hybrid_pages.vllm.scheduler.stale.lora import LastingNames, file_marks

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.request import Request


_MOST_LORAS = 4096
"""How many reloaded LoRAs, and how many used ones, are remembered. A forgotten one may lose its
hits."""


@dataclass
class _ReloadedLora:
    """A LoRA that was loaded again in place."""

    generation: int
    files: tuple[object, ...] | None = None
    old_keys: frozenset[bytes] = frozenset()
    """The keys of blocks that the engine had when the LoRA was loaded again."""


@dataclass
class _Old:
    """Keys of blocks in the engine's own cache that are not to be trusted."""

    keys: set[bytes] = field(default_factory=set)
    makers: dict[str, Tracked] = field(default_factory=dict)
    """Stale requests. The keys of their blocks, now and later, are not to be trusted either."""

    def first_of(self, keys: Sequence[bytes], *, spoiled: bool = False) -> int | None:
        """The index of the first key that is not to be trusted; with ``spoiled``, of the first one
        that a spoiled request holds."""
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

    lasting: whether entries outlive this process, so that LoRAs are named by their files.
    """

    def __init__(self, *, lasting: bool = False) -> None:
        self._names = LastingNames() if lasting else None
        self._pool: BlockPool | None = None
        self._seen: Any = None
        self._old = _Old()
        self._reloaded: dict[bytes, _ReloadedLora] = {}
        """The LoRAs that were loaded again in place, the most recently used one last."""
        self._some_forgotten = False
        """Whether some of them were forgotten, so that unknown LoRAs may have been loaded again,
        too."""
        self._used: set[bytes] | None = set()
        """The LoRAs that have run since the engine's own cache was last emptied; None if any
        may."""
        self._generations = itertools.count(1)

    def bind(self, pool: "BlockPool") -> None:
        """Takes the engine's block pool."""
        self._pool = pool
        self._seen = versions.prefix_cache_of(pool)

    def engine_was_reset(self) -> bool:
        """Whether the engine has emptied its own prefix cache since the last call."""
        cached = None if self._pool is None else versions.prefix_cache_of(self._pool)
        emptied = cached is not self._seen
        self._seen = cached
        if emptied:  # which it does only when no request holds a block
            self._old, self._used = _Old(), set()
            for lora in self._reloaded.values():
                lora.old_keys = frozenset()
        return emptied

    def reset(self, requests: Iterable[Tracked], loading: Iterable[str]) -> bool:
        """Declares everything old that was computed until now.

        Args:
            requests: those that are followed.
            loading: ids of the requests that are being loaded.

        Returns:
            Whether the engine's own cache still holds such bytes.
        """
        if not self.engine_was_reset():
            self._old.keys |= self._keys_in_engine()
        in_flight = set(loading)
        for tracked in requests:
            request = tracked.request
            if request.num_computed_tokens or request.request_id in in_flight:
                self.distrust(tracked)
        return bool(self._old.keys or self._old.makers)

    def distrust(self, tracked: Tracked, first: int = 0) -> None:
        """Keeps a request, and those that go on from its blocks, from publishing anything.

        Args:
            tracked: the request.
            first: of its keys, the first one whose block may hold wrong bytes.
        """
        tracked.wrong_from = min(first, tracked.wrong_from) if tracked.stale else first
        tracked.run.stale = True
        self._old.makers[tracked.request.request_id] = tracked

    def restarted(self, tracked: Tracked, position: int | None) -> None:
        """Called when the engine has given up a request's blocks, which may stay in its own cache.

        Args:
            tracked: the request.
            position: how many keys cover what it had computed; None if it had not run.
        """
        if self._old.makers.pop(tracked.request.request_id, None) is not None and position:
            self._old.keys.update(tracked.request.block_hashes[tracked.wrong_from : position])

    def spoil(self, tracked: Tracked, first: int) -> None:
        """Distrusts a request that has gone on from blocks with wrong bytes.

        Does what :meth:`distrust` does, but only until the request ends: then its blocks are taken
        out of the engine's own cache.
        """
        tracked.spoiled = True
        self.distrust(tracked, first)

    def ended(self, tracked: Tracked, tables: Tables) -> None:
        """Called when a request ended; its blocks may stay in the engine's own cache."""
        if self._old.makers.pop(tracked.request.request_id, None) is None:
            return
        if tracked.spoiled and self._pool is not None:
            versions.forget_blocks(self._pool, {block for ids in tables for block in ids if block})
        else:
            self._old.keys.update(tracked.request.block_hashes[tracked.wrong_from :])

    def scheduled(self, tracked: Tracked, hit: Sequence[bytes], running: Iterable[Tracked]) -> None:
        """Called when a run of a request begins.

        Args:
            tracked: the request.
            hit: keys of the blocks that it has from the engine's own cache.
            running: all requests that are followed.
        """
        old_keys: frozenset[bytes] = frozenset()
        if tracked.request.lora_request is not None:
            if tracked.reload is not None:  # the worker loads the LoRA for this step
                self._reload(tracked, tracked.reload, running)
                tracked.reload = None
            name = namespace_identity(tracked.request)
            self._note_use(name)
            if (lora := self._reloaded.get(name)) is not None:
                old_keys = lora.old_keys
        if not (self._old.keys or self._old.makers or old_keys):
            return
        if (first := self._old.first_of(hit, spoiled=True)) is not None:
            self.spoil(tracked, first)
        elif (first := self._old.first_of(hit)) is not None:
            self.distrust(tracked, first)
        elif not old_keys.isdisjoint(hit):
            self.distrust(tracked)

    def _keys_in_engine(self) -> frozenset[bytes]:
        return frozenset() if self._pool is None else versions.cached_keys(self._pool)

    # ---- LoRAs

    def reload(self, request: "Request", pending: Reload | None) -> Reload | None:
        """The reload that a request with ``load_inplace`` will cause once it is scheduled.

        Args:
            request: vLLM's request.
            pending: the result of the last call for this request.
        """
        lora = request.lora_request
        if lora is None or not versions.reloads_lora(lora):
            return None
        known = self._reloaded.get(namespace_identity(request))
        files = file_marks(Path(lora.lora_path))
        if known is not None and files is not None and files == known.files:
            return None
        if pending is not None and pending.files == files:
            return pending
        return Reload(next(self._generations), files)

    def identity(self, request: "Request", reload: Reload | None = None) -> bytes:
        """The identity of a request's namespace; a reload gives a new one."""
        if request.lora_request is None:
            return namespace_identity(request)
        if reload is not None:
            return self._named(request, reload.generation)
        return self._named(request, self._generation(namespace_identity(request)))

    def _named(self, request: "Request", generation: int) -> bytes:
        name = namespace_identity(request, generation)
        if self._names is None or request.lora_request is None:
            return name
        if generation:  # its files may be written again before the worker reads them
            return self._names.unnamed(name)
        return self._names.name(request.lora_request)

    def _generation(self, name: bytes) -> int:
        """The generation of a LoRA's weights.

        A LoRA that may have been forgotten gets a new generation. Its earlier entries are then not
        found any more.
        """
        known = self._reloaded.get(name)
        if known is None:
            if not self._some_forgotten:
                return 0
            known = _ReloadedLora(next(self._generations))
        self._remember(name, known)
        return known.generation

    def _remember(self, name: bytes, lora: _ReloadedLora) -> None:
        self._reloaded.pop(name, None)
        self._reloaded[name] = lora
        if len(self._reloaded) > _MOST_LORAS:
            forgotten = self._reloaded.pop(next(iter(self._reloaded)))
            self._some_forgotten = True
            self._old.keys |= forgotten.old_keys

    def _note_use(self, name: bytes) -> None:
        if self._used is not None:
            self._used.add(name)
            if len(self._used) > _MOST_LORAS:
                self._used = None

    def _reload(self, tracked: Tracked, reload: Reload, running: Iterable[Tracked]) -> None:
        name = namespace_identity(tracked.request)
        used = self._used is None or name in self._used
        old: frozenset[bytes] = self._keys_in_engine() if used else frozenset()
        self._remember(name, _ReloadedLora(reload.generation, reload.files, old_keys=old))
        for other in running:
            same = other is not tracked and namespace_identity(other.request) == name
            if same and other.request.num_computed_tokens:
                self.distrust(other)
