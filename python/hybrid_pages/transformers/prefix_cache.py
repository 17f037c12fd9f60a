"""``generate`` with prefix reuse: restore the longest known prefix, compute the rest, store it."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

import torch

from hybrid_pages import ForeignError, InvalidArgumentError
from hybrid_pages.adapter.disk import DEADLINE_MS
from hybrid_pages.adapter.entries import Moved
from hybrid_pages.adapter.layout import require_blocks_in_windows
from hybrid_pages.adapter.remote import DEADLINE_MS as REMOTE_DEADLINE_MS
from hybrid_pages.adapter.remote import Admit
from hybrid_pages.adapter.stats import CallCounts, Stats
from hybrid_pages.adapter.store import Closing
from hybrid_pages.transformers.generate_call import (
    CachedModel,
    GenerateCall,
    Uncached,
    warn_uncached,
)
from hybrid_pages.transformers.identity import WeightsDigest, model_identity
from hybrid_pages.transformers.probe import read_layout
from hybrid_pages.transformers.request import read_request
from hybrid_pages.transformers.rope import regime
from hybrid_pages.transformers.store import CacheStore, require_model
from hybrid_pages.transformers.versions import (
    UnsupportedError,
    is_unknown,
    may_be_new,
    reason_of,
    untested,
)

__all__ = ["PrefixCache", "Stats"]

_log = logging.getLogger(__name__)


class PrefixCache(Closing):
    """A model whose ``generate`` keeps the caches of earlier prompts, and resumes from them.

    :meth:`generate` takes and returns what ``model.generate`` does. Calls that cannot use the cache
    run without it and are counted by reason: batches of several rows, padding, beams, assisted and
    other decoding modes, embeddings or other inputs than ids, a cache of the caller's,
    ``use_cache=False``, attentions or hidden states as outputs, training mode, forward hooks,
    prompts whose keys depend on their length (RoPE scaling), passes that draw random numbers or
    write what they read, memory that runs out, kinds of layers that are not known, and what a
    transformers newer than tested does differently.

    Before each call the model is checked for changes: tensors that were replaced, written to, or
    differ in one of 64 sampled elements. What was stored before a change is never used again. For
    changes that a check can miss, see :meth:`weights_changed`. Attributes, configs, autocast and
    torch's settings of precision are compared, too: entries are used only under those in which
    they were made.

    Thread-safe: calls from several threads run one after the other, also those of several caches
    with one store.

    Args:
        model: a causal language model with attention layers, in evaluation mode, on its device.
        host_gb: host memory for pages and checkpoints, in GiB; ``"auto"`` for half of what is free.
        block_tokens: tokens per block; prompts are restored in whole blocks. A sliding window has
            to be wider.
        policy: which entries stay when the budget is full, and which boundaries get a checkpoint.
        weights: how weights enter the identity of entries, see :class:`CacheStore`.
        verify_on_load: compare checksums before restored bytes are used.
        disk_path: a directory for entries that outlive the process, see :class:`CacheStore`. They
            are found again by the same model (by every byte of its weights) under the same settings
            and with the same code.
        disk_gb: quota of disk_path, in GiB.
        disk_deadline_ms: how long a restore waits for the disk. A call to the disk that takes
            longer has failed.
        remote_url: a store that machines share, see :class:`CacheStore`. Entries are found again as
            on a disk.
        remote_deadline_ms: how long a read from remote_url may take.
        remote_admit: what is written to remote_url.
        encrypt_key: what disk_path and remote_url are encrypted with, see :class:`CacheStore`.
        store: a store made for the same model, to share it. Its memory and settings are used, and
            it is not closed with this object. Entries are shared with caches of the same model
            object, and of others whose weights, all of them compared, are equal when this cache is
            made; not with :meth:`CacheStore.snapshot`, which cannot tell what filled a cache.

    Raises:
        UnsupportedError: the model is of a kind that cannot be stored, or, with disk_path or
            remote_url, its code has no version.
        SettingsError, BudgetError, DiskError, RemoteError: see :class:`CacheStore`.
        ForeignError: store was made for another model.
    """

    def __init__(
        self,
        model: Any,
        *,
        host_gb: float | str = 4.0,
        block_tokens: int = 64,
        policy: str = "reuse",
        weights: WeightsDigest = "sampled",
        verify_on_load: bool = False,
        disk_path: str | os.PathLike[str] = "",
        disk_gb: float = 0.0,
        disk_deadline_ms: int = DEADLINE_MS,
        remote_url: str = "",
        remote_deadline_ms: int = REMOTE_DEADLINE_MS,
        remote_admit: Admit = "auto",
        encrypt_key: str | os.PathLike[str] | None = None,
        store: CacheStore | None = None,
    ) -> None:
        self.model = model
        self.store: CacheStore | None = None
        self._lock = store.lock if store is not None else threading.RLock()
        self._owns_store = store is None
        self._counts = CallCounts()
        self._cached: CachedModel | None = None
        self._closed = False
        # Why no call can use the cache.
        self._refused: str | None = None
        settings = dict(
            host_gb=host_gb,
            block_tokens=block_tokens,
            policy=policy,
            weights=weights,
            verify_on_load=verify_on_load,
            disk_path=disk_path,
            disk_gb=disk_gb,
            disk_deadline_ms=disk_deadline_ms,
            remote_url=remote_url,
            remote_deadline_ms=remote_deadline_ms,
            remote_admit=remote_admit,
            encrypt_key=encrypt_key,
        )
        try:
            self._open(store, settings)
        except Exception as error:
            if self._owns_store and self.store is not None:
                self.store.close()
            self.store = self._cached = None
            if not is_unknown(error):
                raise
            self._refused = reason_of(error)
            warn_uncached(model, self._refused, error)

    def _open(self, store: CacheStore | None, settings: dict[str, Any]) -> None:
        """Makes or takes the store, and looks at the model.

        Raises:
            HybridPagesError: as the constructor.
            Exception: what a transformers newer than tested does.
        """
        model, weights = self.model, settings["weights"]
        if store is None:
            store = CacheStore(model, **settings)
            self.store, self._lock = store, store.lock
        else:
            self.store = store
            require_model(model)
            # A model that the store knows may have changed since: its states are told apart.
            known = store.models.knows(model)
            if store.models.states.process:
                weights = store.weights
            identity = store.geometry.identity if known else model_identity(model, weights)
            layout = read_layout(model, store.layout.block_tokens, identity)
            difference = store.geometry.difference(layout.geometry)
            if difference is not None:
                raise ForeignError(f"store: made for another model: {difference}")
        require_blocks_in_windows(store.geometry)
        with self._lock:
            self._watch = store.models.watch(model, store.layout)
            self._watch.look()
        self._cached = CachedModel(model, store, self._watch, self._counts)
        if self._watch.unnamed is not None:
            setting = "disk_path" if settings["disk_path"] else "remote_url"
            found = (
                f"{setting}: expected a model whose code has a version and whose parts can all be "
                f"compared by another process, found {self._watch.unnamed}"
            )
            if not untested():
                raise UnsupportedError(
                    f"{found}: install code of your own as a package, or leave the setting out"
                )
            _log.warning("%s: no later process finds what this one stores", found)

    def generate(self, inputs: Any = None, *, cache_salt: str = "", **kwargs: Any) -> Any:
        """Returns what ``model.generate`` returns for these arguments, sooner if a prefix is known.

        Args:
            inputs: the prompt, ``[1, tokens]``. It may also be given as ``input_ids``.
            cache_salt: calls of different salts share nothing.
            **kwargs: the arguments of ``model.generate``.

        Raises:
            InvalidArgumentError: the cache is closed. A copy that fails is a miss; what
                ``model.generate`` raises is passed on.
        """
        with self._lock, torch.no_grad():
            if self._closed:
                raise InvalidArgumentError("PrefixCache: expected an open one, found it closed")
            found = self._plan(inputs, cache_salt, kwargs)
            result = found.generate(kwargs) if isinstance(found, GenerateCall) else found
            if isinstance(result, Uncached):
                # What was made for the cache is not referenced any more: its memory is free.
                self._counts.uncached[result.reason] += 1
                return self.model.generate(inputs, **kwargs)
            return result

    def weights_changed(self) -> None:
        """Tells that weights, or the code that uses them, have changed in a way that may not show.

        Needed after writes through ``.data`` or from outside torch that leave the sampled elements
        as they are, such as those to one row of a matrix, and after patches of functions. Nothing
        that any cache of the store has stored until now is used again.
        """
        with self._lock:
            if self.store is not None:
                self.store.models.weights_changed()

    def stats(self) -> Stats:
        """Counts since the start, and the entries in host memory now."""
        with self._lock:
            if self.store is None:
                return self._counts.stats({}, Moved(), None, None)
            store = self.store
            return self._counts.stats(self._watch.changes, store.moved, store.index, store.arena)

    def clear(self) -> None:
        """Forgets every page and checkpoint."""
        with self._lock:
            if self.store is not None:
                self.store.clear()

    def close(self) -> None:
        """Ends the copy threads, unless the store is shared. The second call does nothing."""
        with self._lock:
            self._closed = True
            if self._owns_store and self.store is not None:
                self.store.close()

    def _plan(self, inputs: Any, salt: str, kwargs: dict[str, Any]) -> GenerateCall | Uncached:
        """How a call uses the cache, or why it does not."""
        cached = self._cached
        if cached is None:
            return Uncached(self._refused or "no store")
        try:
            return _read_call(cached, inputs, salt, kwargs)
        except Exception as error:  # what a tested library raises is raised again
            if not may_be_new(error):
                raise
            return cached.not_understood("reading the call", error)


def _read_call(
    cached: CachedModel, inputs: Any, salt: str, kwargs: dict[str, Any]
) -> GenerateCall | Uncached:
    request = read_request(cached.model, inputs, kwargs)
    if isinstance(request, str):
        return Uncached(request)
    state = cached.watch.look()
    if state.uncached is not None:
        return Uncached(state.uncached)
    lengths = regime(cached.model, request.tokens)
    if isinstance(lengths, str):
        return Uncached(lengths)
    size = cached.store.layout.block_tokens
    if lengths.floor and (request.tokens - 1) // size * size <= lengths.floor:
        return Uncached("rotary scaling: no block ends beyond the short lengths")
    chunks = request.chunk is not None and request.chunk < request.tokens
    if chunks and (lengths.floor or not state.continues):
        # Passes of other lengths would give this model other keys, or other states.
        return Uncached("prefill_chunk_size, which changes this model's caches")
    return GenerateCall(cached, request, state, lengths, salt)
