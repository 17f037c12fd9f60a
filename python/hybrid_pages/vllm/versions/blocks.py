"""Blocks: those of a request, the pool, vLLM's own prefix cache."""

import functools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from hybrid_pages import BlockTables

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock


def tables_of(manager: "KVCacheManager") -> "Callable[[str], Sequence[Sequence[KVCacheBlock]]]":
    """Gives all blocks that vLLM holds for a request, by group; not to be changed, and for one step
    only. Other than ``get_block_ids``, it takes no longer for a longer request, and other than
    ``get_blocks`` it runs no Python."""
    groups = manager.coordinator.single_type_managers
    return BlockTables([group.req_to_blocks for group in groups])


def carries(block: "KVCacheBlock", key: bytes, group: int, tokens: int) -> bool:
    """Whether vLLM knows a block by a prefix key, of a group and so many tokens."""
    if block.block_hash is None or block.block_hash_num_tokens != tokens:
        return False
    return bool(block.block_hash == _with_group()(key, group))


@functools.cache
def _with_group() -> Callable[[bytes, int], bytes]:
    from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

    return make_block_hash_with_group_id


def cached_keys(pool: "BlockPool") -> frozenset[bytes]:
    """Prefix keys of all blocks in vLLM's own prefix cache, of any group."""
    from vllm.v1.core.kv_cache_utils import get_block_hash

    hashes = (block.block_hash for block in pool.blocks)
    return frozenset(get_block_hash(each) for each in hashes if each is not None)


prefix_cache_of: "Callable[[BlockPool], object]" = attrgetter("cached_block_hash_to_block")
"""vLLM's own prefix cache, as an identity: another object after it was emptied.

``BlockPool.reset_prefix_cache`` replaces the map, and only when no request holds a block.
"""


def forget_blocks(pool: "BlockPool", blocks: set[int]) -> None:
    """Takes blocks out of vLLM's own prefix cache; requests keep theirs."""
    pool.evict_blocks(blocks)


def pin(pool: "BlockPool", blocks: "list[KVCacheBlock]") -> None:
    """Keeps blocks that nobody holds from being given away; of others ``ref_cnt`` is enough."""
    pool.touch(blocks)


def unpin(pool: "BlockPool", blocks: "list[KVCacheBlock]") -> None:
    """Lets go of pinned blocks that nobody else holds."""
    pool.free_blocks(blocks)
