"""The command line of ``vllm serve``, read by vLLM itself."""

import contextlib
import importlib
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.vllm.versions.supported import platform

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs

_OF_FREE = 0.4
_PARSERS = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.common.cli_args")


def serve_arguments(model: str, flags: Sequence[str]) -> "AsyncEngineArgs":
    """The engine's arguments in ``vllm serve MODEL FLAGS``, without what only the server reads. On
    a CPU, flags that set no share of its memory get one that fits.

    Raises:
        SettingsError: vLLM rejects the flags (the error has its words), or they name a model.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm serve")
    _parsers().make_arg_parser(parser)
    if platform() == "cpu":
        parser.set_defaults(gpu_memory_utilization=_share_that_fits())
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


def _share_that_fits() -> float:
    """The share of a CPU's memory for vLLM. The default is nearly all of it, and vLLM does not
    start unless that much is free. ``host_gb`` may be half of what is free."""
    from vllm.utils.cpu_resource_utils import get_memory_node_info, get_visible_memory_node

    nodes = [get_memory_node_info(node) for node in get_visible_memory_node()]
    free = min((node.available_memory / node.total_memory for node in nodes), default=1.0)
    return max(1, int(100 * _OF_FREE * free)) / 100


def _parsers() -> Any:
    for name in _PARSERS:
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(name)
    raise SettingsError(f"expected one of the modules {', '.join(_PARSERS)} in vLLM, found none")
