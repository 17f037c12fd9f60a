"""The last inputs of a short causal convolution, up to each row's last token."""

from __future__ import annotations

from typing import Any

import torch

from hybrid_pages._core import InvalidArgumentError
from hybrid_pages.batch.checks import at_least_one
from hybrid_pages.batch.layer import LayerCache
from hybrid_pages.batch.step import Step


class ConvCache(LayerCache):
    """The last `width` inputs of every row. The tensor is contiguous and written in place.

    width: at least K - 1 for a kernel of K taps. Hugging Face keeps K and MLX K - 1.
    channels_last: the layout [size, width, channels] of MLX, instead of [size, channels, width].
    """

    def __init__(
        self,
        size: int = 1,
        state: torch.Tensor | None = None,
        *,
        width: int,
        channels_last: bool = False,
    ) -> None:
        super().__init__(size, state=None if state is None else state.contiguous())
        self.width = at_least_one("width", width)
        self.channels_last = channels_last
        if state is not None and (state.dim() != 3 or state.shape[self._dim] != width):
            raise InvalidArgumentError(
                f"expected a state of {self._shape('width')}, found {tuple(state.shape)}"
            )

    @property
    def state(self) -> torch.Tensor | None:
        """The last inputs: [size, channels, width], or [size, width, channels] if channels_last."""
        return self.tensors["state"]

    def update(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """Append a step's inputs, and return them with the earlier inputs in front.

        x: [size, channels, step.columns], or [size, step.columns, channels] with channels last.
        Returns a tensor with `width` more columns: an unpadded convolution over its last
        K - 1 + step.columns columns gives the outputs of the step. Each row's earlier inputs lie
        directly before its first token, and its new state ends at its last token, so padding is
        neither read nor kept. The state keeps its address.
        """
        self._check(x, step)
        dim, state = self._dim, self.tensors["state"]
        if state is None:
            shape = list(x.shape)
            shape[dim] = self.width
            state = x.new_zeros(shape)
        whole = torch.cat([state, step.fill(x, 0.0, dim=dim)], dim=dim)
        if step.padded:
            starts, ends = step.starts.to(x.device), step.ends.to(x.device)
            column = torch.arange(whole.shape[dim], device=x.device)
            # Left padding stands between a row's state and its tokens: the state moves up to them.
            moved = column - starts[:, None]
            within = (moved >= 0) & (moved < self.width)
            whole = self._take(whole, torch.where(within, moved, column))
            whole = whole.masked_fill(self._spread(moved < 0), 0)
            last = ends[:, None] + torch.arange(self.width, device=x.device)
            state.copy_(self._take(whole, last))
        else:
            state.copy_(whole.narrow(dim, step.columns, self.width))
        self.tensors["state"] = state
        return whole

    def layout(self) -> dict[str, Any]:
        return {**super().layout(), "width": self.width, "channels_last": self.channels_last}

    def row_layout(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        return (tensor.shape[3 - self._dim], tensor.dtype, tensor.device)

    @property
    def _dim(self) -> int:
        return 1 if self.channels_last else 2

    def _shape(self, columns: str) -> str:
        inner = f"{columns}, channels" if self.channels_last else f"channels, {columns}"
        return f"[{self.size}, {inner}] with width {self.width}"

    def _spread(self, by_column: torch.Tensor) -> torch.Tensor:
        return by_column[:, :, None] if self.channels_last else by_column[:, None]

    def _take(self, x: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """Some columns of each row. columns: their indices, [size, n]."""
        shape = list(x.shape)
        shape[self._dim] = columns.shape[1]
        return x.gather(self._dim, self._spread(columns).expand(shape))

    def _check(self, x: torch.Tensor, step: Step) -> None:
        if x.dim() != 3 or x.shape[0] != self.size or x.shape[self._dim] != step.columns:
            raise InvalidArgumentError(
                f"expected inputs {self._shape(str(step.columns))}, found {tuple(x.shape)}"
            )
        self._check_like("state", self.layout()["state"], self.row_layout(x))
