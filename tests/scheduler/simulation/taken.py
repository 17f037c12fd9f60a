"""The blocks that a step copies states to: nobody else may have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybrid_pages.vllm.messages import StepMetadata

if TYPE_CHECKING:
    from .engine import Engine


class SharedBlock(AssertionError):
    """A state would be copied to a block that somebody else has."""


def taken(engine: Engine, metadata: Any) -> list[tuple[int, int]]:
    """The groups and blocks that the connector may write to behind a step, for its copies."""
    pool = engine.scheduler.kv_cache_manager.block_pool
    managers = engine.scheduler.kv_cache_manager.coordinator.single_type_managers
    found = []
    for step in getattr(metadata, "metadata", (metadata,)):
        if not isinstance(step, StepMetadata):
            continue
        for entries in step.stores.values():
            for group, _, target in entries.state_copies:
                block = pool.blocks[target]
                tables = (table for each in managers for table in each.req_to_blocks.values())
                if block.ref_cnt != 1 or block.block_hash or any(block in each for each in tables):
                    raise SharedBlock(f"block {target}, with {block.ref_cnt} holders")
                found.append((engine.half.connection.grid.groups[group].table, target))
    return found
