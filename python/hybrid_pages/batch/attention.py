"""Keys and values of full and sliding-window attention, right-aligned between steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hybrid_pages._core import InvalidArgumentError
from hybrid_pages.batch.checks import at_least_one
from hybrid_pages.batch.layer import LayerCache
from hybrid_pages.batch.step import Step


class AttentionCache(LayerCache):
    """Keys and values, each [size, heads, columns, head_dim], the layout of Hugging Face.

    window: how many tokens the layer sees, the present one included; None for all. With a window
    the last `window - 1` columns are kept, as in Hugging Face's DynamicSlidingWindowLayer.
    """

    def __init__(
        self,
        size: int = 1,
        keys: torch.Tensor | None = None,
        values: torch.Tensor | None = None,
        *,
        window: int | None = None,
    ) -> None:
        super().__init__(size, keys=keys, values=values)
        self.window = None if window is None else at_least_one("window", window)
        # Between `prepare` and `finalize`: how many columns had left the window before. Else None.
        self._gone: int | None = None
        if keys is not None or values is not None:
            _check_pair(keys, values, size)

    @property
    def keys(self) -> torch.Tensor | None:
        """The cached keys, [size, heads, columns, head_dim]; None if there are none."""
        return self.tensors["keys"]

    @property
    def values(self) -> torch.Tensor | None:
        """The cached values, [size, heads, columns, head_dim]; None if there are none."""
        return self.tensors["values"]

    @property
    def columns(self) -> int:
        """The number of cached columns, padding included."""
        return 0 if self.keys is None else self.keys.shape[2]

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, step: Step
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Append a step's keys and values, each [size, heads, step.columns, head_dim].

        Returns the keys and values to attend to, and their mask [size, 1, step.columns, keys] for
        `torch.nn.functional.scaled_dot_product_attention`. Padding holds zeros.
        """
        _check_pair(keys, values, self.size)
        if keys.shape[2] != step.columns:
            raise InvalidArgumentError(
                f"expected the {step.columns} columns of the step, found {keys.shape[2]}"
            )
        if self.keys is not None:
            if self.columns != self._kept(step.past):
                raise InvalidArgumentError(
                    f"expected {self._kept(step.past)} cached columns, found {self.columns}: "
                    "a layer is updated once in every step"
                )
            for name, new in (("keys", keys), ("values", values)):
                self._check_like(name, self.layout()[name], self.row_layout(new))
        elif step.past:
            raise InvalidArgumentError(f"expected {step.past} cached columns, found none")
        whole = {}
        for name, new in (("keys", keys), ("values", values)):
            new = step.fill(new, 0.0, dim=2)
            old = self.tensors[name]
            # The first ones are copied, too: they may be views of a tensor that the model changes.
            whole[name] = torch.cat([new] if old is None else [old, new], dim=2)
        columns = whole["keys"].shape[2]
        kept = self._kept(step.past + step.columns)
        self.tensors = {name: _last(tensor, kept) for name, tensor in whole.items()}
        return whole["keys"], whole["values"], step.mask(window=self.window, keys=columns)

    def layout(self) -> dict[str, Any]:
        return {**super().layout(), "window": self.window or "all tokens"}

    def row_layout(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        return (tensor.shape[1], tensor.shape[3], tensor.dtype, tensor.device)

    def check_lengths(self, lengths: Sequence[int]) -> None:
        if self.keys is not None and self.columns != self._kept(max(lengths)):
            raise InvalidArgumentError(
                f"expected {self._kept(max(lengths))} cached columns for rows of {list(lengths)} "
                f"tokens, found {self.columns}; every row ends at the last column"
            )

    def select(self, rows: Sequence[int], columns: int) -> Any:
        kept = self._kept(columns) if self._gone is None else min(columns, self.columns)
        cut = {
            name: None if tensor is None else tensor[:, :, self.columns - kept :]
            for name, tensor in self.tensors.items()
        }
        made = super(AttentionCache, self._with(self.size, cut)).select(rows, columns)
        if self._gone is not None:
            made._gone = columns - kept
        return made

    def join(self, others: Sequence[AttentionCache], columns: int) -> Any:
        parts = [self, *others]
        known = next((part for part in parts if part.keys is not None), None)
        size = sum(part.size for part in parts)
        if known is None:
            return self._with(size, dict(self.tensors))
        joined: dict[str, torch.Tensor | None] = {}
        for name, like in known.tensors.items():
            assert like is not None
            heads, _, width = like.shape[1:]
            whole = like.new_zeros((size, heads, self._kept(columns), width))
            first = 0
            for part in parts:
                tensor = part.tensors[name]
                if tensor is not None and part.columns:
                    whole[first : first + part.size, :, -part.columns :] = tensor
                first += part.size
            joined[name] = whole
        return self._with(size, joined)

    def prepare(self, columns: int) -> None:
        # Padding at the right would push tokens out of a window: nothing is cut until finalize.
        self._gone = columns - self._kept(columns)

    def finalize(self, columns: int, order: torch.Tensor | None) -> None:
        self._gone = None
        kept = self._kept(columns)
        for name, tensor in self.tensors.items():
            if tensor is None:
                continue
            if order is None:
                self.tensors[name] = _last(tensor, kept)
                continue
            source = order[:, order.shape[1] - kept :].to(tensor.device)[:, None, :, None]
            index = (tensor.shape[2] + source).clamp(0, tensor.shape[2] - 1)
            moved = tensor.gather(2, index.expand(-1, tensor.shape[1], -1, tensor.shape[3]))
            self.tensors[name] = moved.masked_fill(source == 0, 0)

    def _kept(self, columns: int) -> int:
        if self._gone is not None:
            return columns - self._gone
        if self.window is None:
            return columns
        return min(columns, self.window - 1)


def _last(tensor: torch.Tensor, columns: int) -> torch.Tensor:
    """The last columns, copied if that frees the memory of others."""
    if tensor.shape[2] == columns:
        return tensor
    return tensor[:, :, tensor.shape[2] - columns :].contiguous()


def _check_pair(keys: torch.Tensor | None, values: torch.Tensor | None, size: int) -> None:
    shapes = [None if tensor is None else tuple(tensor.shape) for tensor in (keys, values)]
    if (
        keys is None
        or values is None
        or keys.dim() != 4
        or values.dim() != 4
        or keys.shape[:3] != values.shape[:3]
        or keys.shape[0] != size
        or (keys.dtype, keys.device) != (values.dtype, values.device)
    ):
        raise InvalidArgumentError(
            f"expected keys and values [{size}, heads, columns, head_dim] of one type, "
            f"found {shapes[0]} and {shapes[1]}"
        )
