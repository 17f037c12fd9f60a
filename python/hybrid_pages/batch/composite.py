"""A layer with several kinds of state, such as a convolution and a recurrence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hybrid_pages._core import InvalidArgumentError
from hybrid_pages.batch.layer import LayerCache, begin_all
from hybrid_pages.batch.step import Step


class CompositeCache(LayerCache):
    """Several layer caches of one layer, by name. Every call goes to each of them."""

    def __init__(self, parts: Mapping[str, LayerCache], size: int | None = None) -> None:
        """parts: the layer caches by name. size: the number of rows, needed without parts."""
        sizes = {part.size for part in parts.values()} | ({size} if size is not None else set())
        if len(sizes) != 1:
            raise InvalidArgumentError(
                f"expected parts of one number of rows, found {sorted(sizes) or 'no parts'}"
            )
        super().__init__(sizes.pop())
        self.parts: dict[str, LayerCache] = dict(parts)

    def __getitem__(self, name: str) -> Any:
        return self.parts[name]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())

    def check_lengths(self, lengths: Sequence[int]) -> None:
        for part in self.parts.values():
            part.check_lengths(lengths)

    def check_join(self, others: Sequence[Any]) -> None:
        super().check_join(others)
        for other in others:
            if [*other.parts] != [*self.parts]:
                raise InvalidArgumentError(
                    f"expected the parts {[*self.parts]}, found {[*other.parts]}"
                )
        for name, part in self.parts.items():
            part.check_join([other.parts[name] for other in others])

    def select(self, rows: Sequence[int], columns: int) -> Any:
        parts = {name: part.select(rows, columns) for name, part in self.parts.items()}
        return self._of(len(rows), parts)

    def join(self, others: Sequence[Any], columns: int) -> Any:
        parts = {
            name: part.join([other.parts[name] for other in others], columns)
            for name, part in self.parts.items()
        }
        return self._of(self.size + sum(other.size for other in others), parts)

    def release(self) -> None:
        for part in self.parts.values():
            part.release()

    def prepare(self, columns: int) -> None:
        for part in self.parts.values():
            part.prepare(columns)

    def begin(self, step: Step) -> None:
        begin_all([*self.parts.values()], step)

    def cancel(self) -> None:
        for part in self.parts.values():
            part.cancel()

    def advance(self, columns: int) -> None:
        for part in self.parts.values():
            part.advance(columns)

    def finalize(self, columns: int, order: torch.Tensor | None) -> None:
        for part in self.parts.values():
            part.finalize(columns, order)

    def _of(self, size: int, parts: dict[str, LayerCache]) -> Any:
        made = self._with(size, {})
        made.parts = parts
        return made
