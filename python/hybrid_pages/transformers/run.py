"""One call of ``generate`` that uses the cache: restore, prefill in chunks, decode, store."""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.cache_utils import DynamicCache, StaticCache

from hybrid_pages import HybridPagesError
from hybrid_pages.transformers.keys import Prefix
from hybrid_pages.transformers.layout import Part
from hybrid_pages.transformers.memory import is_out_of_memory
from hybrid_pages.transformers.request import Request
from hybrid_pages.transformers.rope import Regime
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
        self._size = owner.store.layout.block_tokens
        self._named = salt, f"{state.number}:{regime.name}"
        self._namespace = 0
        self._prefix = Prefix(request.ids, self._size)
        # Set once something has changed meanwhile: what this request computes has no name then.
        self._ended = False
        self._cache: Any = None
        # Blocks whose pages were offered to the store.
        self._offered = 0
        # The states at the last boundary that decoding passed.
        self._held: dict[Part, torch.Tensor] = {}
        self._held_at = 0

    def generate(self, kwargs: dict[str, Any]) -> Any:
        """What ``model.generate`` returns, or :class:`Uncached` while nothing has been answered."""
        with self._store.using(*self._named) as self._namespace:
            return self._generate(kwargs)

    def _generate(self, kwargs: dict[str, Any]) -> Any:
        owner, counts, tokens = self._owner, self._owner._counts, self._request.tokens
        limit = (tokens - 1) // self._size
        prepared = self._prepare(limit)
        if isinstance(prepared, Uncached):
            self._cache = None
            return prepared
        counts.requests += 1
        counts.hits += prepared > 0
        counts.prompt_tokens += tokens
        counts.restored_tokens += prepared
        blocks = len(self._prefix.keys)
        result = owner.model.generate(**self._arguments(kwargs))
        sequence = result if isinstance(result, torch.Tensor) else result.sequences
        self._finish(sequence[0], blocks, int(sequence.shape[1]) - tokens)
        return result

    def _prepare(self, limit: int) -> int | Uncached:
        """Fills the cache up to the last boundary that is wanted; how much of it was restored."""
        now = time.monotonic_ns() // 1_000_000
        index, keys, doing = self._store.index, self._prefix.keys, "restoring"
        generators = random_states(self._owner.model)
        try:
            admission = index.admit(
                self._namespace, keys, now=now, tokens=self._request.tokens, limit=limit
            )
            self._admitted = {*admission.boundaries, *([admission.fork] if admission.fork else [])}
            restored = self._restore(limit)
            doing = "prefilling"
            self._prefill(restored, limit)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return Uncached(f"out of memory while {doing}")
        if not all(map(torch.equal, generators, random_states(self._owner.model))):
            # Long passes draw where those that tried the model out did not.
            set_random_states(self._owner.model, generators)
            self._store.models.refuse(self._state, RANDOM)
            return Uncached(RANDOM)
        return restored

    def _restore(self, limit: int) -> int:
        self._cache = self._fresh()
        keys = self._prefix.keys
        hit = self._store.index.lookup(self._namespace, keys, limit=limit).host
        if hit * self._size <= self._regime.floor:
            return 0
        if not (hit and (self._state.continues or self._can_step(hit))):
            return 0
        restored = self._store.load(self._namespace, keys, self._cache, limit=limit)
        if not restored:
            # The load failed and dropped what it wanted: it is worth as much as before.
            self._admitted.add(hit)
        self._offered = restored // self._size
        return restored

    def _can_step(self, blocks: int) -> bool:
        """Whether few enough tokens follow a boundary to be computed one by one."""
        return self._request.tokens - blocks * self._size <= self._size

    def _fresh(self) -> Any:
        config, tokens = self._owner.model.config, self._request.static_tokens
        if tokens is None:
            return DynamicCache(config=config)
        # As long as the longest so far: what was compiled for it fits again.
        self._owner._static_tokens = max(self._owner._static_tokens, tokens)
        return StaticCache(config=config, max_cache_len=self._owner._static_tokens)

    def _prefill(self, start: int, limit: int) -> None:
        """Computes up to the last admitted boundary, and stops at each of them.

        A model that goes on from a state by single tokens only computes all but the last one here.
        """
        done = start // self._size
        # One chunk is one forward pass, and its keys are those of its own length.
        first = max(done, self._regime.floor // self._size)
        stops = sorted(stop for stop in self._admitted if first < stop <= limit)
        if not self._state.continues:
            stops = [stop for stop in stops[-1:] if self._can_step(stop)]
        kept = self._store.layout.kept_tokens(self._cache)
        # Window layers keep so many whole blocks: a longer chunk would lose pages.
        longest = None if kept is None else kept // self._size
        if longest is not None and self._regime.floor and not done:
            return
        for stop in stops:
            while done < stop:
                end = stop if longest is None else min(stop, done + longest)
                self._compute(done * self._size, end * self._size)
                done = end
                self._publish(end, with_states=end == stop)
        if done and not self._state.continues:
            self._compute(done * self._size, self._request.tokens - 1)

    def _compute(self, start: int, end: int) -> None:
        """Runs the prompt's tokens [start, end) through the model."""
        step = end - start if not start or self._state.continues else 1
        for first in range(start, end, step or 1):
            ids = self._request.ids[:, first : first + step]
            positions = torch.arange(first, first + step, device=ids.device)[None]
            optional = {"position_ids": positions, "logits_to_keep": 1}
            accepted = inspect.signature(self._owner.model.forward).parameters
            self._owner.model(
                input_ids=ids,
                past_key_values=self._cache,
                use_cache=True,
                **{key: value for key, value in optional.items() if key in accepted},
            )

    def _publish(self, end: int, *, with_states: bool) -> None:
        """Stores the pages up to a boundary that the cache stands on, and its states."""
        states = self._store.states(self._cache) if with_states else None
        if self._offer(end, self._cache, states):
            self._offered = end

    def _offer(self, end: int, cache: Any | None, states: States | None) -> bool:
        """Whether it could be stored: what could not is computed again one day."""
        keys = self._prefix.keys[:end]
        if self._ended or self._is_past_reach(end):
            return False
        changed = self._owner._watch.changed_meanwhile(self._state)
        if changed is not None:
            self._owner._watch.changes[f"{changed} while computing"] += 1
            self._ended = True
            return False
        try:
            self._store.publish(self._namespace, keys, cache, first=self._offered, states=states)
        except Exception as error:
            if not (isinstance(error, HybridPagesError) or is_out_of_memory(error)):
                raise
            self._store.moved.failed_stores += 1
            return False
        return True

    def _is_past_reach(self, end: int) -> bool:
        """Whether keys up to a boundary are not those that other prompts of the regime get."""
        return self._regime.reach is not None and end * self._size > self._regime.reach

    def _arguments(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        arguments = {name: value for name, value in kwargs.items() if name != "input_ids"}
        if self._request.names_cache:
            arguments["cache_implementation"] = None
        criteria = arguments.pop("stopping_criteria", None) or []
        return arguments | {
            "inputs": self._request.ids,
            "past_key_values": self._cache,
            "stopping_criteria": StoppingCriteriaList([*criteria, _Watch(self)]),
        }

    def passed(self, sequence: torch.Tensor) -> None:
        """Called after each step, when the cache has seen all of a sequence but its last token."""
        seen = sequence.shape[0] - 1
        end = seen // self._size
        if self._ended or seen % self._size or end <= self._offered or self._is_past_reach(end):
            return
        if self._store.layout.seen(self._cache) != seen:
            return
        self._prefix.extend(sequence[:seen])
        admitted = end in self._admitted
        self._publish(end, with_states=admitted)
        if not admitted and self._offered == end:
            self._hold(end)

    def _hold(self, end: int) -> None:
        """Keeps the states at a boundary until the text ends or another boundary comes."""
        try:
            for part, state in self._store.states(self._cache).items():
                if part in self._held:
                    self._held[part].copy_(state)
                else:
                    self._held[part] = state.clone()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._held = {}
            self._store.moved.failed_stores += 1
        self._held_at = end

    def _finish(self, sequence: torch.Tensor, prompt_blocks: int, output_tokens: int) -> None:
        """Stores the states at the last boundary of the output: where a next turn resumes."""
        if self._held and self._held_at == self._offered:
            self._offer(self._held_at, None, self._held)
        if prompt_blocks:
            self._prefix.extend(sequence)
            self._store.index.finish(
                self._namespace,
                self._prefix.keys,
                end=prompt_blocks,
                output_tokens=output_tokens,
            )


class _Watch(StoppingCriteria):  # type: ignore[misc]
    """Sees every step and stops none."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self._run.passed(input_ids[0])
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
