"""``stream_generate`` with prefix reuse: restore the longest known prefix, compute the rest."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
from mlx_lm.generate import generation_stream, wired_limit
from mlx_lm.generate import stream_generate as upstream
from mlx_lm.models.cache import make_prompt_cache

from hybrid_pages import InvalidArgumentError
from hybrid_pages.adapter.disk import DEADLINE_MS
from hybrid_pages.adapter.session import Session
from hybrid_pages.adapter.stats import CallCounts, Stats
from hybrid_pages.adapter.store import Closing
from hybrid_pages.mlx.cache_io import States
from hybrid_pages.mlx.differences import PROCESSORS_SEE_PROMPTS, on_stream
from hybrid_pages.mlx.model_watch import ModelState
from hybrid_pages.mlx.no_store import NoStore
from hybrid_pages.mlx.request import read_prompt, uncached_reason
from hybrid_pages.mlx.runtime import ModelRuntime
from hybrid_pages.mlx.store import CacheStore
from hybrid_pages.mlx.versions import OF_THE_USER, newer, tolerated

__all__ = ["PrefixCache", "Stats"]

_STEP = 2048


@dataclasses.dataclass(frozen=True)
class _Begun:
    """A prompt whose first tokens are in a cache.

    given: arguments for generating the rest. at: when the request began.
    """

    ids: list[int]
    runtime: ModelRuntime
    session: Session[States]
    given: dict[str, Any]
    at: float


class PrefixCache(Closing):
    """A model of mlx-lm whose texts resume from the prefixes that it has seen.

    :meth:`stream_generate` and :meth:`generate` take and return what mlx-lm's do. Calls that cannot
    use the cache run without it and are counted by reason: a draft model, a cache of the caller's,
    ``kv_bits`` and ``max_kv_size`` where they change the text, embeddings, arguments that are not
    known, a model in training mode. With an mlx-lm or mlx newer than the tested versions, calls in
    which something is not understood run without the cache, too, after one warning.

    Before each call, before each pass, and before anything is stored, the model is checked for
    changes: weights that were replaced or written to, and layers, LoRA adapters and settings. What
    was stored before a change is not used after it. To see every write, the cache keeps references
    to the weights. When a model gets new weights, the memory of the old ones is freed at the next
    call, :meth:`look` or :meth:`close`. Some changes may not show: see :meth:`weights_changed`.

    Several texts may be generated in turns, and by several threads as far as mlx allows it.

    Args:
        model: from ``mlx_lm.load``.
        host_gb: host memory for entries, in GiB; ``"auto"`` for half of what is free.
        block_tokens: tokens per block.
        policy: which entries stay when the budget is full.
        verify_on_load: compare checksums before restored bytes are used.
        disk_path: a directory for entries that outlive the process. A later process finds them
            with the same model, by every byte of its weights, under the same settings.
        disk_gb: quota of disk_path, in GiB.
        disk_deadline_ms: how long a restore waits for the disk. A call to the disk that takes
            longer has failed.
        encrypt_key: what disk_path is encrypted with, see :class:`CacheStore`.

    Raises:
        HybridPagesError: as :class:`CacheStore`.
    """

    def __init__(
        self,
        model: Any,
        *,
        host_gb: float | str = 4.0,
        block_tokens: int = 32,
        policy: str = "reuse",
        verify_on_load: bool = False,
        disk_path: str | os.PathLike[str] = "",
        disk_gb: float = 0.0,
        disk_deadline_ms: int = DEADLINE_MS,
        encrypt_key: str | os.PathLike[str] | None = None,
    ) -> None:
        self.model = model
        # A CacheStore, or a NoStore in its place.
        self.store: Any = NoStore(_newer())
        with tolerated("store the caches of this model", but=OF_THE_USER):
            self.store = CacheStore(
                model,
                host_gb=host_gb,
                block_tokens=block_tokens,
                policy=policy,
                verify_on_load=verify_on_load,
                disk_path=disk_path,
                disk_gb=disk_gb,
                disk_deadline_ms=disk_deadline_ms,
                encrypt_key=encrypt_key,
            )
        self._watch = self.store.watch
        self._counts = CallCounts()
        self._lock = threading.RLock()
        self._closed = False

    def stream_generate(
        self,
        tokenizer: Any,
        prompt: Any,
        max_tokens: int = 256,
        draft_model: Any = None,
        stream: Any = generation_stream,
        *,
        cache_salt: str = "",
        **kwargs: Any,
    ) -> Iterator[Any]:
        """Yields what ``mlx_lm.stream_generate`` yields, sooner if a prefix is known.

        All arguments but ``cache_salt`` are those of mlx-lm.

        Args:
            tokenizer: of the model.
            prompt: a text, tokens or an array of tokens.
            max_tokens: to generate at most.
            draft_model: if there is one, the cache is not used.
            stream: where the model computes.
            cache_salt: calls of different salts share nothing.
            **kwargs: other arguments.

        Raises:
            InvalidArgumentError: the cache is closed, or mlx-lm is older than 0.32 and computes
                on its own stream alone. A copy that fails is a miss; what mlx-lm
                raises is passed on.
        """
        if self._closed:
            raise InvalidArgumentError("PrefixCache: expected an open one, found it closed")
        reason, ids = None, read_prompt(tokenizer, prompt)
        if draft_model is not None:
            reason = "draft_model"
        elif isinstance(ids, str):
            reason = ids
        elif max_tokens == 0:
            reason = "max_tokens"
        else:
            most = len(ids) + max_tokens if max_tokens > 0 else None
            with tolerated("look at a model") as failed:
                state = self.look()
                reason = uncached_reason(self.model, kwargs, most) or state.uncached
            if not failed and reason is None:
                with self.store.using(cache_salt, state.name) as namespace:
                    with tolerated("restore a prompt") as failed:
                        begun = self._begin(ids, stream, namespace, state, kwargs)
                    if not failed:
                        yield from self._run(tokenizer, begun, max_tokens, stream)
                        return
            reason = _newer() if failed else reason
        with self._lock:
            self._counts.uncached[str(reason)] += 1
        yield from upstream(
            self.model, tokenizer, prompt, max_tokens, draft_model, **on_stream(stream), **kwargs
        )

    def generate(self, tokenizer: Any, prompt: Any, verbose: bool = False, **kwargs: Any) -> str:
        """Returns what ``mlx_lm.generate`` returns, sooner if a prefix is known.

        Args:
            tokenizer: of the model.
            prompt: a text, tokens or their array.
            verbose: print the text while it is generated.
            **kwargs: arguments of :meth:`stream_generate`.

        Raises:
            InvalidArgumentError: the cache is closed; see :meth:`stream_generate`.
        """
        text, response = "", None
        if verbose:
            print("=" * 10)
        for response in self.stream_generate(tokenizer, prompt, **kwargs):
            if verbose:
                print(response.text, end="", flush=True)
            text += response.text
        if verbose:
            print("\n" + "=" * 10)
            if not text or response is None:
                print("No text generated for this prompt")
            else:
                print(
                    f"Prompt: {response.prompt_tokens} tokens, "
                    f"{response.prompt_tps:.3f} tokens-per-sec\n"
                    f"Generation: {response.generation_tokens} tokens, "
                    f"{response.generation_tps:.3f} tokens-per-sec\n"
                    f"Peak memory: {response.peak_memory:.3f} GB"
                )
        return text

    def look(self) -> ModelState:
        """Checks the model for changes, and frees weights that it no longer has."""
        with self._lock:
            return self._watch.look()

    def weights_changed(self) -> None:
        """Tells that weights, or the code that uses them, have changed in a way that may not show.

        Needed after writes through a view that numpy or another library has of an array's memory,
        if they leave the 16 compared elements as they are, such as those to one row of a matrix;
        and after patches of functions inside mlx or mlx-lm. Nothing that was stored until now is
        used again.
        """
        with self._lock:
            self._watch.weights_changed()

    def stats(self) -> Stats:
        """Counts since the start, and the entries in host memory now."""
        with self._lock:
            store = self.store
            return self._counts.stats(self._watch.changes, store.moved, store.index, store.arena)

    def clear(self) -> None:
        """Forgets every page and checkpoint."""
        self.store.clear()

    def close(self) -> None:
        """Ends the copy threads, and drops the model. The second call does nothing."""
        self._closed = True
        with self._lock:
            self._watch.drop()
        self.store.close()

    # ---- one request

    def _begin(
        self,
        ids: list[int],
        stream: Any,
        namespace: int,
        state: ModelState,
        kwargs: dict[str, Any],
    ) -> _Begun:
        """Restores the longest known prefix, and computes up to the last state to be stored."""
        began, total = time.perf_counter(), len(ids)
        # Arguments that are None, such as `prompt_cache`, have no effect. Nor have the two below.
        given = {name: value for name, value in kwargs.items() if value is not None}
        for name in ("max_kv_size", "kv_bits"):
            given.pop(name, None)
        tell = given.pop("prompt_progress_callback", lambda *_: None)
        tell(0, total)
        runtime = ModelRuntime(
            self.model,
            make_prompt_cache(self.model),
            ids,
            self.store,
            step=given.get("prefill_step_size", _STEP),
            stream=stream,
            progress=lambda seen: tell(seen, total),
            changed=lambda sampled: self._changed(state, sampled),
        )
        session: Session[States] = Session(self.store.entries, runtime, namespace, ids)
        with wired_limit(self.model, [stream]):
            restored = session.resume()
            session.prefill()
        with self._lock:
            self._counts.served(total, restored)
        done = runtime.count
        processors = given.pop("logits_processors", ())
        seen = ids[:done] if PROCESSORS_SEE_PROMPTS else []
        given["logits_processors"] = [whole(each, seen) for each in processors]
        given["prompt_progress_callback"] = lambda seen, _: (
            tell(done + seen, total) if seen else None
        )
        return _Begun(ids, runtime, session, given, began)

    def _run(self, tokenizer: Any, begun: _Begun, max_tokens: int, stream: Any) -> Iterator[Any]:
        runtime, total = begun.runtime, len(begun.ids)
        sequence, tps = list(begun.ids), 0.0
        texts = upstream(
            runtime.model,
            tokenizer,
            mx.array(begun.ids[runtime.count :]),
            max_tokens,
            prompt_cache=runtime.cache,
            **on_stream(stream),
            **begun.given,
        )
        failed: list[Exception] = []
        try:
            for response in texts:
                if not tps:
                    tps = total / (time.perf_counter() - begun.at)
                sequence.append(response.token)
                if not failed:
                    with tolerated("store a text") as failed:
                        begun.session.passed(sequence)
                with tolerated("correct a text's numbers"):
                    response = dataclasses.replace(response, prompt_tokens=total, prompt_tps=tps)
                yield response
        except GeneratorExit:
            texts.close()
            self._end(begun, sequence, failed)
            raise
        self._end(begun, sequence, failed)

    def _end(self, begun: _Begun, sequence: list[int], failed: list[Exception]) -> None:
        if not failed:
            with tolerated("store a text"):
                begun.session.finish(sequence)

    def _changed(self, state: ModelState, sampled: bool) -> bool:
        """Whether the model has changed since a text began. Counts changes."""
        with self._lock:
            changed = self._watch.changed_since(state, sampled=sampled)
            if changed:
                self._watch.changes["while computing"] += 1
            return changed


def _newer() -> str:
    """The reason for calls that run without the cache because something is not understood."""
    return f"{newer()} is newer than tested"


def whole(processor: Callable[[Any, Any], Any], before: list[int]) -> Callable[[Any, Any], Any]:
    """A logits processor that also gets the restored tokens, which mlx-lm does not pass to it."""
    first = mx.array(before)

    def process(tokens: Any, logits: Any) -> Any:
        return processor(mx.concatenate([first.astype(tokens.dtype), tokens]), logits)

    return process if before else processor
