"""One call of ``generate`` that uses the cache: restore, prefill in chunks, decode, store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.cache_utils import DynamicCache, StaticCache

from hybrid_pages.adapter.session import Session
from hybrid_pages.transformers.memory import is_out_of_memory
from hybrid_pages.transformers.request import Request
from hybrid_pages.transformers.rope import Regime
from hybrid_pages.transformers.runtime import ModelRuntime
from hybrid_pages.transformers.store import States
from hybrid_pages.transformers.watch import RANDOM, State, random_states, set_random_states

if TYPE_CHECKING:
    from hybrid_pages.transformers.prefix_cache import PrefixCache


@dataclass(frozen=True)
class Uncached:
    """A call that has to run without the cache, and why."""

    reason: str


class Run:
    """One request."""

    def __init__(
        self, owner: PrefixCache, request: Request, state: State, regime: Regime, salt: str
    ) -> None:
        self._owner, self._request, self._store = owner, request, owner.store
        self._state, self._regime = state, regime
        self._named = salt, f"{state.name}:{regime.name}"

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
        counts.served(tokens, restored)
        result = owner.model.generate(**self._arguments(kwargs, cache, session))
        sequence = result if isinstance(result, torch.Tensor) else result.sequences
        session.finish(sequence[0])
        return result

    def _prepare(self, namespace: int) -> tuple[Any, Session[States], int] | Uncached:
        """The cache, filled up to the last boundary that is wanted; how much of it was restored."""
        doing = "restoring"
        generators = random_states(self._owner.model)
        try:
            cache = self._fresh()
            session = self._session(namespace, cache)
            restored = session.resume()
            doing = "prefilling"
            session.prefill()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return Uncached(f"out of memory while {doing}")
        if not all(map(torch.equal, generators, random_states(self._owner.model))):
            # Long passes draw where those that tried the model out did not.
            set_random_states(self._owner.model, generators)
            self._store.models.rule_out(self._state, RANDOM)
            return Uncached(RANDOM)
        return cache, session, restored

    def _fresh(self) -> Any:
        config, tokens = self._owner.model.config, self._request.static_tokens
        if tokens is None:
            return DynamicCache(config=config)
        # As long as the longest so far: what was compiled for it fits again.
        self._owner._static_tokens = max(self._owner._static_tokens, tokens)
        return StaticCache(config=config, max_cache_len=self._owner._static_tokens)

    def _session(self, namespace: int, cache: Any) -> Session[States]:
        ids, model, store = self._request.ids, self._owner.model, self._store
        runtime = ModelRuntime(
            model,
            cache,
            ids,
            store,
            continues=self._state.continues,
            changed=self._changed,
        )
        regime = self._regime
        return Session(
            store.entries, runtime, namespace, ids[0], floor=regime.floor, reach=regime.reach
        )

    def _changed(self) -> bool:
        """Whether the model has changed since the call began; counted by what has."""
        changed = self._owner._watch.changed_meanwhile(self._state)
        if changed is not None:
            self._owner._watch.changes[f"{changed} while computing"] += 1
        return changed is not None

    def _arguments(
        self, kwargs: dict[str, Any], cache: Any, session: Session[States]
    ) -> dict[str, Any]:
        arguments = {name: value for name, value in kwargs.items() if name != "input_ids"}
        if self._request.names_cache:
            arguments["cache_implementation"] = None
        criteria = arguments.pop("stopping_criteria", None) or []
        return arguments | {
            "inputs": self._request.ids,
            "past_key_values": cache,
            "stopping_criteria": StoppingCriteriaList([*criteria, _Follow(session)]),
        }


class _Follow(StoppingCriteria):  # type: ignore[misc]
    """Follows every step of decoding and never stops it."""

    def __init__(self, session: Session[States]) -> None:
        self._session = session

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        # The cache has seen all but the last token.
        self._session.passed(input_ids[0, :-1])
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
