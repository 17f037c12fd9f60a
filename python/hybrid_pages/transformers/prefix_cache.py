"""``generate`` with prefix reuse: restore the longest known prefix, compute the rest, store it."""

from __future__ import annotations

import inspect
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.cache_utils import DynamicCache, StaticCache

from hybrid_pages import ForeignError, HybridPagesError, InvalidArgumentError
from hybrid_pages.transformers.identity import (
    WeightsDigest,
    adapters,
    model_identity,
    weights_version,
)
from hybrid_pages.transformers.keys import Prefix
from hybrid_pages.transformers.layout import Part
from hybrid_pages.transformers.probe import continues, read_layout
from hybrid_pages.transformers.request import Request, read_request
from hybrid_pages.transformers.store import CacheStore, States, require_model
from hybrid_pages.transformers.support import Closing


@dataclass(frozen=True)
class Stats:
    """Counts since the start, and what is in host memory now.

    requests: calls that looked up their prefix. hits: those that restored some of it. uncached:
    other calls, by the reason why they ran without the cache. prompt_tokens = restored_tokens +
    computed_tokens, of the requests. Entries are pages (full attention), windows (sliding) and
    checkpoints (recurrent states); resident_bytes is what they take.
    """

    requests: int
    hits: int
    uncached: dict[str, int]
    prompt_tokens: int
    restored_tokens: int
    computed_tokens: int
    restored_bytes: int
    stored_bytes: int
    failed_loads: int
    failed_stores: int
    pages: int
    windows: int
    checkpoints: int
    resident_bytes: int
    host_bytes: int


@dataclass
class _Counts:
    requests: int = 0
    hits: int = 0
    prompt_tokens: int = 0
    restored_tokens: int = 0
    uncached: Counter[str] = field(default_factory=Counter)


class PrefixCache(Closing):
    """A model whose ``generate`` keeps what it computed of prompts, and resumes from it.

    :meth:`generate` takes and returns what ``model.generate`` does. Calls that cannot use the cache
    run without it and are counted by reason: batches of several rows, padding, beams, assisted and
    other decoding modes, embeddings or other inputs than ids, a cache of the caller's,
    ``use_cache=False``, attentions or hidden states as outputs, training mode.

    Thread-safe: calls from several threads run one after the other. Weights that are changed in
    place or replaced are noticed, and what was stored before is not used any more.

    Args:
        model: a causal language model with attention layers, in evaluation mode, on its device.
        host_gb: host memory for pages and checkpoints, in GiB.
        block_tokens: tokens a block; a prompt is restored in whole blocks. A sliding window has to
            be wider.
        policy: which entries stay when the budget is full, and which boundaries get a checkpoint.
        weights: how weights enter the identity of what is stored, see :class:`CacheStore`.
        verify_on_load: compare checksums before restored bytes are used.
        store: one made for the same model, to share it; the arguments about memory are then its.
            It is not closed with this object.

    Raises:
        UnsupportedError: the model or its cache is of a kind that cannot be stored.
        BudgetError: host_gb cannot hold one entry of each kind.
        ForeignError: store was made for another model.
    """

    def __init__(
        self,
        model: Any,
        *,
        host_gb: float = 4.0,
        block_tokens: int = 64,
        policy: str = "reuse",
        weights: WeightsDigest = "sampled",
        verify_on_load: bool = False,
        store: CacheStore | None = None,
    ) -> None:
        self.model = model
        self.store = store or CacheStore(
            model,
            host_gb=host_gb,
            block_tokens=block_tokens,
            policy=policy,
            weights=weights,
            verify_on_load=verify_on_load,
        )
        self._owns_store = store is None
        if store is not None:
            require_model(model)
            layout = read_layout(model, store.layout.block_tokens, model_identity(model, weights))
            difference = store.geometry.difference(layout.geometry)
            if difference is not None:
                raise ForeignError(f"store: made for another model: {difference}")
        self._require_windows()
        self._lock = threading.RLock()
        self._counts = _Counts()
        self._weights = weights_version(model)
        self._version = 0
        self._static_tokens = 0
        self._accepts = set(inspect.signature(model.forward).parameters)
        self._continues = continues(model, self.store.layout)
        self._closed = False

    def generate(self, inputs: Any = None, *, cache_salt: str = "", **kwargs: Any) -> Any:
        """What ``model.generate`` returns for these arguments, sooner if a prefix is known.

        Args:
            inputs: ``input_ids`` of ``[1, tokens]``; may be named so, too.
            cache_salt: requests of different salts share nothing.
            kwargs: the arguments of ``model.generate``.

        Raises:
            InvalidArgumentError: the cache is closed.
            What ``model.generate`` raises. A copy that fails is a miss.
        """
        with self._lock, torch.no_grad():
            if self._closed:
                raise InvalidArgumentError("PrefixCache: expected an open one, found it closed")
            request = self._changed() or read_request(self.model, inputs, kwargs)
            if isinstance(request, str):
                self._counts.uncached[request] += 1
                return self.model.generate(inputs, **kwargs)
            return _Run(self, request, cache_salt).generate(kwargs)

    def stats(self) -> Stats:
        """Counts since the start, and what is in host memory now."""
        with self._lock:
            counts, moved, now = self._counts, self.store.moved, self.store.index.stats()
            return Stats(
                requests=counts.requests,
                hits=counts.hits,
                uncached=dict(counts.uncached),
                prompt_tokens=counts.prompt_tokens,
                restored_tokens=counts.restored_tokens,
                computed_tokens=counts.prompt_tokens - counts.restored_tokens,
                restored_bytes=moved.restored_bytes,
                stored_bytes=moved.stored_bytes,
                failed_loads=moved.failed_loads,
                failed_stores=moved.failed_stores,
                pages=now["pages"],
                windows=now["windows"],
                checkpoints=now["checkpoints"],
                resident_bytes=now["page_bytes"] + now["window_bytes"] + now["checkpoint_bytes"],
                host_bytes=self.store.arena.nbytes,
            )

    def clear(self) -> None:
        """Forgets every page and checkpoint."""
        with self._lock:
            self.store.clear()

    def close(self) -> None:
        """Ends the copy threads, unless the store is shared. Nothing the second time."""
        with self._lock:
            self._closed = True
            if self._owns_store:
                self.store.close()

    def _require_windows(self) -> None:
        size = self.store.layout.block_tokens
        for group in self.store.geometry.groups:
            if group.window_tokens is not None and group.window_tokens <= size:
                raise InvalidArgumentError(
                    f"block_tokens: expected less than the sliding window of "
                    f"{group.window_tokens} tokens, found {size}"
                )

    def _changed(self) -> str | None:
        """Notices weights that changed. A reason if the model is not the one that it was."""
        if adapters(self.model):
            return "adapters"
        version = weights_version(self.model)
        if version != self._weights:
            layout = self.store.layout
            now = read_layout(self.model, layout.block_tokens, layout.geometry.identity)
            if now.groups != layout.groups:
                return "model changed"
            self._weights, self._version = version, self._version + 1
        return None


