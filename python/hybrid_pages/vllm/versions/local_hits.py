"""vLLM's own prefix hits: its attention pages may reach deeper than its recurrent states.

A joint hit ends where both are. ``KVCacheManager.get_computed_blocks_for_connector`` lets a request
begin with deeper pages, if the connector says that it ``supports_divergent_local_hybrid_hits``,
which means that it brings the state. It must bring at least one token, too: if it has none beyond
those pages, vLLM goes back to the joint hit, though the connector may have a state in between. So
what is offered to the connector has to depend on what it has.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hybrid_pages.vllm.versions.plan import group_spec, is_scratch, kind_of

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request

ChoosePages = Callable[["Request", int, int], int]
"""Says with how many tokens of vLLM's own pages a request begins. Gets the request, the tokens of
the joint hit, and those of the deepest pages. The answer is that of the joint hit, or a number of
whole blocks behind it that the pages have."""


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

    Wraps ``get_computed_blocks_for_connector``, which nothing else uses. The request must then be
    loaded behind these pages, with its state. For groups without pages it gets no blocks: all that
    it needs of them lies behind.
    """

    def get_computed_blocks_for_connector(request: "Request", *most: Any) -> tuple[Any, ...]:
        found = manager.get_computed_blocks(request, *most)
        joint, deepest = found[1], found[2]
        pages = choose(request, joint, deepest) if deepest > joint else joint
        blocks = _pages(manager, request, pages, *most) if pages > joint else None
        return (*found, False) if blocks is None else (blocks, pages, deepest, True)

    vars(manager)["get_computed_blocks_for_connector"] = get_computed_blocks_for_connector


def _pages(
    manager: "KVCacheManager", request: "Request", tokens: int, most: int | None = None
) -> "KVCacheBlocks | None":
    """The pages of a request's first tokens; None if a group does not have all of them."""
    coordinator: Any = manager.coordinator
    longest = request.num_tokens - 1 if most is None else most
    found, hits = coordinator.find_longest_cache_hit_per_group(request.block_hashes, longest)
    blocks: list[Sequence[KVCacheBlock]] = []
    for index, group in enumerate(manager.kv_cache_config.kv_cache_groups):
        spec = group_spec(group)
        if is_scratch(spec) or kind_of(spec) == "recurrent":
            blocks.append([])
        elif kind_of(spec) != "attention" or hits[index] < tokens:
            return None
        else:
            size = coordinator.single_type_managers[index].block_size
            blocks.append(found[index][: tokens // size])
    return manager.create_kv_cache_blocks(tuple(blocks))
