"""The state of a recurrence, such as one matrix for each head."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hybrid_pages._core import InvalidArgumentError
from hybrid_pages.batch.layer import LayerCache
from hybrid_pages.batch.step import Step


class RecurrentCache(LayerCache):
    """One state per row, [size, ...], such as [size, heads, key_dim, value_dim], written in place.

    A model reads the state, computes a step, and writes the new state. With `Step.fill` it sets the
    decay to 1 and the input to 0 at padding, where the state must not change.
    """

    def __init__(self, size: int = 1, state: torch.Tensor | None = None) -> None:
        super().__init__(size, state=state)

    @property
    def state(self) -> torch.Tensor | None:
        """The state, [size, ...]; None before the first step."""
        return self.tensors["state"]

    def read(
        self, shape: Sequence[int], *, dtype: torch.dtype, device: torch.device | str
    ) -> torch.Tensor:
        """The state that a step starts from; zeros of [size, *shape] before the first step."""
        state = self.state
        if state is None:
            return torch.zeros((self.size, *shape), dtype=dtype, device=device)
        self._check_like("state", self.row_layout(state), (*shape, dtype, torch.device(device)))
        return state

    def write(self, state: torch.Tensor, step: Step) -> None:
        """Keep the state after a step. Rows without a token in the step keep theirs bit for bit.

        state: [size, ...], which is copied: the cache's tensor keeps its address.
        """
        mine = self.tensors["state"]
        if state.dim() < 1 or state.shape[0] != self.size:
            raise InvalidArgumentError(
                f"expected a state of {self.size} rows, found the shape {tuple(state.shape)}"
            )
        self._check_like("state", self.layout()["state"], self.row_layout(state))
        if mine is None:
            mine = torch.zeros_like(state, memory_format=torch.contiguous_format)
            self.tensors["state"] = mine
        if step.padded:
            moved = (step.ends > step.starts).to(state.device)
            state = torch.where(moved.reshape(-1, *[1] * (state.dim() - 1)), state, mine)
        mine.copy_(state)
