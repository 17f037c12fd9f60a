"""Warnings when an engine starts, about configurations that cost hits or safety.

The rules are those of ``hybrid-pages doctor``. Configurations that corrupt results are rejected
instead (:mod:`hybrid_pages.vllm.config.support`).
"""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hybrid_pages import Geometry
from hybrid_pages.adapter.memory import GIB
from hybrid_pages.checks.rules import findings
from hybrid_pages.checks.situation import Finding, Situation
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.config.settings import Settings
from hybrid_pages.vllm.layout.grid import BlockGrid
from hybrid_pages.vllm.versions import logger

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig, VllmConfig


def warn(
    config: "VllmConfig", settings: Settings, grid: BlockGrid, plan: Geometry | None
) -> list[Finding]:
    """Logs a warning for each finding. Returns the findings.

    Args:
        config: of the engine, with this connector's own transfer configuration.
        settings: of the connector.
        grid: how vLLM cuts sequences into blocks.
        plan: the planned geometry; None if it is not known yet.
    """
    found = findings(_situation(config, settings, grid, plan))
    _say(found)
    return found


def warn_of_siblings(outer: "KVTransferConfig", connector: str) -> list[Finding]:
    """Logs findings about the outermost transfer configuration, when it is made."""
    others = [str(child.kv_connector) for child in versions.children(outer)]
    found = findings(
        Situation(
            siblings=tuple(name for name in others if name != connector),
            failure_policy=str(outer.kv_load_failure_policy),
        )
    )
    _say(found)
    return found


def _say(found: Iterable[Finding]) -> None:
    for finding in found:
        logger.warning("hybrid-pages: %s", finding.line())


def _situation(
    config: "VllmConfig", settings: Settings, grid: BlockGrid, plan: Geometry | None
) -> Situation:
    cache, own, steps = config.cache_config, config.kv_transfer_config, config.scheduler_config
    batched, scheduled = steps.max_num_batched_tokens, steps.max_num_scheduled_tokens
    classes = () if plan is None else plan.classes
    return Situation(
        block_tokens=grid.block_tokens,
        entry_bytes=sum(item.entry_bytes for item in classes) or None,
        has_states=any(item.kind == "recurrent" for item in classes) if plan else None,
        exports_states=grid.exports_states,
        whole_blocks_only=_whole_blocks_only(settings, grid, plan),
        host_bytes=int(settings.host_gb * GIB),
        state_tokens=grid.state_tokens,
        max_batched_tokens=batched,
        # With drafts, vLLM sets one of them to the other.
        max_scheduled_tokens=None if scheduled == batched else scheduled,
        long_prefill_tokens=steps.long_prefill_token_threshold,
        max_requests=steps.max_num_seqs,
        cuts_prompts=steps.enable_chunked_prefill,
        max_model_len=config.model_config.max_model_len,
        drafts=grid.drafts,
        draft_slots=versions.draft_slots(config),
        retention=cache.prefix_cache_retention_interval,
        hash_algorithm=str(cache.prefix_caching_hash_algo),
        has_hash_seed=bool(os.environ.get("PYTHONHASHSEED")),
        has_disk=bool(settings.disk_path),
        has_remote=bool(settings.remote_url),
        publishes_events=versions.publishes_events(config),
        kv_role=_role(own.is_kv_producer, own.is_kv_consumer),
        changes_weights=_changes_weights(config),
        follows_resets=settings.follow_engine_resets,
        checkpoint_mode=settings.checkpoint_mode,
    )


def _whole_blocks_only(settings: Settings, grid: BlockGrid, plan: Geometry | None) -> bool | None:
    if grid.no_tails is not None:
        return True
    return None if plan is None else not grid.wants_tails(plan, settings.checkpoint_mode)


def _changes_weights(config: "VllmConfig") -> str:
    if config.weight_transfer_config is not None:
        return "weight_transfer_config"
    return "VLLM_SERVER_DEV_MODE=1" if os.environ.get("VLLM_SERVER_DEV_MODE") == "1" else ""


def _role(stores: bool, loads: bool) -> str:
    if stores and loads:
        return "kv_both"
    return "kv_producer" if stores else "kv_consumer"
