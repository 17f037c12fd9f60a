"""One call of ``generate`` that uses the cache: restore, prefill in chunks, decode, store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.cache_utils import DynamicCache, StaticCache

from hybrid_pages.adapter.session import Session
from hybrid_pages.adapter.stats import CallCounts
from hybrid_pages.transformers.cache_io import States
from hybrid_pages.transformers.compat import cache_argument, is_out_of_memory
from hybrid_pages.transformers.model_states import ModelState
from hybrid_pages.transformers.model_trial import RANDOM, random_states, set_random_states
from hybrid_pages.transformers.model_watch import ModelWatch
from hybrid_pages.transformers.request import Request
from hybrid_pages.transformers.restore_check import ROOM, require_same_text
from hybrid_pages.transformers.rope import Regime
from hybrid_pages.transformers.runtime import ModelRuntime
from hybrid_pages.transformers.store import CacheStore
from hybrid_pages.transformers.versions import UnknownError, may_be_new, reason_of, untested

_log = logging.getLogger("hybrid_pages.transformers.prefix_cache")


@dataclass(frozen=True)
class Uncached:
    """A call that has to run without the cache, and why."""

    reason: str


@dataclass
class CachedModel:
    """A model with its store, and what one call leaves for the next.

    static_tokens: the room of the longest static cache so far. static_tried: what trying a static
    cache out has raised, or None, by the number of the model's state.
    """

    model: Any
    store: CacheStore
    watch: ModelWatch
    counts: CallCounts
    static_tokens: int = 0
    static_tried: dict[int, Exception | None] = field(default_factory=dict)

    def not_understood(self, doing: str, error: Exception) -> Uncached:
        """A newer library has failed in a call: why it runs uncached, logged once per reason."""
        reason = f"{type(error).__name__} while {doing}"
        if isinstance(error, UnknownError):
            reason = reason_of(error)
        if not self.counts.uncached[reason]:
            warn_uncached(self.model, reason, error)
        return Uncached(reason)


def warn_uncached(model: Any, reason: str, error: Exception) -> None:
    """Says in the log that a model, or a call of it, runs without the cache."""
    _log.warning(
        "%s runs without the cache (%s): compare stats().uncached",
        type(model).__name__,
        reason if str(error) in reason else f"{reason}: {error}",
    )


class GenerateCall:
    """One call of ``generate``.

    Args:
        cached: the model and its store.
        request: what the call asks for.
        state: the state of the model before the call.
        regime: the range of lengths whose rotary frequencies the prompt has.
        salt: calls of different salts share nothing.
    """

    def __init__(
        self,
        cached: CachedModel,
        request: Request,
        state: ModelState,
        regime: Regime,
        salt: str,
    ) -> None:
        self._cached, self._request, self._store = cached, request, cached.store
        self._state, self._regime = state, regime
        self._named = salt, f"{state.name}:{regime.name}"
        self._broken = False

    def generate(self, kwargs: dict[str, Any]) -> Any:
        """The result of ``model.generate``, or :class:`Uncached` while there is no answer yet."""
        with self._store.using(*self._named) as namespace:
            return self._generate(namespace, kwargs)

    def _generate(self, namespace: int, kwargs: dict[str, Any]) -> Any:
        cached, counts, tokens = self._cached, self._cached.counts, self._request.tokens
        prepared = self._prepare(namespace)
        if isinstance(prepared, Uncached):
            return prepared
        cache, session, restored = prepared
        follow, generators = _Follow(self, session), random_states(cached.model)
        try:
            result = cached.model.generate(**self._arguments(kwargs, cache, follow))
        except Exception as error:
            # As long as the caller has seen no token, the call can be repeated without the cache.
            if follow.steps or kwargs.get("streamer") is not None or not may_be_new(error):
                counts.served(tokens, restored)
                raise
            set_random_states(cached.model, generators)
            return cached.not_understood("generating", error)
        counts.served(tokens, restored)
        sequence = result if isinstance(result, torch.Tensor) else result.sequences
        self.store(session.finish, sequence[0])
        return result

    def store(self, step: Callable[[torch.Tensor], None], sequence: torch.Tensor) -> None:
        """Runs a step of the session that stores something.

        Where an untested library breaks it, nothing more of this call is stored.
        """
        if self._broken:
            return
        try:
            step(sequence)
        except Exception as error:
            if not may_be_new(error):
                raise
            self._broken = True
            self._store.moved.failed_stores += 1

    def _prepare(self, namespace: int) -> tuple[Any, Session[States], int] | Uncached:
        """A cache with the prompt up to the last boundary to be stored, its session,
        and how many tokens were restored."""
        doing = "restoring"
        generators = random_states(self._cached.model)
        try:
            cache = self._fresh()
            runtime = self._runtime(cache)
            session = self._session(namespace, runtime)
            restored = session.resume()
            doing = "prefilling"
            session.prefill()
            self._prefill_rest(runtime)
        except Exception as error:
            if is_out_of_memory(error):
                return Uncached(f"out of memory while {doing}")
            if not may_be_new(error):
                raise
            set_random_states(self._cached.model, generators)
            return self._cached.not_understood(doing, error)
        if not all(map(torch.equal, generators, random_states(self._cached.model))):
            # This long pass drew random numbers; the short ones that tried the model out did not.
            set_random_states(self._cached.model, generators)
            self._store.models.states.rule_out(self._state, RANDOM)
            return Uncached(RANDOM)
        return cache, session, restored

    def _prefill_rest(self, runtime: ModelRuntime) -> None:
        """Leaves `generate` no more tokens than one pass may compute."""
        chunk, tokens = self._request.chunk, self._request.tokens
        while chunk is not None and tokens - (seen := runtime.seen()) > chunk:
            runtime.compute(seen, seen + chunk)

    def _fresh(self) -> Any:
        config, tokens = self._cached.model.config, self._request.static_tokens
        if tokens is None:
            return DynamicCache(config=config)
        if untested():
            self._try_static()
        # No shorter than any before, so that code compiled for that length is used again.
        self._cached.static_tokens = max(self._cached.static_tokens, tokens)
        return StaticCache(config=config, max_cache_len=self._cached.static_tokens)

    def _try_static(self) -> None:
        model, tried = self._cached.model, self._cached.static_tried
        if self._state.number not in tried:
            failed = None
            try:
                require_same_text(
                    model,
                    self._store.layout,
                    lambda: StaticCache(config=model.config, max_cache_len=ROOM),
                )
            except Exception as error:
                if is_out_of_memory(error):  # it may be there next time
                    raise
                failed = error
            tried[self._state.number] = failed
        failed = tried[self._state.number]
        if failed is not None:
            raise failed

    def _runtime(self, cache: Any) -> ModelRuntime:
        return ModelRuntime(
            self._cached.model,
            cache,
            self._request.ids,
            self._store,
            continues=self._state.continues,
            changed=self._changed,
            chunk=self._request.chunk,
        )

    def _session(self, namespace: int, runtime: ModelRuntime) -> Session[States]:
        ids, regime = self._request.ids[0], self._regime
        return Session(
            self._store.entries, runtime, namespace, ids, floor=regime.floor, reach=regime.reach
        )

    def _changed(self) -> bool:
        """Whether the model has changed since the call began. Counts the change by its kind."""
        changed = self._cached.watch.changed_meanwhile(self._state)
        if changed is not None:
            self._cached.watch.changes[f"{changed} while computing"] += 1
        return changed is not None

    def _arguments(self, kwargs: dict[str, Any], cache: Any, follow: _Follow) -> dict[str, Any]:
        arguments = {name: value for name, value in kwargs.items() if name != "input_ids"}
        if self._request.names_cache:
            arguments["cache_implementation"] = None
        if self._request.chunk is not None:
            # One chunk is left, which some versions would begin at the first token of the prompt.
            arguments["prefill_chunk_size"] = None
        criteria = arguments.pop("stopping_criteria", None) or []
        return arguments | {
            "inputs": self._request.ids,
            cache_argument(): cache,
            "stopping_criteria": StoppingCriteriaList([*criteria, follow]),
        }


class _Follow(StoppingCriteria):  # type: ignore[misc]
    """Follows every step of decoding and never stops it."""

    def __init__(self, call: GenerateCall, session: Session[States]) -> None:
        self._call, self._session = call, session
        self.steps = 0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.steps += 1
        # The cache has seen all but the last token.
        self._call.store(self._session.passed, input_ids[0, :-1])
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
