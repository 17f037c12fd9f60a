"""A model of mlx-lm and its prompt cache, as the runtime of a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from hybrid_pages import LeaseEntry, ReadLease
from hybrid_pages.adapter.entries import Checksums
from hybrid_pages.adapter.runtime import Runtime
from hybrid_pages.mlx import cache_parts
from hybrid_pages.mlx.cache_io import States, states_of
from hybrid_pages.mlx.store import CacheStore


class ModelRuntime(Runtime[States]):
    """A model, a fresh prompt cache, and the prompt that it computes.

    Args:
        model: for which the store was made.
        cache: made by ``make_prompt_cache``.
        ids: the prompt.
        store: copies blocks and states.
        step: the most tokens of one pass.
        stream: of mlx, on which the model is computed.
        progress: called after each pass with the number of tokens that the cache has seen.
        changed: tells whether the model has changed since the call began. Called with False before
            each pass, and with True, for a closer look, before anything is stored.
    """

    def __init__(
        self,
        model: Any,
        cache: list[Any],
        ids: Sequence[int],
        store: CacheStore,
        *,
        step: int,
        stream: Any,
        progress: Callable[[int], object],
        changed: Callable[[bool], bool],
    ) -> None:
        self.model = CountingModel(model, self)
        self.cache, self.count = cache, 0
        self._ids, self._store = ids, store
        self._step, self._stream, self._progress = step, stream, progress
        self._changed, self._has_changed = changed, False

    def seen(self) -> int:
        return self.count

    def compute(self, start: int, end: int) -> None:
        for first in range(start, end, self._step):
            ids = self._ids[first : min(end, first + self._step)]
            with mx.stream(self._stream):
                self.model(mx.array(ids)[None], cache=self.cache)
                mx.eval(cache_parts.arrays(self.cache))
            mx.clear_cache()
            self._progress(self.count)

    def states(self) -> States:
        return states_of(self._store.layout, self.cache)

    def keep(self, kept: States | None) -> States:
        return self.states()

    def copy_out(self, entries: Sequence[LeaseEntry], states: States | None) -> Checksums:
        with mx.stream(self._stream):
            return self._store.copy_out(entries, self.cache, states, 0)

    def copy_in(self, leases: Iterator[ReadLease], blocks: int) -> None:
        tokens = blocks * self._store.layout.block_tokens
        with mx.stream(self._stream):
            self._store.copy_in(leases, tokens, self.cache)
        self.count = tokens

    def first_held(self, class_index: int) -> int:
        return self._store.first_held(class_index, self.cache)

    def changed(self) -> bool:
        return self._note(sampled=True)

    def passing(self, tokens: int) -> None:
        """Called before a pass over so many tokens."""
        self._note(sampled=False)
        self.count += tokens

    def _note(self, *, sampled: bool) -> bool:
        # A change is never taken back: the states depend on the changed model.
        self._has_changed = self._has_changed or self._changed(sampled)
        return self._has_changed


class CountingModel(nn.Module):  # type: ignore[misc]
    """A model that announces each pass to a runtime."""

    def __init__(self, model: Any, runtime: ModelRuntime) -> None:
        super().__init__()
        self.model = model
        self._runtime = runtime

    def __call__(self, inputs: mx.array, *args: Any, **kwargs: Any) -> Any:
        self._runtime.passing(inputs.shape[1])
        return self.model(inputs, *args, **kwargs)
