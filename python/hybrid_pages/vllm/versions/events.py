"""KV events as vLLM makes them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import BlockRemoved, BlockStored
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec
    from vllm.v1.request import Request


def publishes_events(config: "VllmConfig") -> bool:
    """Whether the engine publishes KV events."""
    events = config.kv_events_config
    return events is not None and bool(events.enable_kv_cache_events)


def event_kind(group: "KVCacheGroupSpec") -> str:
    """The kind of a group as events name it."""
    from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind

    return str(get_kv_cache_spec_kind(group.kv_cache_spec).value)


def event_extra_keys(request: "Request", start: int, end: int) -> tuple[object, ...] | None:
    """The extra keys of the block of tokens [start, end): what its hash covers beyond tokens."""
    from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, to_event_extra_keys

    keys, _ = generate_block_hash_extra_keys(request, start, end, 0)
    said = to_event_extra_keys([keys])
    return None if said is None else said[0]


def block_stored(
    *,
    hashes: list[bytes],
    parent: bytes | None,
    tokens: list[int],
    block_tokens: int,
    lora: tuple[int, str] | None,
    session: str | None,
    extra_keys: list[tuple[object, ...] | None],
    group: int,
    kind: str,
    below: bool,
) -> "BlockStored":
    """The event that consecutive blocks of a group are in host memory, or below it.

    ``BlockPool.cache_full_blocks`` makes the same ones for the engine's own memory; a router
    matches both.
    """
    from vllm.distributed.kv_events import BlockStored
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

    return BlockStored(
        block_hashes=[maybe_convert_block_hash(each) for each in hashes],
        parent_block_hash=None if parent is None else maybe_convert_block_hash(parent),
        token_ids=tokens,
        block_size=block_tokens,
        lora_id=None if lora is None else lora[0],
        lora_name=None if lora is None else lora[1],
        medium=_medium(below),
        extra_keys=extra_keys,
        group_idx=group,
        kv_cache_spec_kind=kind,
        session_id=session,
    )


def block_removed(hashes: list[bytes], group: int, below: bool) -> "BlockRemoved":
    """The event that blocks of a group are not in host memory, or below it, any more."""
    from vllm.distributed.kv_events import BlockRemoved
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

    return BlockRemoved(
        block_hashes=[maybe_convert_block_hash(each) for each in hashes],
        medium=_medium(below),
        group_idx=group,
    )


def _medium(below: bool) -> str:
    from vllm.distributed.kv_events import MEDIUM_CPU, MEDIUM_STORAGE

    return str(MEDIUM_STORAGE if below else MEDIUM_CPU)
