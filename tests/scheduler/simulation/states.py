"""Recurrent states of engines that verify drafts, as `vllm/v1/worker/mamba_utils.py` keeps them.

A temporal state has one digest. A convolution state is a row for each of the last inputs, as many
as the kernel needs and one more for each draft. Only the first rows are the state of a boundary;
the rest is what a step has left over.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from vllm.v1.kv_cache_interface import MambaSpec

from .function import Bytes, Prefix, digest_of, expand, key_of
from .speculation import conv_axis, is_conv


@dataclass(frozen=True)
class Form:
    """Where the parts of a layer's state lie among its bytes."""

    convolutions: tuple[Bytes, ...]
    """For each convolution the places of its rows, as [row, byte]."""
    temporal: Bytes
    """The places of what has one digest."""
    drafts: int
    nbytes: int

    @classmethod
    def of(cls, spec: MambaSpec) -> Form | None:
        """None without drafts: then a state is one expansion."""
        if not spec.num_speculative_blocks:
            return None
        convolutions, temporal, start = [], [], 0
        for index, (shape, dtype) in enumerate(zip(spec.shapes, spec.dtypes, strict=True)):
            size = int(np.prod(shape)) * dtype.itemsize
            places = np.arange(start, start + size)
            if is_conv(spec, index):
                places = places.reshape(*shape, dtype.itemsize)
                rows = np.moveaxis(places, conv_axis(spec), 0)
                convolutions.append(rows.reshape(len(rows), -1))
            else:
                temporal.append(places)
            start += size
        whole = np.concatenate(temporal) if temporal else np.arange(0)
        return cls(tuple(convolutions), whole, spec.num_speculative_blocks, start)

    @property
    def counting(self) -> Bytes:
        """Which bytes of a boundary's state count."""
        mask = np.zeros(self.nbytes, dtype=bool)
        mask[self.temporal] = True
        for rows in self.convolutions:
            mask[rows[: len(rows) - self.drafts]] = True
        return mask

    # ---- writing

    def at(self, prefix: Prefix, end: int, key: int) -> Bytes:
        """The state after `end` tokens; what does not count in it is anything."""
        image = expand([key_of("left over", end, key)], key, self.nbytes)[0]
        self.write_inputs(image, prefix, end, 0, key)
        self.write_temporal(image, prefix.after(end), key)
        return image

    def write_temporal(self, image: Bytes, digest: int, key: int) -> None:
        if len(self.temporal):
            image[self.temporal] = expand([digest], key, len(self.temporal))[0]

    def write_inputs(self, image: Bytes, prefix: Prefix, end: int, more: int, key: int) -> None:
        """The inputs that a kernel needs after `end` tokens, and those of `more` tokens behind."""
        for rows in self.convolutions:
            needed = len(rows) - self.drafts
            image[rows[: needed + more]] = self._inputs(
                prefix, end - needed, end + more, rows.shape[1], key
            )

    @staticmethod
    def _inputs(prefix: Prefix, first: int, last: int, size: int, key: int) -> Bytes:
        digests = [prefix.after(max(token + 1, 0)) for token in range(first, last)]
        return expand(digests, key ^ 1, size)

    # ---- reading and moving

    def wrong_part(
        self, conv: Bytes, bias: int, temporal: Bytes, prefix: Prefix, end: int, key: int
    ) -> str | None:
        """What is wrong in the state after `end` tokens, read from two blocks as kernels do.

        conv: the block of the running column, whose inputs begin at row `bias`.
        temporal: the block of the accepted draft's column.
        """
        for rows in self.convolutions:
            needed = len(rows) - self.drafts
            found = conv[rows[bias : bias + needed]]
            expected = self._inputs(prefix, end - needed, end, rows.shape[1], key)
            if not np.array_equal(found, expected):
                return f"the convolution's inputs, of row {bias} on"
        if len(self.temporal):
            found = temporal[self.temporal]
            if not np.array_equal(found, expand([prefix.after(end)], key, len(found))[0]):
                digest = digest_of(found, key)
                for count in range(len(prefix) + 1):
                    if prefix.after(count) == digest:
                        return f"the temporal state, which is the one after {count} tokens"
                return "the temporal state, which is none of this request"
        return None

    def move(self, conv: Bytes, bias: int, temporal: Bytes, target: Bytes) -> Bytes:
        """The target block after a copy: inputs from row `bias` on, and the temporal state."""
        moved = target.copy()
        for rows in self.convolutions:
            moved[rows[: len(rows) - bias]] = conv[rows[bias:]]
        moved[self.temporal] = temporal[self.temporal]
        return moved
