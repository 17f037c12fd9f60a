"""``hybrid-pages mlx-server``: mlx-lm's server with this package's prompt cache."""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx_lm import server
from mlx_lm.models.cache import ArraysCache, make_prompt_cache

from hybrid_pages import InvalidArgumentError
from hybrid_pages.adapter.memory import GIB
from hybrid_pages.mlx import parts
from hybrid_pages.mlx.prefix_cache import whole
from hybrid_pages.mlx.prompts import Own, Planned, Prompts, Settings
from hybrid_pages.mlx.support import UnsupportedError

_log = logging.getLogger(__name__)

BATCHED = (
    "bailing_hybrid",
    "bailing_moe_v3",
    "falcon_h1",
    "gear",
    "granitemoehybrid",
    "kimi_k3",
    "kimi_linear",
    "lfm2",
    "lfm2-vl",
    "lfm2_moe",
    "mamba2",
    "plamo2",
    "prism_hadamard_qwen35",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
)
"""Hybrid models whose batches of rows of different lengths mlx-lm 0.32.2 computes rightly."""

# A prompt that makes a model reason ends in so few tokens, as mlx-lm looks for them.
_TAIL = 11

_HELP = """\
Runs mlx_lm.server with a prompt cache that shares pages, keeps recurrent states where prompts fork,
and holds a budget of bytes. Takes all flags of mlx_lm.server, and:
"""


def main(argv: Sequence[str]) -> int:
    """Runs the server until it is interrupted.

    argv: the model, if the first word is no flag, and flags.
    """
    words = list(argv)
    model = ["--model", words.pop(0)] if words and not words[0].startswith("-") else []
    parser = _parser()
    if {"-h", "--help"} & set(words):
        parser.print_help()
        print("\nmlx_lm.server:\n")
    own, rest = parser.parse_known_args([word for word in words if word not in ("-h", "--help")])
    if {"-h", "--help"} & set(words):
        rest = ["--help"]
    with _replaced(own, [*model, *rest]):
        server.main()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hybrid-pages mlx-server",
        usage="hybrid-pages mlx-server [MODEL] [flags]",
        description=_HELP,
        add_help=False,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--host-gb",
        type=float,
        default=4.0,
        help="GiB for stored prompts (default: 4); --prompt-cache-bytes says the same in bytes",
    )
    parser.add_argument(
        "--block-tokens", type=int, default=32, help="tokens per block (default: 32)"
    )
    parser.add_argument("--disk-path", default="", help="directory for prompts that outlive this")
    parser.add_argument("--disk-gb", type=float, default=0.0, help="quota of --disk-path in GiB")
    return parser


@contextmanager
def _replaced(own: argparse.Namespace, words: list[str]) -> Iterator[None]:
    """mlx-lm's server with our parts in place of its own, and these words as its arguments."""

    def provider(cli_args: Any) -> Provider:
        nbytes = cli_args.prompt_cache_bytes
        settings = Settings(
            own.host_gb if nbytes is None else nbytes / GIB,
            own.block_tokens,
            own.disk_path,
            own.disk_gb,
        )
        return Provider(cli_args, Prompts(settings, cli_args.prompt_cache_size))

    ours = {
        "BatchGenerator": Batches,
        "ModelProvider": provider,
        "run": run,
        "stream_generate": stream_generate,
    }
    theirs = {name: getattr(server, name) for name in ours}
    arguments = sys.argv
    sys.argv = ["hybrid-pages mlx-server", *words]
    try:
        for name, part in ours.items():
            setattr(server, name, part)
        yield
    finally:
        sys.argv = arguments
        for name, part in theirs.items():
            setattr(server, name, part)


def run(host: str, port: int, provider: Provider) -> None:
    """Serves until interrupted."""
    server._run_http_server(host, port, Responses(provider, provider.prompts))


class Provider(server.ModelProvider):
    """Loads models, each with a store of its own, and knows which can be batched."""

    is_batchable: bool

    def __init__(self, cli_args: Any, prompts: Prompts) -> None:
        # `reset` is called before there is anything.
        self.prompts = prompts
        if mx.distributed.init().size() > 1:
            raise UnsupportedError(
                "mlx-server: expected one process, found a distributed group: use mlx_lm.server"
            )
        super().__init__(cli_args)

    def reset(self) -> None:
        self.prompts.drop()
        super().reset()

    def _load(self, *key: Any) -> None:
        super()._load(*key)
        why_not = None
        if self.draft_model is not None:
            why_not = "a draft model"
        elif self.cli_args.kv_bits is not None:
            why_not = "quantised caches (--kv-bits)"
        # First: a model that batches wrongly must not be served so, whatever fails after this.
        if self.is_batchable and not batches_rightly(self.model):
            self.is_batchable = False
            _log.warning(
                "%s is served one request at a time: mlx-lm does not compute batches of rows of "
                "different lengths rightly for it, or no test has shown that it does",
                type(self.model).__module__,
            )
        self.prompts.use(self.model, why_not)


def batches_rightly(model: Any) -> bool:
    """Whether batches of a model are known to give the texts of its rows alone."""
    found = parts.leaves(make_prompt_cache(model))
    hybrid = any(isinstance(part, ArraysCache) for part in found)
    return not hybrid or type(model).__module__.rpartition(".")[2] in BATCHED


class Responses(server.ResponseGenerator):
    """Ends passes where a state is to be stored."""

    def _tokenize(self, tokenizer: Any, request: Any, args: Any) -> Any:
        prompt, segments, kinds, initial, vision = super()._tokenize(tokenizer, request, args)
        if not prompt:
            raise InvalidArgumentError("prompt: expected at least one token, found none")
        if vision is None:
            ends = list(itertools.accumulate(map(len, segments)))
            if tokenizer.has_thinking:
                # Later turns come without the reasoning that begins here.
                ends.append(tokenizer.rfind_think_start(prompt, start=len(prompt) - _TAIL))
            stops = self.prompt_cache.plan(list(prompt), ends)
            segments, kinds = _cut(segments, kinds, stops)
        return prompt, segments, kinds, initial, vision


class Batches(server.BatchGenerator):
    """Says which request's prompt it was that a finished row began with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._prompts: dict[int, list[int]] = {}

    def insert_segments(self, *args: Any, **kwargs: Any) -> list[int]:
        uids: list[int] = super().insert_segments(*args, **kwargs)
        for uid, cache in zip(uids, kwargs["caches"], strict=True):
            if isinstance(cache, Planned):
                self._prompts[uid] = cache.prompt
        return uids

    def next(self) -> Any:
        read, written = super().next()
        for response in written:
            if response.finish_reason is not None and response.uid in self._prompts:
                prompt = self._prompts.pop(response.uid)
                response.prompt_cache = Own(response.prompt_cache, prompt)
        return read, written

    def remove(self, uids: list[int], *args: Any, **kwargs: Any) -> Any:
        for uid in uids:
            self._prompts.pop(uid, None)
        return super().remove(uids, *args, **kwargs)


def _cut(
    segments: list[list[int]], kinds: list[str], stops: list[int]
) -> tuple[list[list[int]], list[str]]:
    """Segments that also end at the stops; their kinds."""
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
    """mlx-lm's, which here stores states on its way: requests that are not batched come so."""
    cache = kwargs["prompt_cache"]
    if not isinstance(cache, Planned) or kwargs.get("input_embeddings") is not None:
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
                mx.eval([part.state for part in cache])
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
