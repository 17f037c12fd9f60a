"""Starting: the log, plugins, configurations and what is noted in them."""

import functools
import logging
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import CacheConfig, KVTransferConfig, ParallelConfig, VllmConfig


logger = logging.getLogger("vllm.hybrid_pages")
"""The connector's logger, below vLLM's own: only loggers there reach the engine's output."""


def register_connector(name: str, module: str) -> None:
    """Makes a connector's class known by its name, once: vLLM rejects a name that it knows."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if name not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(name, module, name)


_WRAPPED = "_checks_hybrid_pages"


def check_configurations(check: Callable[["VllmConfig"], None]) -> None:
    """Calls ``check`` with each configuration that this process makes from arguments.

    vLLM has no hook before it makes its connectors, which happens when the model is loaded, in
    processes whose errors end up far above the last line of the log. So this wraps
    ``EngineArgs.create_engine_config``, once, and only where that module is imported already:
    plugins are loaded while it makes a configuration.
    """
    arguments = sys.modules.get("vllm.engine.arg_utils")
    engine_args: Any = getattr(arguments, "EngineArgs", None)
    make = getattr(engine_args, "create_engine_config", None)
    if make is None or hasattr(make, _WRAPPED):
        return

    @functools.wraps(make)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = make(self, *args, **kwargs)
        check(config)
        return config

    setattr(create_engine_config, _WRAPPED, True)
    engine_args.create_engine_config = create_engine_config


_ENGINE_CORES = "_hybrid_pages_engine_cores"


def note_engine_cores(parallel: "ParallelConfig", total: int, here: int) -> None:
    """Notes how many engine cores there are, in all and on this machine.

    The engine cores get a pickled copy of the configuration. Those of a dense model set vLLM's own
    counts in it to 1, but leave this note alone. ``vllm.config.utils.replace`` refuses a
    configuration with such a note. vLLM uses it on this one for its weight cache's daemon, and for
    methods of speculation that are rejected.
    """
    object.__setattr__(parallel, _ENGINE_CORES, (total, here))


def only_serves(parallel: "ParallelConfig") -> bool:
    """Whether this process is one of several API servers, which another process starts beside the
    engine cores (``vllm/entrypoints/cli/serve.py``, ``run_multi_api_server``)."""
    return parallel._api_process_count > 1 and parallel._api_process_rank >= 0


def noted_engine_cores(parallel: "ParallelConfig") -> tuple[int, int] | None:
    """The counts that :func:`note_engine_cores` has noted; None if there are none."""
    found: tuple[int, int] | None = vars(parallel).get(_ENGINE_CORES)
    return found


def children(outer: "KVTransferConfig") -> "Iterator[KVTransferConfig]":
    """The connectors inside a ``MultiConnector``, made as it makes them itself."""
    if outer.kv_connector == "MultiConnector":
        for child in outer.kv_connector_extra_config.get("connectors") or ():
            yield type(outer)(**{"engine_id": outer.engine_id, **child})


def extra_configs(outer: "KVTransferConfig", connector: str) -> Iterator[dict[str, Any]]:
    """The settings of each connector of a name, as the configuration holds them. A change in them
    reaches every process that gets the configuration."""
    extra = outer.kv_connector_extra_config
    if outer.kv_connector == connector:
        yield extra
    elif outer.kv_connector == "MultiConnector":
        for child in extra.get("connectors") or ():
            if child.get("kv_connector") == connector:
                yield child.get("kv_connector_extra_config") or {}


def works_with_hybrid_manager(transfer: "KVTransferConfig") -> bool:
    """Whether a connector can work with several KV cache groups. For one that cannot, vLLM turns
    its hybrid KV cache manager off."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    return bool(KVConnectorFactory.supports_hma_config(transfer))


def is_outermost(transfer: "KVTransferConfig") -> bool:
    """Whether a transfer configuration is the engine's own, and not that of a child.

    Connectors are made while the engine's configuration is the current one; ``MultiConnector``
    gives its children copies with other transfer configurations.
    """
    from vllm.config import get_current_vllm_config_or_none

    engine = get_current_vllm_config_or_none()
    return engine is not None and engine.kv_transfer_config is transfer


def restore_block_size(cache: "CacheConfig", tokens: int) -> int | None:
    """Puts the block size back with which the scheduler was made.

    An engine core in a process of its own runs ``VllmConfig.__post_init__`` once more when it has
    started (``vllm/v1/engine/core.py``, ``_perform_handshakes``). The CPU platform then sets its
    default block size, the scheduler ends steps at multiples of that, and neither vLLM's cache nor
    this one gets a state that it can use.

    Returns:
        The block size that was found, if it was another one.
    """
    found = cache.block_size
    if found == tokens:
        return None
    cache.block_size = tokens
    return int(found)
