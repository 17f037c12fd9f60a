"""One call of ``generate`` that uses the cache: restore, prefill in chunks, decode, store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.cache_utils import DynamicCache, StaticCache

from hybrid_pages.adapter.session import Session
from hybrid_pages.transformers.calls import cache_argument
from hybrid_pages.transformers.memory import is_out_of_memory
from hybrid_pages.transformers.moving import States
from hybrid_pages.transformers.rehearsal import ROOM, rehearse
from hybrid_pages.transformers.request import Request
from hybrid_pages.transformers.rope import Regime
from hybrid_pages.transformers.runtime import ModelRuntime
from hybrid_pages.transformers.support import may_be_new, untested
from hybrid_pages.transformers.watch import RANDOM, State, random_states, set_random_states

if TYPE_CHECKING:
    from hybrid_pages.transformers.prefix_cache import PrefixCache
    from hybrid_pages.transformers.store import CacheStore


@dataclass(frozen=True)
class Uncached:
    """A call that has to run without the cache, and why."""

    reason: str


class Run:
    """One request."""

    def __init__(
        self,
        owner: PrefixCache,
        store: CacheStore,
        request: Request,
        state: State,
        regime: Regime,
        salt: str,
    ) -> None:
        self._owner, self._request, self._store = owner, request, store
        self._state, self._regime = state, regime
        self._named = salt, f"{state.name}:{regime.name}"
        self._broken = False

    def generate(self, kwargs: dict[str, Any]) -> Any:
        """The result of ``model.generate``, or :class:`Uncached` while there is no answer yet."""
        with self._store.using(*self._named) as namespace:
            return self._generate(namespace, kwargs)

    def _generate(self, namespace: int, kwargs: dict[str, Any]) -> Any:
        owner, counts, tokens = self._owner, self._owner._counts, self._request.tokens
        prepared = self._prepare(namespace)
        if isinstance(prepared, Uncached):
            return prepared
        cache, session, restored = prepared
        follow, generators = _Follow(self, session), random_states(owner.model)
        try:
            result = owner.model.generate(**self._arguments(kwargs, cache, follow))
        except Exception as error:
            # Nobody has seen a token yet: what another version does not take is done without it.
            if follow.steps or kwargs.get("streamer") is not None or not may_be_new(error):
                counts.served(tokens, restored)
                raise
            set_random_states(owner.model, generators)
            return owner.unknown("generating", error)
        counts.served(tokens, restored)
        sequence = result if isinstance(result, torch.Tensor) else result.sequences
        self.store(session.finish, sequence[0])
        return result

    def store(self, step: Callable[[torch.Tensor], None], sequence: torch.Tensor) -> None:
        """Lets the session follow. What an unknown library breaks costs what would be stored."""
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
        """The cache, filled up to the last boundary that is wanted; how much of it was restored."""
        doing = "restoring"
        generators = random_states(self._owner.model)
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
            set_random_states(self._owner.model, generators)
            return self._owner.unknown(doing, error)
        if not all(map(torch.equal, generators, random_states(self._owner.model))):
            # Long passes draw where those that tried the model out did not.
            set_random_states(self._owner.model, generators)
            self._store.models.rule_out(self._state, RANDOM)
            return Uncached(RANDOM)
        return cache, session, restored

    def _prefill_rest(self, runtime: ModelRuntime) -> None:
        """Leaves `generate` no more tokens than one pass may compute."""
        chunk, tokens = self._request.chunk, self._request.tokens
        while chunk is not None and tokens - (seen := runtime.seen()) > chunk:
            runtime.compute(seen, seen + chunk)

    def _fresh(self) -> Any:
        config, tokens = self._owner.model.config, self._request.static_tokens
        if tokens is None:
            return DynamicCache(config=config)
        if untested():
            self._rehearse_static()
        # As long as the longest so far: what was compiled for it fits again.
        self._owner._static_tokens = max(self._owner._static_tokens, tokens)
        return StaticCache(config=config, max_cache_len=self._owner._static_tokens)

    def _rehearse_static(self) -> None:
        model, tried = self._owner.model, self._owner._static_tried
        if self._state.number not in tried:
            failed = None
            try:
                rehearse(
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
            self._owner.model,
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
        """Whether the model has changed since the call began; counted by what has."""
        changed = self._owner._watch.changed_meanwhile(self._state)
        if changed is not None:
            self._owner._watch.changes[f"{changed} while computing"] += 1
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

    def __init__(self, run: Run, session: Session[States]) -> None:
        self._run, self._session = run, session
        self.steps = 0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.steps += 1
        # The cache has seen all but the last token.
        self._run.store(self._session.passed, input_ids[0, :-1])
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
