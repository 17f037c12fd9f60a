"""``hybrid-pages mlx-server``: mlx-lm's server with this package's prompt cache."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx_lm import server

from hybrid_pages import HybridPagesError, InvalidArgumentError
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.arguments import require_port
from hybrid_pages.mlx import cache_parts, options
from hybrid_pages.mlx.batching import batches_rightly
from hybrid_pages.mlx.prefix_cache import whole
from hybrid_pages.mlx.request import quantises
from hybrid_pages.mlx.server_cache import PlannedCache, RequestCache, ServerPromptCache
from hybrid_pages.mlx.versions import SERVER, UnsupportedError, newer, tolerated

_log = logging.getLogger(__name__)

# mlx-lm looks for the start of a model's reasoning in this many tokens at the end of a prompt.
_TAIL = 11


def main(argv: Sequence[str]) -> int:
    """Runs the server until it is interrupted. Returns 2 for settings that cannot work.

    argv: flags, behind a model if the first word is not a flag.
    """
    own, words = options.split(argv)
    status = 0
    try:
        SERVER.require(server.__version__)
        with _replaced(own, words):
            server.main()
    except HybridPagesError as error:
        status = options.complain(error)
    if Responses.ran:
        # If the process ended normally after the server's thread has used mlx, mlx would abort it.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(status)
    return status


@contextmanager
def _replaced(own: Any, words: list[str]) -> Iterator[None]:
    """Replaces parts of mlx-lm's server, and the process's arguments, in a ``with`` block."""

    def provider(theirs: Any) -> Provider:
        options.require_theirs(theirs)
        theirs.prompt_cache_bytes = own.prompt_cache_bytes
        tiers = options.tiers(own)
        require_port(theirs.host, theirs.port)
        prompts = ServerPromptCache(tiers, own.block_tokens, theirs.prompt_cache_size)
        return Provider(theirs, prompts)

    ours = {
        "BatchGenerator": Batches,
        "ModelProvider": provider,
        "run": run,
        "stream_generate": stream_generate,
    }
    theirs = {name: getattr(server, name) for name in ours}
    arguments = sys.argv
    sys.argv = [options.COMMAND, *words]
    try:
        for name, part in ours.items():
            setattr(server, name, part)
        yield
    finally:
        sys.argv = arguments
        for name, part in theirs.items():
            setattr(server, name, part)


def run(host: str, port: int, provider: Provider) -> None:
    """Waits for the model of the command line, and serves until interrupted.

    Raises:
        HybridPagesError: the model cannot be loaded, or its caches cannot be stored.
    """
    responses = Responses(provider, provider.prompts)
    try:
        provider.wait(responses)
        require_port(host, port)
        server._run_http_server(host, port, responses)
    except KeyboardInterrupt:  # while the model is loaded
        _log.info("interrupted")
    finally:
        responses.stop_and_join()
        provider.prompts.drop()


class Provider(server.ModelProvider):
    """Loads models, makes a store for each, and decides which ones are batched."""

    is_batchable: bool

    def __init__(self, cli_args: Any, prompts: ServerPromptCache) -> None:
        # The base class calls `reset` while it is made.
        self.prompts = prompts
        if mx.distributed.init().size() > 1:
            raise UnsupportedError(
                "mlx-server: expected one process, found a distributed group: use mlx_lm.server"
            )
        self._started = threading.Event()
        self._refused: HybridPagesError | None = None
        super().__init__(cli_args)

    def reset(self) -> None:
        self.prompts.drop()
        super().reset()

    def load_default(self) -> None:
        """Loads the model of the command line. Errors are kept for :meth:`wait`."""
        try:
            super().load_default()
            self._refused = self.prompts.refused
        except HybridPagesError as error:
            self._refused = error
        except Exception as error:
            _log.debug("the model could not be loaded", exc_info=error)
            self._refused = SettingsError(
                f"--model: expected a model that mlx-lm {server.__version__} can load, found "
                f"{self.cli_args.model!r} ({type(error).__name__}: {_first_line(error)}): name a "
                "folder with config.json, tokenizer and weights, or a repository of the hub"
            )
        finally:
            self._started.set()

    def wait(self, responses: Responses) -> None:
        """Waits until the model of the command line is loaded.

        Raises:
            HybridPagesError: the model cannot be served with these settings.
        """
        # A newer mlx-lm may load it another way.
        while responses.generation_available() and not (newer() or self._started.wait(0.1)):
            pass
        if self._refused is not None:
            raise self._refused
        if not (newer() or self._started.is_set()):
            raise UnsupportedError(
                "mlx-server: expected mlx-lm's server to load models, found that its thread has "
                "ended: its error is above"
            )

    def _load(self, *key: Any) -> None:
        super()._load(*key)
        why_not = None
        if self.draft_model is not None:
            why_not = "a draft model (--draft-model)"
        elif self.cli_args.kv_bits is not None and quantises(self.model):
            why_not = "quantised caches (--kv-bits)"
        # Before anything that may fail: a model that batches wrongly must never be batched.
        if self.is_batchable and not batches_rightly(self.model):
            self.is_batchable = False
            _log.warning(
                "%s is served one request at a time: mlx-lm does not compute batches of rows of "
                "different lengths rightly for it, or no test has shown that it does",
                type(self.model).__module__,
            )
        self.prompts.use(self.model, why_not, quietly=not self._started.is_set())


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")


class Responses(server.ResponseGenerator):
    """Answers requests as mlx-lm does, and ends passes where a state is to be stored."""

    ran = False

    def __init__(self, *args: Any) -> None:
        Responses.ran = True
        super().__init__(*args)

    def _tokenize(self, tokenizer: Any, request: Any, args: Any) -> Any:
        found = super()._tokenize(tokenizer, request, args)
        if not len(found[0]):
            raise InvalidArgumentError("prompt: expected at least one token, found none")
        with tolerated("cut prompts where a state is wanted"):
            return self._planned(tokenizer, *found)
        return found

    def _planned(
        self,
        tokenizer: Any,
        prompt: Any,
        segments: list[list[int]],
        kinds: list[str],
        initial: str,
        vision: Any,
    ) -> tuple[Any, ...]:
        if vision is None:
            ends = list(itertools.accumulate(map(len, segments)))
            if tokenizer.has_thinking:
                # Later turns leave out the reasoning that begins here.
                ends.append(tokenizer.rfind_think_start(prompt, start=len(prompt) - _TAIL))
            stops = self.prompt_cache.plan(list(prompt), ends)
            segments, kinds = _cut(segments, kinds, stops)
        return prompt, segments, kinds, initial, vision


class Batches(server.BatchGenerator):
    """Batches rows as mlx-lm does, and attaches to a finished row's cache the prompt of its
    request."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._prompts: dict[int, list[int]] = {}

    def insert_segments(self, *args: Any, **kwargs: Any) -> list[int]:
        uids: list[int] = super().insert_segments(*args, **kwargs)
        with tolerated("follow the rows of a batch"):
            for uid, cache in zip(uids, kwargs["caches"], strict=True):
                if isinstance(cache, PlannedCache):
                    self._prompts[uid] = cache.prompt
        return uids

    def next(self) -> Any:
        found = super().next()
        with tolerated("follow the rows of a batch"):
            for response in found[1]:
                if response.finish_reason is not None and response.uid in self._prompts:
                    prompt = self._prompts.pop(response.uid)
                    response.prompt_cache = RequestCache(response.prompt_cache, prompt)
        return found

    def remove(self, uids: list[int], *args: Any, **kwargs: Any) -> Any:
        for uid in uids:
            self._prompts.pop(uid, None)
        return super().remove(uids, *args, **kwargs)


