"""The command line of ``vllm serve``, read by vLLM itself."""

import contextlib
import importlib
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hybrid_pages.adapter.errors import SettingsError

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs

_PARSERS = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.common.cli_args")


def serve_arguments(model: str, flags: Sequence[str]) -> "AsyncEngineArgs":
    """The engine's arguments of ``vllm serve MODEL FLAGS``; what only the server reads is dropped.

    Raises:
        SettingsError: vLLM does not take the flags; with its own words. Or they name a model.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm serve")
    _parsers().make_arg_parser(parser)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            found = parser.parse_args(["--model", model, *flags])
    except SystemExit:
        _, _, reason = said.getvalue().partition("error: ")
        words = " ".join(reason.split()) or "it ended instead of reading them"
        raise SettingsError(f"flags of vLLM: {words}") from None
    other = getattr(found, "model_tag", None) or (found.model if found.model != model else None)
    if other is not None:
        raise SettingsError(
            f"flags of vLLM: expected no other model than {model}, found {other!r}: name it once, "
            "before `--`"
        )
    return AsyncEngineArgs.from_cli_args(found)


def _parsers() -> Any:
    for name in _PARSERS:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise SettingsError(f"expected one of the modules {', '.join(_PARSERS)} in vLLM, found none")
