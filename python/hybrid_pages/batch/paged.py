"""Keys and values in blocks that rows share, so that rows are rearranged without copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hybrid_pages._core import InvalidArgumentError
from hybrid_pages.batch.checks import at_least_one
from hybrid_pages.batch.layer import LayerCache
from hybrid_pages.batch.step import Step
from hybrid_pages.batch.tables import BlockPool, BlockTable


class PagedStorage:
    """Memory for the keys and values of `layers` layers that share a block table.

    keys, values: each [layers, blocks * block_tokens, heads, head_dim].
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        layers: int = 1,
        heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        tokens = pool.blocks * pool.block_tokens
        shape = [at_least_one("layers", layers), tokens]
        shape += [at_least_one("heads", heads), at_least_one("head_dim", head_dim)]
        self.pool = pool
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, target) in all layers."""
        if not copies:
            return
        source, target = torch.tensor(copies, device=self.keys.device).unbind(1)
        for tensor in (self.keys, self.values):
            blocks = tensor.unflatten(1, (self.pool.blocks, self.pool.block_tokens))
            blocks[:, target] = blocks[:, source]


class PagedAttentionCache(LayerCache):
    """The full-attention layers of a `PagedStorage`, with a list of blocks for each row.

    Padding is never stored, so `prepare` and `finalize` have nothing to do.
    """

    def __init__(self, storage: PagedStorage, size: int = 1) -> None:
        super().__init__(size)
        self.storage = storage
        self.table = BlockTable(storage.pool, size)
        self._step: Step | None = None
        self._updated: set[int] = set()
        self._before: list[int] = []

    @property
    def nbytes(self) -> int:
        """The size in bytes of the blocks that the rows use. A shared block counts once."""
        blocks = {block for row in self.table.rows for block in row}
        token: int = self.storage.keys[:, 0].numel() * self.storage.keys.element_size()
        return 2 * token * self.storage.pool.block_tokens * len(blocks)

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, step: Step, layer: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Write a step's keys and values, each [size, heads, step.columns, head_dim].

        Returns keys, values and mask as `AttentionCache.update` does, gathered from the blocks. A
        kernel that reads blocks itself takes `table.block_table()` and `table.lengths` instead.
        layer: index of the layer in the storage.
        """
        storage = self.storage
        self._check(keys, values, step, layer)
        self._updated.add(layer)
        positions = step.key_positions.to(keys.device)
        indices = self.table.indices(positions)
        written, token = indices[:, step.past :], step.valid.to(keys.device)
        for tensor, new in ((storage.keys, keys), (storage.values, values)):
            tensor[layer].index_copy_(0, written[token], new.transpose(1, 2)[token])
        padding = (positions < 0)[:, :, None, None]
        whole = [
            tensor[layer][indices].masked_fill(padding, 0).transpose(1, 2)
            for tensor in (storage.keys, storage.values)
        ]
        return whole[0], whole[1], step.mask()

    def check_lengths(self, lengths: Sequence[int]) -> None:
        if self.table.lengths != list(lengths):
            raise InvalidArgumentError(
                f"expected rows of {list(lengths)} tokens, found {self.table.lengths}"
            )

    def check_join(self, others: Sequence[Any]) -> None:
        super().check_join(others)
        if any(other.storage is not self.storage for other in others):
            raise InvalidArgumentError("expected rows in one storage, found several storages")

    def select(self, rows: Sequence[int], columns: int) -> Any:
        return self._over(self.table.select(rows))

    def join(self, others: Sequence[Any], columns: int) -> Any:
        return self._over(self.table.join([other.table for other in others]))

    def begin(self, step: Step) -> None:
        self._before = self.table.lengths
        self.storage.copy(self.table.append(step.tokens))
        self._step, self._updated = step, set()

    def cancel(self) -> None:
        self.table.truncate(self._before)
        self._step = None

    def advance(self, columns: int) -> None:
        self._step = None

    def release(self) -> None:
        self.table.release()

    def _over(self, table: BlockTable) -> Any:
        made = self._with(table.size, {})
        made.table = table
        return made

    def _check(self, keys: torch.Tensor, values: torch.Tensor, step: Step, layer: int) -> None:
        store = self.storage.keys
        shape = (self.size, store.shape[2], step.columns, store.shape[3])
        for tensor in (keys, values):
            self._check_like(
                "update",
                (*shape, store.dtype, store.device),
                (*tensor.shape, tensor.dtype, tensor.device),
            )
        if not 0 <= layer < store.shape[0]:
            raise InvalidArgumentError(
                f"expected a layer from 0 to {store.shape[0] - 1}, found {layer}"
            )
        if self._step is not step:
            raise InvalidArgumentError("expected the step that is open, found another one")
        if layer in self._updated:
            raise InvalidArgumentError(f"layer {layer} was updated in this step already")