def _cut(
    segments: list[list[int]], kinds: list[str], stops: list[int]
) -> tuple[list[list[int]], list[str]]:
    """Cuts segments at the stops, too. Returns the segments and their kinds."""
    cut: list[list[int]] = []
    named: list[str] = []
    begin = 0
    for segment, kind in zip(segments, kinds, strict=True):
        inner = [stop - begin for stop in stops if begin < stop < begin + len(segment)]
        for first, end in zip([0, *inner], [*inner, len(segment)], strict=True):
            cut.append(segment[first:end])
            named.append(kind)
        begin += len(segment)
    return cut, named


def stream_generate(**kwargs: Any) -> Iterator[Any]:
    """Generates text as mlx-lm does, and stores states on the way.

    Used where nothing is batched.
    """
    cache = kwargs["prompt_cache"]
    if not isinstance(cache, PlannedCache) or kwargs.get("input_embeddings") is not None:
        yield from _upstream(**kwargs)
        return
    model, step, tell = (
        kwargs["model"],
        kwargs["prefill_step_size"],
        kwargs["prompt_progress_callback"],
    )
    total, done = len(cache.prompt), cache.seen
    for stop in cache.stops:
        while done < stop:
            end = min(stop, done + step)
            with mx.stream(kwargs["stream"]):
                model(mx.array(cache.prompt[done:end])[None], cache=list(cache))
                mx.eval(cache_parts.arrays(cache))
            mx.clear_cache()
            done = end
            tell(done, total)
        cache.store(done)
    processors = [whole(each, cache.prompt[:done]) for each in kwargs["logits_processors"] or ()]
    ours = {
        "prompt": cache.prompt[done:],
        "logits_processors": processors,
        "prompt_progress_callback": lambda seen, _: tell(done + seen, total),
    }
    yield from _upstream(**(kwargs | ours))


_upstream = server.stream_generate
