"""Copies states from one block of the engine's memory to another."""

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
