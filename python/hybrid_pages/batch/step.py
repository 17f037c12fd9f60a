"""Where the tokens and the padding of a step lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch


@dataclass(frozen=True, eq=False)
class Step:
    """One forward pass over `columns` new columns of a batch. `Batch.step` makes it.

    Row i has its tokens at the columns from starts[i] to ends[i] - 1; the others are padding.

    past: number of cached columns before the step. tokens: number of new tokens of each row.
    padded: whether any column is padding. starts, ends: [size]. positions: [size, columns], each
    token's place in its row, 0 at padding. key_positions: [size, past + columns], the places of
    cached and new columns, -1 at padding.
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
        """Which columns are tokens: booleans [size, columns]."""
        return self.key_positions[:, self.past :] >= 0

    def fill(self, x: torch.Tensor, value: float, dim: int = 1) -> torch.Tensor:
        """Replaces padding in `x` by `value`. Rows are dimension 0, columns dimension `dim`.

        The state of a recurrence does not change at a column whose decay is 1 (its logarithm 0) and
        whose input is 0. Padding may hold anything, NaN included.
        """
        if not self.padded:
            return x
        shape = [1] * x.dim()
        shape[0], shape[dim] = self.valid.shape
        return x.masked_fill(~self.valid.reshape(shape).to(x.device), value)

    def mask(self, *, window: int | None = None, keys: int | None = None) -> torch.Tensor:
        """Which keys each query sees: booleans [size, 1, columns, keys].

        window: how many tokens a layer sees, the present one included. keys: how many of the
        last columns the layer has; all by default. A query at padding sees only itself, so that
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
