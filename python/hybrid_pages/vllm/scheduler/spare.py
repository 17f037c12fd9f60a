"""Tells how many of vLLM's free blocks may hold copies of states until these are stored.

vLLM counts such blocks as held until the store has ended. Other requests must not have to wait for
that: enough free blocks are left for all that hold blocks to finish their prompts, and to go on for
a while.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hybrid_pages.vllm import versions
from hybrid_pages.vllm.layout.grid import BlockGrid
from hybrid_pages.vllm.scheduler.requests.tracked import Tracked

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.request import Request

_TOKENS_AHEAD = 32
"""The tokens of an answer that are computed, at most, while a state is stored."""


class Spare:
    """Counts free blocks against what requests still need.

    Args:
        grid: how vLLM cuts sequences into blocks.
        requests: those that have not ended, by id.
    """

    def __init__(self, grid: BlockGrid, requests: Mapping[str, Tracked]) -> None:
        self._sizes = grid.table_tokens
        self._requests = requests
        self.manager: KVCacheManager | None = None
        """vLLM's cache manager."""

    def has(self, blocks: int) -> bool:
        """Whether so many free blocks can be done without."""
        if self.manager is None:
            return False
        left = self.manager.block_pool.get_num_free_blocks() - blocks
        for tracked in self._requests.values():
            if left < 0:
                break
            left -= self._needs(self.manager, tracked.request)
        return left >= 0

    def _needs(self, manager: "KVCacheManager", request: "Request") -> int:
        """The most blocks that a request may take meanwhile. While a step is planned, vLLM has
        given it blocks for that step, and does not count the step's tokens as computed yet."""
        computed = request.num_computed_tokens
        if computed < request.num_tokens - 1:
            if not versions.holds_blocks(manager, request):
                return 0
            return versions.blocks_to_finish(manager, request, computed, _TOKENS_AHEAD)
        next_step = computed + 1
        end = next_step + _TOKENS_AHEAD
        return sum(-(-end // size) - -(-next_step // size) for size in self._sizes)
