"""Where the tokens of a step lie: what a model needs to know of padding."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch


@dataclass(frozen=True, eq=False)
class Step:
    """One forward pass of `columns` columns over a batch. Made by `Batch.step`.

    Row i has its tokens at the columns starts[i] up to ends[i]; the others are padding.

    past: cached columns before this step. tokens: of each row, on the host. padded: whether any
    column is padding. starts, ends: [size]. positions: [size, columns], each token's place in its
    row, 0 at padding. key_positions: [size, past + columns], the same for cached columns and new
    ones, -1 at padding.
    """

    columns: int
    past: int
    tokens: tuple[int, ...]
    padded: bool
    starts: torch.Tensor
    ends: torch.Tensor
    positions: torch.Tensor
    key_positions: torch.Tensor
    _masks: dict[tuple[int | None, int], torch.Tensor] = field(default_factory=dict, repr=False)

    @cached_property
    def valid(self) -> torch.Tensor:
        """[size, columns] bool: which columns are tokens."""
        return self.key_positions[:, self.past :] >= 0

    def fill(self, x: torch.Tensor, value: float, dim: int = 1) -> torch.Tensor:
        """`x` with `value` at padding; `dim` is that of the columns, 0 that of the rows.

        A recurrence stands still at a position whose decay is 1 (its logarithm 0) and whose
        input is 0. Filled rather than multiplied: padding may hold anything, NaN included.
        """
        if not self.padded:
            return x
        shape = [1] * x.dim()
        shape[0], shape[dim] = self.valid.shape
        return x.masked_fill(~self.valid.reshape(shape).to(x.device), value)

    def mask(self, *, window: int | None = None, keys: int | None = None) -> torch.Tensor:
        """[size, 1, columns, keys] bool: which keys a query sees; True is seen.

        window: how many tokens a layer sees, the present one included. keys: how many of the
        last columns the layer has; all by default. A query at padding sees itself alone, so that
        no row of a softmax is empty.
        """
        keys = self.past + self.columns if keys is None else keys
        if (window, keys) not in self._masks:
            total = self.past + self.columns
            key = self.key_positions[:, None, total - keys :]
            query = self.key_positions[:, self.past :, None]
            seen = (key >= 0) & (key <= query)
            if window is not None:
                seen &= key > query - window
            if self.padded:
                own = torch.arange(self.columns, device=seen.device)
                seen[:, own, keys - self.columns + own] |= ~self.valid
            self._masks[window, keys] = seen[:, None]
        return self._masks[window, keys]
