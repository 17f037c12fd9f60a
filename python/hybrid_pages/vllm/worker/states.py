"""Copies states from one block of the engine's memory to another."""

from collections.abc import Iterable, Mapping

import torch

from hybrid_pages import Geometry


class StateCopies:
    """The states of all recurrent layers, by the block that they lie in.

    Args:
        geometry: the layers of each group.
        kv_caches: the registered tensors by layer name. Those of recurrent layers have a row for
            each block.
    """

    def __init__(self, geometry: Geometry, kv_caches: Mapping[str, torch.Tensor]) -> None:
        self._rows = [
            [kv_caches[layer.name] for layer in group.layers if group.kind == "recurrent"]
            for group in geometry.groups
        ]

    def run(self, copies: Iterable[tuple[int, int, int]]) -> None:
        """Copies a group's states from one block to another, in the order of the present stream.

        copies: of each, the group, and the blocks from and to.
        """
        for group, source, target in copies:
            for rows in self._rows[group]:
                rows[target].copy_(rows[source], non_blocking=True)
