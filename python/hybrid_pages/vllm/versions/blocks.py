"""Blocks: those of a request, the pool, vLLM's own prefix cache."""

import functools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from hybrid_pages._core import BlockTables

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request


def tables_of(manager: "KVCacheManager") -> "Callable[[str], Sequence[Sequence[KVCacheBlock]]]":
    """A function for all blocks that vLLM holds for a request, by group. Do not change them, and
    use them for one step only. Unlike ``get_block_ids``, it takes no longer for a longer request,
    and unlike ``get_blocks`` it runs no Python."""
    groups = manager.coordinator.single_type_managers
    return BlockTables([group.req_to_blocks for group in groups])


def reserves_too_little(manager: "KVCacheManager") -> bool:
    """Whether vLLM reserves too little for requests that it has admitted for a load: some group
    gives blocks back while a request goes on."""
    groups = manager.coordinator.single_type_managers
    return any(group.max_admission_blocks_per_request is not None for group in groups)


def local_tokens(manager: "KVCacheManager", request: "Request") -> tuple[int, int]:
    """How many tokens of a request that holds no blocks vLLM's own prefix cache has now: its joint
    hit, and its deepest pages."""
    found = manager.coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)
    return int(found[1]), int(found[1] + found[2])


def holds_blocks(manager: "KVCacheManager", request: "Request") -> bool:
    """Whether a request holds blocks, of any group."""
    groups = manager.coordinator.single_type_managers
    return any(group.req_to_blocks.get(request.request_id) for group in groups)


def blocks_to_finish(
    manager: "KVCacheManager", request: "Request", computed: int, ahead: int, *, local: int = 0
) -> int:
    """The most blocks of the pool that a request may take besides those that it has, until its
    prompt is computed.

    Args:
        manager: vLLM's cache manager.
        request: one that is not scheduled; it may hold blocks.
        computed: tokens that it has, or will have once its load is there.
        ahead: tokens after its prompt that its steps need room for.
        local: how many of the computed tokens are in blocks of vLLM's own cache, which other
            requests may share.
    """
    coordinator = manager.coordinator
    name, tokens = request.request_id, request.num_tokens + ahead
    groups = coordinator.single_type_managers
    hit: Sequence[Sequence[KVCacheBlock]] = [()] * len(groups)
    if local:
        hit, local, _ = coordinator.find_longest_cache_hit(request.block_hashes, local)
    total = 0
    for group, found in zip(groups, hit, strict=True):
        most = group.max_admission_blocks_per_request
        if most is None:
            total += group.get_num_blocks_to_allocate(
                request_id=name,
                num_tokens=tokens,
                new_computed_blocks=found,
                total_computed_tokens=computed,
                num_local_computed_tokens=local,
                num_tokens_main_model=request.num_tokens,
                apply_admission_cap=True,
                prefill_end=0,
            )
            continue
        size, held = group.block_size, group.req_to_blocks.get(name, ())
        behind = max(len(held), group.get_num_skipped_tokens(computed) // size)
        ring = most + -(-ahead // size) - sum(not block.is_null for block in held)
        total += max(0, min(-(-tokens // size) - behind, ring))
    return total


def carries(block: "KVCacheBlock", key: bytes, group: int, tokens: int) -> bool:
    """Whether vLLM knows a block by this prefix key, group and number of tokens."""
    if block.block_hash is None or block.block_hash_num_tokens != tokens:
        return False
    return bool(block.block_hash == _with_group()(key, group))


@functools.cache
def _with_group() -> Callable[[bytes, int], bytes]:
    from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

    return make_block_hash_with_group_id


def before_resets(manager: "KVCacheManager", action: Callable[[], None]) -> None:
    """Calls ``action`` each time before vLLM empties its own prefix cache.

    It does that only while no block is in use, and has no hook for blocks that a connector still
    copies. So this wraps the manager's method.
    """
    reset: Callable[[], bool] = manager.reset_prefix_cache

    @functools.wraps(reset)
    def reset_prefix_cache() -> bool:
        action()
        return reset()

    vars(manager)["reset_prefix_cache"] = reset_prefix_cache


def cached_keys(pool: "BlockPool") -> frozenset[bytes]:
    """Prefix keys of all blocks in vLLM's own prefix cache, of any group."""
    from vllm.v1.core.kv_cache_utils import get_block_hash

    hashes = (block.block_hash for block in pool.blocks)
    return frozenset(get_block_hash(each) for each in hashes if each is not None)


prefix_cache_of: "Callable[[BlockPool], object]" = attrgetter("cached_block_hash_to_block")
"""An object that changes when vLLM empties its own prefix cache.

``BlockPool.reset_prefix_cache`` replaces the map, and only when no request holds a block.
"""


def forget_blocks(pool: "BlockPool", blocks: set[int]) -> None:
    """Takes blocks out of vLLM's own prefix cache; requests keep theirs."""
    pool.evict_blocks(blocks)


def used_blocks(pool: "BlockPool") -> int:
    """How many blocks somebody holds, but for the null block, which nobody gives back."""
    return pool.num_gpu_blocks - pool.get_num_free_blocks() - 1


def pin(pool: "BlockPool", blocks: "list[KVCacheBlock]") -> None:
    """Keeps blocks that nobody holds from being given away; for others ``ref_cnt`` is enough."""
    pool.touch(blocks)


def unpin(pool: "BlockPool", blocks: "list[KVCacheBlock]") -> None:
    """Lets go of blocks that were pinned or taken and that nobody else holds."""
    pool.free_blocks(blocks)


def take(pool: "BlockPool", blocks: int) -> "list[KVCacheBlock]":
    """Takes so many free blocks. What vLLM's own prefix cache had in them is evicted, which it
    announces, too."""
    return list(pool.get_new_blocks(blocks))


def block_of(pool: "BlockPool", block: "int | KVCacheBlock") -> "KVCacheBlock":
    """A block of the pool, from its id."""
    found: KVCacheBlock = pool.blocks[block] if isinstance(block, int) else block
    return found


def name(pool: "BlockPool", block: "KVCacheBlock", key: bytes, group: int, tokens: int) -> None:
    """Puts a block that has no key yet into vLLM's own prefix cache. Nobody finds it there who does
    not ask for the key; when it is free, it is evicted like any other.

    tokens: how many tokens of its request are in it and before it.
    """
    pool._insert_block_hash(_with_group()(key, group), block, num_tokens=tokens)


def give_back(pool: "BlockPool", blocks: "list[KVCacheBlock]") -> None:
    """Takes blocks out of vLLM's own prefix cache. Those that are free are the next to be used."""
    pin(pool, blocks)
    forget_blocks(pool, {block.block_id for block in blocks})
    unpin(pool, blocks)
