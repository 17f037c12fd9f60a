"""The rows that a model computes together: the caches of all layers, and each row's length."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from hybrid_pages._core import InvalidArgumentError
from hybrid_pages.batch.checks import at_least_one, per_row, row_indices
from hybrid_pages.batch.layer import LayerCache, begin_all
from hybrid_pages.batch.step import Step


class Batch:
    """The caches of all layers for the rows of a batch.

    layers: one `LayerCache` per layer, all of one size. lengths: the tokens of each row so far, 0
    by default; an empty row is a row of zeros and stays in the batch.

    Between steps every row ends at the last cached column, and columns before its first token are
    padding. A step whose rows all have a token in every column needs nothing else:

        step = batch.step(1)        # what the model's layers are given
        ...                         # each layer updates its cache once
        batch.advance(1)

    For rows of different lengths, announce the padding of the next steps, at one side:

        batch.prepare(lengths=[5, 0, 8])        # or left_padding=[3, 8, 0]
        for columns in (4, 4): ...              # step, model, advance
        batch.finalize()

    Every method raises InvalidArgumentError for wrong input, and then nothing has changed.
    """

    def __init__(self, layers: Sequence[LayerCache], lengths: Iterable[int] | None = None) -> None:
        sizes = sorted({layer.size for layer in layers})
        if len(sizes) != 1:
            raise InvalidArgumentError(f"expected layers of one number of rows, found {sizes}")
        self.layers: list[Any] = list(layers)
        self._lengths = [0] * sizes[0] if lengths is None else per_row("lengths", lengths, sizes[0])
        self._columns = max(self._lengths)
        self._waiting: list[int] | None = None  # tokens that are announced, by row
        self._padding: list[int] | None = None  # left padding still to come, by row
        # While prepared, on the host: the place in its row of each cached column, -1 at padding.
        self._positions: torch.Tensor | None = None
        # The open step, and the positions after it.
        self._step: Step | None = None
        self._next_positions: torch.Tensor | None = None
        for layer in layers:
            layer.check_lengths(self._lengths)

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self._lengths)

    @property
    def lengths(self) -> list[int]:
        """The tokens of each row, padding not counted."""
        return list(self._lengths)

    @property
    def left_padding(self) -> list[int]:
        """The number of padding columns before the first token of each row, after `finalize`."""
        return [max(self._lengths) - length for length in self._lengths]

    @property
    def prepared(self) -> bool:
        """Whether `prepare` was called and `finalize` not yet."""
        return self._positions is not None

    @property
    def nbytes(self) -> int:
        """The size of all layers in bytes, padding included."""
        return sum(layer.nbytes for layer in self.layers)

    # ---- rows ----

    @staticmethod
    def merge(batches: Sequence[Batch]) -> Batch:
        """A new batch of all rows in order; the given ones stay as they are."""
        if not batches:
            raise InvalidArgumentError("expected at least one batch to merge, found none")
        first, *others = batches
        return first._joined(others)

    def extend(self, other: Batch) -> None:
        """Put the rows of another batch behind these; the other one stays as it is."""
        self._replace(self._joined([other]))

    def extract(self, row: int) -> Batch:
        """One row as a batch of its own, in contiguous tensors."""
        return self._selected([row])

    def filter(self, rows: Iterable[int]) -> None:
        """Keep these rows, in this order. Left padding that all of them have is dropped."""
        self._replace(self._selected(rows))

    def release(self) -> None:
        """Give back memory that layers share with others, such as blocks. May be called twice."""
        for layer in self.layers:
            layer.release()

    # ---- steps ----

    def prepare(
        self, *, lengths: Iterable[int] | None = None, left_padding: Iterable[int] | None = None
    ) -> None:
        """Announce where the tokens of the next steps lie, until `finalize`.

        lengths: row i has its next lengths[i] tokens first, and then padding. left_padding: row
        i has left_padding[i] columns of padding first, and then tokens. Give one of them.
        """
        self._require_between_steps("prepare", prepared=True)
        if (lengths is None) == (left_padding is None):
            given = "none" if lengths is None else "both"
            raise InvalidArgumentError(f"expected lengths or left_padding, found {given}")
        waiting = None if lengths is None else per_row("lengths", lengths, self.size)
        padding = None if left_padding is None else per_row("left_padding", left_padding, self.size)
        self._positions = self._resting_positions("cpu")
        self._waiting, self._padding = waiting, padding
        for layer in self.layers:
            layer.prepare(self._columns)

    def step(self, columns: int, device: torch.device | str = "cpu") -> Step:
        """Begin a forward pass over this many new columns; `advance` ends it.

        device: of the positions and masks that the model gets. Raises BudgetError, with nothing
        changed, if a layer has no room for the step.
        """
        self._require_between_steps("step", prepared=False)
        columns = at_least_one("columns", columns)
        starts, ends = [0] * self.size, [columns] * self.size
        if self._waiting is not None:
            ends = [min(tokens, columns) for tokens in self._waiting]
        if self._padding is not None:
            starts = [min(padding, columns) for padding in self._padding]
        # Computed on the host, so that nothing waits for a device.
        column = torch.arange(columns)
        first, end = torch.tensor(starts), torch.tensor(ends)
        place = torch.tensor(self._lengths)[:, None] + column - first[:, None]
        token = (column >= first[:, None]) & (column < end[:, None])
        place = place.masked_fill(~token, -1)
        rest = self._positions
        past = self._resting_positions(device) if rest is None else rest.to(device)
        on_device = place.to(device)
        step = Step(
            columns=columns,
            past=self._columns,
            tokens=tuple(end - start for start, end in zip(starts, ends, strict=True)),
            padded=any(starts) or min(ends) < columns,
            starts=first.to(device),
            ends=end.to(device),
            positions=on_device.clamp(min=0),
            key_positions=torch.cat([past, on_device], dim=1),
        )
        begin_all(self.layers, step)
        self._step = step
        self._next_positions = None if rest is None else torch.cat([rest, place], dim=1)
        return step

    def advance(self, columns: int) -> None:
        """End the step, after every layer has been updated. columns: of the step."""
        step = self._step
        if step is None:
            raise InvalidArgumentError("expected a step to advance over, found none; begin one")
        if columns != step.columns:
            raise InvalidArgumentError(
                f"expected the {step.columns} columns of the step, found {columns}"
            )
        self._lengths = [n + more for n, more in zip(self._lengths, step.tokens, strict=True)]
        self._columns += columns
        self._positions = self._next_positions
        if self._waiting is not None:
            self._waiting = [max(0, tokens - columns) for tokens in self._waiting]
        if self._padding is not None:
            self._padding = [max(0, padding - columns) for padding in self._padding]
        self._step = None
        for layer in self.layers:
            layer.advance(columns)

    def finalize(self) -> None:
        """End what `prepare` began: move padding to the left, and drop columns without tokens."""
        if self._positions is None:
            raise InvalidArgumentError("expected prepare before finalize, found no padding")
        self._require_between_steps("finalize", prepared=False)
        for name, rest in (("lengths", self._waiting), ("left_padding", self._padding)):
            if rest is not None and any(rest):
                raise InvalidArgumentError(
                    f"expected steps over all announced {name}, found {rest} columns missing; "
                    "make the steps before finalize"
                )
        columns = max(self._lengths)
        order = _order(self._positions, self._lengths)
        for layer in self.layers:
            layer.finalize(columns, order)
        self._columns = columns
        self._positions = self._next_positions = self._waiting = self._padding = None

    # ---- inside ----

    def _resting_positions(self, device: torch.device | str) -> torch.Tensor:
        """The place in its row of each cached column, [size, columns], -1 at padding."""
        padding = torch.tensor(self.left_padding, device=device)
        column = torch.arange(self._columns, device=device)
        return (column - padding[:, None]).clamp(min=-1)

    def _require_between_steps(self, what: str, *, prepared: bool) -> None:
        if self._step is not None:
            raise InvalidArgumentError(
                f"{what}: expected no open step, found one of {self._step.columns} columns; "
                "advance over it first"
            )
        if prepared and self.prepared:
            raise InvalidArgumentError(
                f"{what}: expected no announced padding, found some; finalize first"
            )

    def _joined(self, others: Sequence[Batch]) -> Batch:
        for batch in (self, *others):
            batch._require_between_steps("merge or extend", prepared=True)
        for other in others:
            if len(other.layers) != len(self.layers):
                raise InvalidArgumentError(
                    f"expected {len(self.layers)} layers, found {len(other.layers)}"
                )
        for index, layer in enumerate(self.layers):
            layer.check_join([other.layers[index] for other in others])
        lengths = [length for batch in (self, *others) for length in batch._lengths]
        layers = [
            layer.join([other.layers[index] for other in others], max(lengths))
            for index, layer in enumerate(self.layers)
        ]
        return self._like(layers, lengths)

    def _selected(self, rows: Iterable[int]) -> Batch:
        self._require_between_steps("filter or extract", prepared=False)
        rows = row_indices(rows, self.size)
        lengths = [self._lengths[row] for row in rows]
        positions = None
        columns = max(lengths)
        if self._positions is not None:
            positions = self._positions[rows]
            used = (positions >= 0).any(dim=0).nonzero()
            columns = self._columns - int(used[0]) if len(used) else 0
            positions = positions[:, self._columns - columns :]
        layers = [layer.select(rows, columns) for layer in self.layers]
        made = self._like(layers, lengths)
        made._columns, made._positions = columns, positions
        if self._waiting is not None:
            made._waiting = [self._waiting[row] for row in rows]
        if self._padding is not None:
            made._padding = [self._padding[row] for row in rows]
        return made

    def _like(self, layers: list[Any], lengths: list[int]) -> Batch:
        made = copy.copy(self)
        made.layers, made._lengths, made._columns = layers, lengths, max(lengths)
        return made

    def _replace(self, other: Batch) -> None:
        released = self.layers
        vars(self).update(vars(other))
        for layer in released:
            layer.release()


def _order(positions: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor | None:
    """Where each column of a right-aligned batch lies in `positions`, for `LayerCache.finalize`."""
    columns, size = max(lengths), len(lengths)
    total = positions.shape[1]
    row, source = (positions >= 0).nonzero(as_tuple=True)
    target = columns - torch.tensor(lengths)[row] + positions[row, source]
    if bool((source - target == total - columns).all()):
        return None
    order = torch.zeros((size, columns), dtype=torch.int64)
    order[row, target] = source - total
    return order