class _Run:
    """One request."""

    def __init__(self, owner: PrefixCache, request: Request, salt: str) -> None:
        self._owner, self._request, self._store = owner, request, owner.store
        self._size = owner.store.layout.block_tokens
        self._namespace = self._store.namespace(salt, owner._version)
        self._prefix = Prefix(request.ids, self._size)
        self._cache: Any = None
        # Blocks whose pages were offered to the store.
        self._offered = 0
        # The states at the last boundary that decoding passed.
        self._held: dict[Part, torch.Tensor] = {}
        self._held_at = 0

    def generate(self, kwargs: dict[str, Any]) -> Any:
        owner, counts, tokens = self._owner, self._owner._counts, self._request.tokens
        limit = (tokens - 1) // self._size
        now = time.monotonic_ns() // 1_000_000
        index, keys = self._store.index, self._prefix.keys
        admission = index.admit(self._namespace, keys, now=now, tokens=tokens, limit=limit)
        self._admitted = {*admission.boundaries, *([admission.fork] if admission.fork else [])}
        restored = self._restore(limit)
        counts.requests += 1
        counts.hits += restored > 0
        counts.prompt_tokens += tokens
        counts.restored_tokens += restored
        self._prefill(restored, limit)
        result = owner.model.generate(**self._arguments(kwargs))
        sequence = result if isinstance(result, torch.Tensor) else result.sequences
        self._finish(sequence[0], len(keys), int(sequence.shape[1]) - tokens)
        return result

    def _restore(self, limit: int) -> int:
        self._cache = self._fresh()
        keys = self._prefix.keys
        hit = self._store.index.lookup(self._namespace, keys, limit=limit).blocks
        if not (hit and (self._owner._continues or self._can_step(hit))):
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
        stops = sorted(stop for stop in self._admitted if done < stop <= limit)
        if not self._owner._continues:
            stops = [stop for stop in stops[-1:] if self._can_step(stop)]
        kept = self._store.layout.kept_tokens(self._cache)
        # Window layers keep so many whole blocks: a longer chunk would lose pages.
        longest = None if kept is None else kept // self._size
        for stop in stops:
            while done < stop:
                end = stop if longest is None else min(stop, done + longest)
                self._compute(done * self._size, end * self._size)
                done = end
                self._publish(end, with_states=end == stop)
        if done and not self._owner._continues:
            self._compute(done * self._size, self._request.tokens - 1)

    def _compute(self, start: int, end: int) -> None:
        """Runs the prompt's tokens [start, end) through the model."""
        step = end - start if not start or self._owner._continues else 1
        for first in range(start, end, step or 1):
            ids = self._request.ids[:, first : first + step]
            positions = torch.arange(first, first + step, device=ids.device)[None]
            optional = {"position_ids": positions, "logits_to_keep": 1}
            self._owner.model(
                input_ids=ids,
                past_key_values=self._cache,
                use_cache=True,
                **{key: value for key, value in optional.items() if key in self._owner._accepts},
            )

    def _publish(self, end: int, *, with_states: bool) -> None:
        """Stores the pages up to a boundary that the cache stands on, and its states."""
        states = self._store.states(self._cache) if with_states else None
        if self._offer(end, self._cache, states):
            self._offered = end

    def _offer(self, end: int, cache: Any | None, states: States | None) -> bool:
        """Whether it could be stored: what could not is computed again one day."""
        keys = self._prefix.keys[:end]
        try:
            self._store.publish(self._namespace, keys, cache, first=self._offered, states=states)
        except HybridPagesError:
            self._store.moved.failed_stores += 1
            return False
        return True

    def _arguments(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        arguments = {name: value for name, value in kwargs.items() if name != "input_ids"}
        if self._request.static_tokens is not None:
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
        if seen % self._size or end <= self._offered:
            return
        if self._store.layout.seen(self._cache) != seen:
            return
        self._prefix.extend(sequence[:seen])
        admitted = end in self._admitted
        self._publish(end, with_states=admitted)
        if not admitted:
            for part, state in self._store.states(self._cache).items():
                if part in self._held:
                    self._held[part].copy_(state)
                else:
                    self._held[part] = state.clone()
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

    def __init__(self, run: _Run) -> None:
        self._run = run

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self._run.passed(input_ids[0])
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
