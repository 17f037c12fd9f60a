"""Checks of configurations before a model is loaded.

vLLM makes its connectors when the model is loaded, in processes whose errors are hard to find in
the log. The plugin therefore checks each configuration when vLLM makes it. It changes nothing,
except that a budget of "auto" is replaced by a size, once for all processes.
"""

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hybrid_pages.adapter.encryption import tell_of_keys
from hybrid_pages.adapter.memory import require_huge_pages, require_memory
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.config.identity import require_lasting
from hybrid_pages.vllm.config.settings import Settings, fix_budget
from hybrid_pages.vllm.config.support import (
    reject,
    require_config,
    require_platform,
    require_reads,
    require_trace_dir,
    require_version,
)
from hybrid_pages.vllm.processes.engine_cores import EngineCores
from hybrid_pages.vllm.processes.nodes import Nodes, require_nodes, require_one_budget
from hybrid_pages.vllm.startup.advice import warn_of_siblings

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig, VllmConfig


def install(connector: str) -> None:
    """Begins to check every configuration that this process makes.

    Args:
        connector: the name of this connector.
    """
    versions.check_configurations(functools.partial(check, connector=connector))


def check(config: "VllmConfig", connector: str) -> None:
    """Rejects a configuration that cannot work, if it names this connector.

    Raises:
        SettingsError: an unknown or impossible setting.
        BudgetError: the budgets of all engine cores exceed this machine's memory, or the quota
            exceeds the disk.
        ForeignError: the disk's directory has other files.
        RemoteError: the client of a store cannot be made.
        UnsupportedError: the version of vLLM or one of its features is not supported.
    """
    if config.kv_transfer_config is None:
        return
    host_gb, huge_gb, cores = 0.0, 0.0, EngineCores.started_by(config.parallel_config)
    nodes = Nodes.of(config.parallel_config)
    given = list(versions.extra_configs(config.kv_transfer_config, connector))
    for extra in given:
        require_one_budget(extra.get("host_gb"), nodes)
        fix_budget(extra, cores.here * len(given))
    for transfer in _ours(config.kv_transfer_config, connector):
        require_version(versions.installed())
        require_reads()
        require_platform()
        settings = Settings.parse(transfer.kv_connector_extra_config)
        if settings.huge_pages:  # they are reserved already, and not part of the free memory
            huge_gb += settings.host_gb
            stages, tensor_ranks = versions.world_of(config.parallel_config)
            ranks = stages * tensor_ranks
            require_huge_pages(huge_gb, ranks, cores.here, nodes=nodes.count)
        else:
            host_gb += settings.host_gb
            require_memory(host_gb, cores.here, nodes=nodes.count)
        beside = _without_hybrid_manager(config.kv_transfer_config)
        recurrent = config.model_config.is_hybrid
        require_config(config, recurrent=recurrent, transfer=transfer, beside=beside)
        _require_caches(config)
        require_nodes(nodes, settings)
        settings.tiers.require_places(writes=transfer.is_kv_producer)
        require_trace_dir(settings.trace_dir)
        if settings.lasting:
            require_lasting(config, settings.lasting)
        cores.note(config.parallel_config)
        tell_of_keys(settings.encrypt_key, versions.logger)
        _warn(config.kv_transfer_config, connector)


def _warn(outer: "KVTransferConfig | None", connector: str) -> None:
    versions.SUPPORTED.warn_if_newer(versions.installed(), versions.logger)
    if outer is not None:
        warn_of_siblings(outer, connector)


def _ours(outer: "KVTransferConfig | None", connector: str) -> "Iterator[KVTransferConfig]":
    if outer is None:
        return
    for transfer in (outer, *versions.children(outer)):
        if transfer.kv_connector == connector:
            yield transfer


def _without_hybrid_manager(outer: "KVTransferConfig | None") -> list[str]:
    if outer is None:
        return []
    return [
        str(child.kv_connector)
        for child in versions.children(outer)
        if not versions.works_with_hybrid_manager(child)
    ]


def _require_caches(config: "VllmConfig") -> None:
    cache, rejected = config.cache_config, []
    if config.model_config.is_hybrid and cache.mamba_cache_mode != "align":
        rejected.append(
            f"mamba_cache_mode: expected 'align', found {cache.mamba_cache_mode!r} (pass "
            "--mamba-cache-mode align)"
        )
    if versions.page_format_of(cache.cache_dtype) not in versions.PAGE_FORMATS:
        rejected.append(
            f"kv_cache_dtype: expected 16-bit floats, fp8, int8, int4 or nvfp4, found "
            f"{cache.cache_dtype!r} (its format is untested; pass --kv-cache-dtype fp8 or bfloat16)"
        )
    reject(rejected)
