"""Checks at startup: rejects configurations that are not known to work, and names the reason."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.adapter.errors import UnsupportedError as UnsupportedError
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.config import speculation
from hybrid_pages.vllm.versions import SUPPORTED

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig, VllmConfig


PLATFORMS = ("cpu", "cuda")
"""The platforms with a copy engine, by vLLM's names. ``rocm``, ``xpu`` and ``tpu`` have none."""


def supported_range() -> str:
    """The supported versions as a requirement: ``>=0.32,<0.34``."""
    return SUPPORTED.range


def is_supported(version: str) -> bool:
    """Whether a version of vLLM is in the supported range."""
    return SUPPORTED.includes(version)


def require_version(version: str) -> None:
    """Rejects a version of vLLM outside the supported range.

    Raises:
        VersionError: names the range and what was found.
    """
    SUPPORTED.require(version)


def require_reads() -> None:
    """Rejects a vLLM that lacks a name that the connector uses.

    Raises:
        UnsupportedError: names each attribute.
    """
    if missing := versions.missing():
        raise UnsupportedError(
            f"hybrid-pages does not fit vllm {versions.installed()}: install the latest release of "
            f"vllm{supported_range()}, or start without HybridPagesConnector:\n  "
            + "\n  ".join(missing)
        )


def require_platform() -> None:
    """Rejects devices that this package cannot copy from.

    Raises:
        UnsupportedError: names the platform.
    """
    if (found := versions.platform()) not in PLATFORMS:
        raise UnsupportedError(
            f"platform: expected {' or '.join(PLATFORMS)} (an NVIDIA GPU), found {found}: start "
            "without HybridPagesConnector"
        )


def require_trace_dir(trace_dir: str) -> None:
    """Rejects a directory to which a recording cannot be written. Creates nothing.

    Raises:
        SettingsError: names what was found.
    """
    place = Path(trace_dir).absolute()
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if trace_dir and not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        found = "no permission to write" if place.is_dir() else "a file"
        raise SettingsError(
            f"trace_dir: expected a directory to write to, or one in which it can be made, found "
            f"{found} at {str(place)!r}: name another, or leave trace_dir out"
        )


def require_config(
    config: "VllmConfig",
    *,
    recurrent: bool = True,
    transfer: "KVTransferConfig | None" = None,
    beside: Sequence[str] = (),
) -> None:
    """Rejects every feature of the engine that is not known to work with this cache.

    Args:
        config: the engine's configuration.
        recurrent: whether the model has recurrent layers.
        transfer: this connector's own transfer configuration, if it is a child of another
            connector.
        beside: other connectors that made vLLM turn its hybrid KV cache manager off, if known.

    Raises:
        UnsupportedError: one line for each rejected feature, with what was found and what to set.
    """
    rejected = _rejected(config, transfer or config.kv_transfer_config)
    if recurrent and config.scheduler_config.disable_hybrid_kv_cache_manager is True:
        rejected.append(_no_hybrid_manager(beside))
    if recurrent and _may_stall(config):
        rejected.append(
            "disable_chunked_mm_input: expected false for a model with recurrent layers, found "
            f"true (in vllm {versions.installed()} requests with images could wait for ever: drop "
            "--disable-chunked-mm-input)"
        )
    reject(rejected)


def reject(reasons: Sequence[str]) -> None:
    """Rejects a configuration for the given reasons, if there are any.

    Raises:
        UnsupportedError: one line for each reason.
    """
    if reasons:
        raise UnsupportedError(
            "HybridPagesConnector cannot run with this configuration:\n  " + "\n  ".join(reasons)
        )


def _may_stall(config: "VllmConfig") -> bool:
    media = config.model_config.multimodal_config
    takes_images = media is not None and not media.language_model_only
    whole = config.scheduler_config.disable_chunked_mm_input
    return bool(takes_images and whole and versions.stalls_before_images())


def _no_hybrid_manager(beside: Sequence[str]) -> str:
    found = "hybrid KV cache manager: expected on for a model with recurrent layers, found off"
    if beside:
        return (
            f"{found}, since {' and '.join(beside)} cannot work with it: take "
            f"{'them' if len(beside) > 1 else 'it'} out of MultiConnector's connectors"
        )
    return (
        f"{found}: drop --disable-hybrid-kv-cache-manager if you gave it; otherwise a connector "
        "beside this one cannot work with it: take that one out of MultiConnector's connectors"
    )


def _rejected(config: "VllmConfig", transfer: "KVTransferConfig") -> list[str]:
    parallel, cache = config.parallel_config, config.cache_config
    checks = [
        (
            transfer.enable_permute_local_kv,
            "enable_permute_local_kv: expected false, found true",
        ),
        (
            parallel.prefill_context_parallel_size != 1,
            "prefill_context_parallel_size: expected 1, found "
            f"{parallel.prefill_context_parallel_size}",
        ),
        (
            parallel.decode_context_parallel_size != 1 and parallel.pipeline_parallel_size != 1,
            "decode_context_parallel_size with pipeline stages: expected one of both, found "
            f"{parallel.decode_context_parallel_size} and pipeline_parallel_size "
            f"{parallel.pipeline_parallel_size}",
        ),
        (
            parallel.decode_context_parallel_size != 1 and config.speculative_config is not None,
            "decode_context_parallel_size with drafts: expected one of both, found "
            f"{parallel.decode_context_parallel_size} and a speculative_config",
        ),
        (
            parallel.enable_elastic_ep,
            "enable_elastic_ep: expected false, found true (engine cores come and go, and what "
            "this machine needs for their caches was checked at start)",
        ),
        (
            parallel.use_ubatching,
            "microbatches: expected none, found a step that is cut into them (drop --enable-dbo "
            "and --ubatch-size)",
        ),
        (
            parallel.distributed_executor_backend == "external_launcher"
            and parallel.pipeline_parallel_size
            * parallel.tensor_parallel_size
            * parallel.data_parallel_size
            > 1,
            "distributed_executor_backend: expected 'mp', 'ray' or none, found 'external_launcher' "
            "(there each rank has a scheduler of its own)",
        ),
        (
            parallel.distributed_executor_backend == "ray"
            and parallel.pipeline_parallel_size != 1
            and not versions.ray_reports_of_all_stages(),
            "VLLM_USE_RAY_V2_EXECUTOR_BACKEND: expected 1 or none for pipeline stages with Ray, "
            "found 0 (its executor passes on what the last stage reports, so no copy would end)",
        ),
        (
            not cache.enable_prefix_caching,
            "prefix caching: expected on, found off (pass --enable-prefix-caching: its block "
            "hashes name the pages)",
        ),
        (
            config.model_config.is_encoder_decoder,
            "encoder-decoder models: not supported",
        ),
        (
            config.model_config.is_diffusion,
            "diffusion models: not supported (a block is written again and again until its text is "
            "settled)",
        ),
        (
            cache.use_replayssm,
            "use_replayssm: expected false, found true (its state is a base plus a ring of inputs)",
        ),
        (
            config.ec_transfer_config is not None,
            "encoder cache transfer: expected none, found an ec_transfer_config",
        ),
        (
            config.aux_output_config.enabled and not versions.keeps_experts_of_loads(),
            "enable_return_routed_experts: expected false before vllm 0.33, found true (the engine "
            "can end at a prompt that is restored: take vllm 0.33, or drop "
            "--enable-return-routed-experts)",
        ),
    ]
    return [message for found, message in checks if found] + speculation.rejected(config)
