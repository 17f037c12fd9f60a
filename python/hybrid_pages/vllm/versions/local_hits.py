"""vLLM's own prefix hits: its attention pages may reach deeper than its recurrent states.

A joint hit ends where both are. ``KVCacheManager.get_computed_blocks_for_connector`` lets a request
begin with deeper pages, if the connector says that it ``supports_divergent_local_hybrid_hits``,
which means that it brings the state. It must bring at least one token, too: if it has none beyond
those pages, vLLM goes back to the joint hit, though the connector may have a state in between. So
what is offered to the connector has to depend on what it has.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hybrid_pages.vllm.versions.plan import group_spec, is_scratch, kind_of

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request


class LocalTail(NamedTuple):
    """A place inside a block up to which vLLM's own blocks hold pages and states."""

    tokens: int
    blocks: "Sequence[KVCacheBlock]"
    """The last block of each group: the page that ends there, and the states."""


ChoosePages = Callable[["Request", int, int, int], "int | LocalTail"]
"""Says with how many tokens of vLLM's own pages a request begins. Gets the request, the tokens of
the joint hit, those of the deepest pages, and the most that it may begin with. The answer is that
of the joint hit, a number of whole blocks behind it that the pages have, or a tail behind such."""


def leave_out(manager: "KVCacheManager", leaves: "Callable[[Request], bool]") -> None:
    """Has vLLM's own prefix cache give nothing to the requests for which ``leaves`` is true: all of
    their prompt is left to the connector. Wraps ``get_computed_blocks``."""
    own = manager.get_computed_blocks

    def get_computed_blocks(request: "Request", *most: Any) -> tuple[Any, ...]:
        if leaves(request):
            return manager.empty_kv_cache_blocks, 0, 0
        return own(request, *most)

    vars(manager)["get_computed_blocks"] = get_computed_blocks


def offer_pages(manager: "KVCacheManager", choose: ChoosePages) -> None:
    """Lets requests begin with the pages that ``choose`` says.

    Wraps ``get_computed_blocks_for_connector``, which nothing else uses. Behind whole blocks, the
    request must then be loaded with its state. For groups without pages it gets no blocks: all that
    it needs of them lies behind. A tail's blocks are copied before they are written, as those of
    vLLM's own hits inside a block are (``SingleTypeKVCacheManager._apply_cow``).
    """
    if not hasattr(manager.coordinator, "find_longest_cache_hit_per_group"):
        return  # there is one group alone

    def get_computed_blocks_for_connector(request: "Request", *most: Any) -> tuple[Any, ...]:
        found = manager.get_computed_blocks(request, *most)
        longest = request.num_tokens - 1 if not most or most[0] is None else most[0]
        joint, deepest = found[1], found[2]
        begin = choose(request, joint, max(joint, deepest), longest)
        tokens, tail = (begin.tokens, begin) if isinstance(begin, LocalTail) else (begin, None)
        blocks = _begun(manager, request, tokens, longest, tail) if tokens > joint else None
        return (*found, False) if blocks is None else (blocks, tokens, deepest, tail is None)

    vars(manager)["get_computed_blocks_for_connector"] = get_computed_blocks_for_connector


def _begun(
    manager: "KVCacheManager",
    request: "Request",
    tokens: int,
    longest: int,
    tail: LocalTail | None,
) -> "KVCacheBlocks | None":
    """The blocks of a request's first tokens; None if vLLM does not have all of the pages. Without
    a tail, they are those of whole blocks, and have no states."""
    coordinator: Any = manager.coordinator
    found, hits = coordinator.find_longest_cache_hit_per_group(request.block_hashes, longest)
    blocks: list[Sequence[KVCacheBlock]] = []
    for index, group in enumerate(manager.kv_cache_config.kv_cache_groups):
        spec, managed = group_spec(group), coordinator.single_type_managers[index]
        whole = tokens // managed.block_size
        last = [] if tail is None else [tail.blocks[index]]
        if is_scratch(spec) or kind_of(spec) == "recurrent":
            blocks.append([manager.block_pool.null_block] * whole + last if last else [])
        elif kind_of(spec) != "attention" or hits[index] < whole * managed.block_size:
            return None
        else:
            blocks.append([*found[index][:whole], *last])
    return manager.create_kv_cache_blocks(tuple(blocks))
