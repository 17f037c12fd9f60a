"""Copies states, or whole blocks, from one block of the engine's memory to another."""

import itertools
from collections.abc import Iterable, Sequence

import torch


class StateCopies:
    """The states of all recurrent layers, by the block that they lie in.

    Args:
        tensors: this rank's tensors, by group of the geometry. Those of recurrent layers have a row
            for each block.
    """

    def __init__(self, tensors: Sequence[Sequence[torch.Tensor]]) -> None:
        self._rows = tensors

    def run(self, copies: Iterable[tuple[int, int, int]]) -> None:
        """Copies a group's states from one block to another, in the order of the present stream.

        copies: of each, the group, and the blocks from and to.
        """
        for group, source, target in copies:
            for rows in self._rows[group]:
                rows[target].copy_(rows[source], non_blocking=True)


class BlockCopies:
    """The memory of whole blocks, which layers of several groups share.

    vLLM copies the blocks of a hit inside a block itself, but of memory that layers share only as
    much as the first of them uses (``copy_kv_cache_blocks_inplace``, 0.32 and 0.33): where states
    are smaller than pages, a page is copied in part.

    Args:
        tensors: this rank's tensors, by group of the geometry, each with one or more rows for each
            block.
        num_blocks: how many blocks there are.
    """

    def __init__(self, tensors: Sequence[Sequence[torch.Tensor]], num_blocks: int) -> None:
        largest: dict[int, torch.Tensor] = {}
        for tensor in itertools.chain.from_iterable(tensors):
            blocks = tensor.unflatten(0, (num_blocks, -1))
            known = largest.get(blocks.data_ptr())
            if known is None or known[0].nbytes < blocks[0].nbytes:
                largest[blocks.data_ptr()] = blocks
        self._memory = list(largest.values())

    def run(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copies all that blocks hold, in the order of the present stream.

        copies: of each, the blocks from and to.
        """
        if self._memory and self._memory[0].is_cuda:  # as few launches as vLLM's own
            pinned = torch.tensor(copies).pin_memory()
            sources, targets = pinned.to(self._memory[0].device, non_blocking=True).unbind(1)
            for blocks in self._memory:
                blocks[targets] = blocks[sources]
            return
        for source, target in copies:
            for blocks in self._memory:
                blocks[target].copy_(blocks[source])
