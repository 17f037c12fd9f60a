"""The base class of all kinds of layer caches."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from hybrid_pages._core import InvalidArgumentError
from hybrid_pages.batch.checks import at_least_one
from hybrid_pages.batch.step import Step


class LayerCache:
    """The tensors of one layer for the rows of a batch.

    size: the number of rows. tensors: the state by name, each [size, ...], or None while no row has
    state. Where some rows have state, the others hold zeros.

    A `Batch` calls `select` and `join` to rearrange rows, and `prepare`, `begin`, `advance` and
    `finalize` around its steps. By default rows are gathered and concatenated on dimension 0 and
    steps do nothing, so that a new kind of layer only has to name its tensors.
    """

    def __init__(self, size: int = 1, **tensors: torch.Tensor | None) -> None:
        self.size = at_least_one("size", size)
        self.tensors = dict(tensors)
        for name, tensor in tensors.items():
            if tensor is not None and (tensor.dim() < 1 or tensor.shape[0] != size):
                raise InvalidArgumentError(
                    f"{type(self).__name__}.{name}: expected {size} rows on dimension 0, "
                    f"found the shape {tuple(tensor.shape)}"
                )

    @property
    def nbytes(self) -> int:
        """The size of the state in bytes, padding included."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values() if t is not None)

    # ---- rows ----

    def layout(self) -> dict[str, Any]:
        """The properties that all rows of a batch share, by name; None where not known yet."""
        return {
            name: None if tensor is None else self.row_layout(tensor)
            for name, tensor in self.tensors.items()
        }

    def row_layout(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        """The properties of one row of a tensor: the sizes that all rows share, dtype, device."""
        return (*tensor.shape[1:], tensor.dtype, tensor.device)

    def check_lengths(self, lengths: Sequence[int]) -> None:
        """Raise InvalidArgumentError unless the state fits rows with these numbers of tokens."""

    def check_join(self, others: Sequence[LayerCache]) -> None:
        """Raise InvalidArgumentError unless `join` can take the rows of `others`."""
        known = self.layout()
        for other in others:
            if type(other) is not type(self):
                raise InvalidArgumentError(
                    f"expected a layer of kind {type(self).__name__}, found {type(other).__name__}"
                )
            layout = other.layout()
            if layout.keys() != known.keys():
                raise InvalidArgumentError(f"expected the state {[*known]}, found {[*layout]}")
            for name, found in layout.items():
                self._check_like(name, known[name], found)
            known = {
                name: found if known[name] is None else known[name]
                for name, found in layout.items()
            }

    def select(self, rows: Sequence[int], columns: int) -> Any:
        """A new layer with some of the rows. Its tensors are contiguous copies.

        columns: how many of the last cached columns the rows need.
        """
        return self._with(
            len(rows), {name: _gather(tensor, rows) for name, tensor in self.tensors.items()}
        )

    def join(self, others: Sequence[Any], columns: int) -> Any:
        """A new layer with these rows and those of `others`, which have passed `check_join`.

        columns: how many cached columns the longest row has.
        """
        parts = [self, *others]
        size = sum(part.size for part in parts)
        return self._with(
            size,
            {
                name: _concatenate([part.tensors[name] for part in parts], [p.size for p in parts])
                for name in self.tensors
            },
        )

    def release(self) -> None:
        """Give back memory that the layer shares with others. May be called twice."""

    # ---- steps ----

    def prepare(self, columns: int) -> None:
        """Called before steps with padding. columns: how many columns are cached."""

    def begin(self, step: Step) -> None:
        """Called before each step. If it raises, it must not have changed anything."""

    def cancel(self) -> None:
        """Called if another layer has rejected the step that has just begun."""

    def advance(self, columns: int) -> None:
        """Called after a step over this many columns."""

    def finalize(self, columns: int, order: torch.Tensor | None) -> None:
        """Called after steps with padding: moves it to the left, so that all rows end together.

        columns: how many cached columns the longest row has. order: [size, columns], the present
        place of each of these columns, counted back from the end: -1 is the last column, 0 marks
        padding. None if the last `columns` columns are in place already.
        """

    def _with(self, size: int, tensors: dict[str, torch.Tensor | None]) -> Any:
        made = copy.copy(self)
        made.size = size
        made.tensors = tensors
        return made

    def _check_like(self, name: str, expected: Any, found: Any) -> None:
        if expected is not None and found is not None and expected != found:
            raise InvalidArgumentError(
                f"{type(self).__name__}.{name}: expected {_words(expected)}, found "
                f"{_words(found)}; what lies in one batch comes from one model on one device"
            )


def begin_all(layers: Sequence[LayerCache], step: Step) -> None:
    """Begin a step in every layer or, if one rejects it, in none."""
    for index, layer in enumerate(layers):
        try:
            layer.begin(step)
        except BaseException:  # raised again, once the other layers are as before
            for begun in layers[:index]:
                begun.cancel()
            raise


def _gather(tensor: torch.Tensor | None, rows: Sequence[int]) -> torch.Tensor | None:
    if tensor is None:
        return None
    return tensor.index_select(0, torch.tensor(rows, device=tensor.device)).contiguous()


def _concatenate(
    tensors: Sequence[torch.Tensor | None], sizes: Sequence[int]
) -> torch.Tensor | None:
    known = next((tensor for tensor in tensors if tensor is not None), None)
    if known is None:
        return None
    filled = [
        known.new_zeros((size, *known.shape[1:])) if tensor is None else tensor
        for tensor, size in zip(tensors, sizes, strict=True)
    ]
    return torch.cat(filled)


def _words(layout: Any) -> str:
    if not isinstance(layout, tuple):
        return repr(layout)
    *sizes, dtype, device = layout
    return f"{dtype} of {tuple(sizes)} on {device}"
