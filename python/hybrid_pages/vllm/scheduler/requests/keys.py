"""The keys of a request's prefixes in the cache.

Without draft layers they are vLLM's block hashes. A draft layer (MTP, EAGLE) computes the K/V of a
position from the next token, too. Its page of a block therefore depends on the first token of the
next block, which vLLM's hash of the block does not cover. With draft layers a key covers that
token, too.
"""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hybrid_pages._core import PrefixKeys
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.layout.grid import BlockGrid
from hybrid_pages.vllm.scheduler.requests.tails import tail_keys
from hybrid_pages.vllm.scheduler.requests.tracked import Tracked

if TYPE_CHECKING:
    from vllm.v1.request import Request


class Keys:
    """Makes the keys of all requests of an engine. stride: how many hashes a block has."""

    def __init__(self, grid: BlockGrid) -> None:
        self.grid = grid
        self.names_next = grid.lookahead > 0
        self.stride = 1 if self.names_next else grid.stride

    def none_yet(self) -> PrefixKeys:
        """The keys of a new request."""
        return PrefixKeys(self.stride)

    def of(self, tracked: Tracked) -> PrefixKeys:
        """Reads the keys of a request that are known by now."""
        request, keys = tracked.request, tracked.keys
        if not self.names_next:
            keys.read(request.block_hashes)
            return keys
        for block in range(len(keys) + 1, self.known(request) + 1):
            token = versions.token_at(request, block * self.grid.block_tokens)
            engine_key = request.block_hashes[block * self.grid.stride - 1]
            keys.append(hashlib.blake2b(engine_key + token, digest_size=32).digest())
        return keys

    def known(self, request: "Request") -> int:
        """Boundaries, in blocks, whose keys are known."""
        blocks = len(request.block_hashes) // self.grid.stride
        if not self.names_next:
            return blocks
        if request.prompt_embeds is not None:
            return 0  # the next token has no id yet
        return min(blocks, (request.num_tokens - 1) // self.grid.block_tokens)

    def tails(self, tracked: Tracked, blocks: int, lengths: Sequence[int]) -> list[bytes]:
        """The keys of tails of a request behind so many blocks, whose keys were read.

        lengths: tokens of the tails, ascending.
        """
        parent = tracked.keys[blocks - 1] if blocks else None
        return tail_keys(tracked.request, parent, blocks * self.grid.block_tokens, lengths)

    def changed(self, tracked: Tracked) -> bool:
        """Whether a session that streams its input has new input since its last step.

        Draft layers have then computed K/V from a token that the new input has replaced.
        """
        if not self.names_next:
            return False
        return tracked.prompt_tokens != tracked.request.num_prompt_tokens
