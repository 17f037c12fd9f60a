"""Refusals before the model loads.

vLLM makes its connectors when the model is loaded, in processes whose errors end up far above the
last line of the log. The plugin therefore looks at the configuration where the command line becomes
one, ``EngineArgs.create_engine_config``, and changes nothing in it.
"""

import functools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hybrid_pages.budget import require_memory
from hybrid_pages.vllm.settings import Settings
from hybrid_pages.vllm.support import refuse, require_config, require_version

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig, VllmConfig

_MARK = "_checks_hybrid_pages"


def install(connector: str) -> None:
    """Checks every configuration that is made in this process from now on.

    Only where vLLM reads arguments: elsewhere there is nothing to check.
    """
    arguments = sys.modules.get("vllm.engine.arg_utils")
    engine_args: Any = getattr(arguments, "EngineArgs", None)
    make = getattr(engine_args, "create_engine_config", None)
    if make is None or hasattr(make, _MARK):
        return

    @functools.wraps(make)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = make(self, *args, **kwargs)
        check(config, connector)
        return config

    setattr(create_engine_config, _MARK, True)
    engine_args.create_engine_config = create_engine_config


def check(config: "VllmConfig", connector: str) -> None:
    """Refuses what can be told from the configuration, if it names this connector.

    Raises:
        SettingsError: an unknown or impossible setting.
        BudgetError: a budget beyond this machine's memory.
        UnsupportedError: a vLLM or a feature of it that has not been shown to work.
    """
    host_gb = 0.0
    for transfer in _ours(config.kv_transfer_config, connector):
        from vllm.version import __version__ as version

        require_version(version)
        host_gb += Settings.parse(transfer.kv_connector_extra_config).host_gb
        require_memory(host_gb)
        beside = _without_hybrid_manager(config.kv_transfer_config)
        recurrent = config.model_config.is_hybrid
        require_config(config, recurrent=recurrent, transfer=transfer, beside=beside)
        _require_caches(config)


def _ours(outer: "KVTransferConfig | None", connector: str) -> "Iterator[KVTransferConfig]":
    if outer is None:
        return
    for transfer in (outer, *_children(outer)):
        if transfer.kv_connector == connector:
            yield transfer


def _children(outer: "KVTransferConfig") -> "Iterator[KVTransferConfig]":
    if outer.kv_connector == "MultiConnector":
        for child in outer.kv_connector_extra_config.get("connectors") or ():
            yield type(outer)(**{"engine_id": outer.engine_id, **child})


def _without_hybrid_manager(outer: "KVTransferConfig | None") -> list[str]:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if outer is None:
        return []
    return [
        str(child.kv_connector)
        for child in _children(outer)
        if not KVConnectorFactory.supports_hma_config(child)
    ]


def _require_caches(config: "VllmConfig") -> None:
    from vllm.v1.kv_cache_interface import get_kv_quant_mode

    from hybrid_pages.vllm.layout import is_known_format

    cache, refused = config.cache_config, []
    if config.model_config.is_hybrid and cache.mamba_cache_mode != "align":
        refused.append(
            f"mamba_cache_mode: expected 'align', found {cache.mamba_cache_mode!r} (pass "
            "--mamba-cache-mode align)"
        )
    if not is_known_format(get_kv_quant_mode(cache.cache_dtype)):
        refused.append(
            f"kv_cache_dtype: expected 16-bit floats, fp8, int8, int4 or nvfp4, found "
            f"{cache.cache_dtype!r} (its format is untested; pass --kv-cache-dtype fp8 or bfloat16)"
        )
    refuse(refused)
