"""``hybrid-pages vllm-mlx serve``: vllm-mlx's server with this package's prompt cache."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import mlx_lm
from vllm_mlx import cli, engine_core, scheduler
from vllm_mlx.engine.batched import BatchedEngine
from vllm_mlx.utils import download

from hybrid_pages import HybridPagesError
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.adapter.tiers import TierSettings
from hybrid_pages.mlx.batching import batches_rightly, decodes_rightly
from hybrid_pages.mlx.options import complain
from hybrid_pages.mlx.prompts import Prompts
from hybrid_pages.mlx.versions import OF_THE_USER, UnsupportedError
from hybrid_pages.vllm_mlx import options
from hybrid_pages.vllm_mlx.batches import RowBatches
from hybrid_pages.vllm_mlx.message_ends import MessageEnds
from hybrid_pages.vllm_mlx.scheduler import Scheduler
from hybrid_pages.vllm_mlx.usage import cached_tokens_shown

_log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Runs the server until it is interrupted. Returns 2 for settings that cannot work."""
    own, words = options.split(argv)
    sys.argv = [options.COMMAND, *argv]  # whose first word its messages have
    if words == ["--help"]:
        cli.create_parser().parse_args(["serve", "--help"])
    try:
        tiers = options.tiers(own)
        theirs = cli.create_parser().parse_args(["serve", *words])
        options.require_theirs(theirs, words)
        theirs.continuous_batching = True
        theirs.cache_memory_mb = int(tiers.host_gb * 1024) or 1
        serving = Serving(tiers, own.block_tokens, theirs.model, lazy=theirs.lazy_load_model)
        with replaced(serving), cached_tokens_shown():
            cli.serve_command(theirs)
    except HybridPagesError as error:
        return complain(error, options.COMMAND)
    return 0


class Serving:
    """The model that is served, and its prompts.

    Args:
        tiers: settings of the store.
        block_tokens: tokens per block.
        name: of the model.
        lazy: whether the model is loaded by the first request. Then what only the model can tell
            is logged, and vllm-mlx's own cache is used; otherwise it ends the server.
    """

    def __init__(self, tiers: TierSettings, block_tokens: int, name: str, *, lazy: bool) -> None:
        self._tiers, self._block_tokens, self._name = tiers, block_tokens, name
        self._started = lazy
        self._prompts: Prompts | None = None
        self.ends = MessageEnds()

    def load(self, engine: Any) -> None:
        """Loads the model of an engine, on the thread that will compute it, and makes a store."""
        try:
            _load(engine)
        except Exception as error:  # a model's files may be wrong in any way
            if not self._started:
                self._end(self.not_found(error))
            raise
        self._store(engine._model)
        self._started = True

    def not_found(self, error: Exception) -> SettingsError:
        """The error for a model that cannot be found or loaded."""
        text = next(iter(str(error).splitlines()), "")
        return SettingsError(
            f"MODEL: expected a model that vllm-mlx can load, found {self._name!r} "
            f"({type(error).__name__}: {text}): name a folder with config.json, tokenizer and "
            "weights, or a repository of the hub"
        )

    def refuse_images(self, engine: Any) -> NoReturn:
        """Rejects a model that vllm-mlx serves with images."""
        self._refuse(
            "of texts",
            f"{self._name!r}, which vllm-mlx serves with images and another scheduler: run it by "
            "vllm-mlx serve",
        )

    def scheduler(self, model: Any, tokenizer: Any, config: Any = None) -> Scheduler:
        """A scheduler for the model that was loaded last."""
        prompts, self._prompts = self._prompts, None
        together = batches_rightly(model)
        if not together:
            _log.warning(
                "%s: prompts are computed one at a time: mlx-lm %s does not compute prompts of "
                "different lengths rightly in one pass",
                type(model).__module__,
                mlx_lm.__version__,
            )
        return Scheduler(
            model, tokenizer, config, prompts=prompts, ends=self.ends, together=together
        )

    def _store(self, model: Any) -> None:
        if not decodes_rightly(model):
            self._refuse(
                "that mlx-lm batches correctly",
                f"{type(model).__module__}, for which no test of mlx-lm {mlx_lm.__version__} has "
                "shown it: serve it by hybrid-pages mlx-server",
            )
        try:
            self._prompts = Prompts(model, self._tiers, self._block_tokens, Counter())
        except Exception as error:  # code of the model ran: any failure means vllm-mlx's own cache
            wrong = (*OF_THE_USER, *([UnsupportedError] if self._tiers.disk_path else []))
            if isinstance(error, wrong) and not self._started:
                self._end(error)
            _log.warning("prompts are cached by vllm-mlx's own cache: %s", error, exc_info=error)

    def _refuse(self, kind: str, found: str) -> NoReturn:
        error = UnsupportedError(f"MODEL: expected a model {kind}, found {found}")
        if not self._started:
            self._end(error)
        raise error

    def _end(self, error: HybridPagesError) -> NoReturn:
        # The web server's start would print a trace of its own, and go on to end in its own way.
        logging.shutdown()
        status = complain(error, options.COMMAND)
        sys.stdout.flush()
        os._exit(status)


_find = download.ensure_model_downloaded
_load = BatchedEngine._prepare_llm_model
_render = BatchedEngine._apply_chat_template


@contextmanager
def replaced(serving: Serving) -> Iterator[None]:
    """Replaces parts of vllm-mlx's server in a ``with`` block."""

    def render(engine: Any, messages: Any, *args: Any, **kwargs: Any) -> str:
        prompt: str = _render(engine, messages, *args, **kwargs)
        if messages:
            serving.ends.note(
                prompt, messages, lambda others: str(_render(engine, others, *args, **kwargs))
            )
        return prompt

    def find(*args: Any, **kwargs: Any) -> Any:
        try:
            return _find(*args, **kwargs)
        except Exception as error:  # of the hub, the network or the disk
            raise serving.not_found(error) from error

    ours: list[tuple[Any, str, Any]] = [
        (download, "ensure_model_downloaded", find),
        (scheduler, "BatchGenerator", RowBatches),
        (engine_core, "Scheduler", serving.scheduler),
        (BatchedEngine, "_prepare_llm_model", lambda engine: serving.load(engine)),
        (BatchedEngine, "_prepare_mllm_model", lambda engine: serving.refuse_images(engine)),
        (BatchedEngine, "_apply_chat_template", render),
    ]
    theirs = [(place, name, getattr(place, name)) for place, name, _ in ours]
    try:
        for place, name, part in ours:
            setattr(place, name, part)
        yield
    finally:
        for place, name, part in theirs:
            setattr(place, name, part)
