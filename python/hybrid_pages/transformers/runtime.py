"""A transformers model and its cache, as the runtime of a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from hybrid_pages import LeaseEntry, ReadLease
from hybrid_pages.adapter.entries import Checksums
from hybrid_pages.adapter.runtime import Runtime
from hybrid_pages.transformers.cache_io import States
from hybrid_pages.transformers.compat import forward_arguments, is_out_of_memory
from hybrid_pages.transformers.layout import CacheTensor
from hybrid_pages.transformers.store import CacheStore


class ModelRuntime(Runtime[States]):
    """A model, a fresh cache, and the prompt that it computes.

    Args:
        model: for which the store was made.
        cache: dynamic or static, of one row.
        ids: the prompt, ``[1, tokens]``.
        store: copies blocks and states.
        continues: whether a pass over several tokens starts from the states in the cache.
        changed: tells whether the model has changed since the call began.
        chunk: how many tokens one pass may compute; None for any number.
    """

    def __init__(
        self,
        model: Any,
        cache: Any,
        ids: torch.Tensor,
        store: CacheStore,
        *,
        continues: bool,
        changed: Callable[[], bool],
        chunk: int | None = None,
    ) -> None:
        self._model, self._cache, self._ids, self._store = model, cache, ids, store
        self._continues, self._changed = continues, changed
        self._chunk = chunk

    def seen(self) -> int:
        return self._store.layout.seen(self._cache)

    def compute(self, start: int, end: int) -> None:
        step = self._chunk or end - start
        for first in range(start, end, step or 1):
            self._pass(first, min(end, first + step))

    def _pass(self, start: int, end: int) -> None:
        ids = self._ids[:, start:end]
        positions = torch.arange(start, end, device=ids.device)[None]
        optional = {"position_ids": positions, "logits_to_keep": 1}
        self._model(input_ids=ids, **forward_arguments(self._model, self._cache, optional))

    def states(self) -> States:
        return self._store.states(self._cache)

    def keep(self, kept: States | None) -> States:
        copies: dict[CacheTensor, torch.Tensor] = dict(kept or {})
        for spec, state in self.states().items():
            if spec in copies:
                copies[spec].copy_(state)
            else:
                copies[spec] = state.clone()
        return copies

    def copy_out(self, entries: Sequence[LeaseEntry], states: States | None) -> Checksums:
        return self._store.copy_out(entries, self._cache, states)

    def copy_in(self, leases: Iterator[ReadLease], blocks: int) -> None:
        self._store.copy_in(leases, blocks, self._cache)

    def first_held(self, class_index: int) -> int:
        return self._store.first_held(class_index, self._cache)

    def continues(self) -> bool:
        return self._continues

    def kept_tokens(self) -> int | None:
        return self._store.layout.kept_tokens(self._cache)

    def changed(self) -> bool:
        return self._changed()

    def is_out_of_memory(self, error: BaseException) -> bool:
        return is_out_of_memory(error)
