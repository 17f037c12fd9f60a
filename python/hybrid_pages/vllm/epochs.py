"""What was computed before a reset, or by earlier weights of an adapter, and must not be published.

A reset of this cache says: what was computed until now is worth nothing, for example since the
weights have changed. The engine may still hold such bytes: in requests that run, and in its own
prefix cache, which it empties only when no block is in use. Whoever goes on from them is *stale*.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybrid_pages.vllm.tracking import Tracked, namespace_identity

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.request import Request


@dataclass
class _Adapter:
    """An adapter that was loaded again in place."""

    generation: int
    files: tuple[object, ...] | None
    distrusted: Any


class Epochs:
    """Tells bytes from before a reset from those after it.

    ``BlockPool.reset_prefix_cache`` replaces the pool's map of cached blocks: its identity tells
    whether the engine's own cache was emptied.
    """

    def __init__(self) -> None:
        self._pool: BlockPool | None = None
        self._seen: Any = None
        self._distrusted: Any = None
        self._adapters: dict[bytes, _Adapter] = {}

    def bind(self, pool: "BlockPool") -> None:
        """Takes the engine's block pool."""
        self._pool = pool
        self._seen = self._cached()

    def _cached(self) -> Any:
        return None if self._pool is None else self._pool.cached_block_hash_to_block

    def engine_was_reset(self) -> bool:
        """Whether the engine has emptied its own prefix cache since the last call."""
        cached = self._cached()
        emptied = cached is not self._seen
        self._seen = cached
        return emptied

    def reset(self, requests: Iterable[Tracked], loading: Iterable[str]) -> None:
        """From now on nothing counts that was computed until now.

        Args:
            requests: those that are followed.
            loading: ids of the requests that are being loaded.
        """
        if not self.engine_was_reset():
            self._distrusted = self._seen
        in_flight = set(loading)
        for tracked in requests:
            request = tracked.request
            if request.num_computed_tokens or request.request_id in in_flight:
                tracked.stale = True

    def admitted(self, tracked: Tracked, local_tokens: int) -> None:
        """A request starts to compute behind a hit in the engine's own cache."""
        if local_tokens <= 0:
            return
        adapter = self._adapters.get(namespace_identity(tracked.request))
        cached = self._cached()
        if cached is self._distrusted or (adapter is not None and adapter.distrusted is cached):
            tracked.stale = True

    # ---- adapters

    def identity(self, request: "Request", *, arrives: bool) -> bytes:
        """The identity of a request's namespace.

        Args:
            request: vLLM's request.
            arrives: it is new, so if it says ``load_inplace``, its adapter is loaded again. An
                adapter whose files are the same as before stays the same.
        """
        lora = request.lora_request
        if lora is None:
            return namespace_identity(request)
        name = namespace_identity(request)
        known = self._adapters.get(name)
        if arrives and getattr(lora, "load_inplace", False):
            files = _files(lora)
            if known is None or files is None or files != known.files:
                generation = 1 if known is None else known.generation + 1
                known = self._adapters[name] = _Adapter(generation, files, self._cached())
        return namespace_identity(request, 0 if known is None else known.generation)


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
