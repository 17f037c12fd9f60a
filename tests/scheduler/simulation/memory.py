"""One rank's KV buffer, laid out by vLLM, with a shadow that says who wrote what.

The simulated forward writes buffer and shadow alike. Any difference between the two was therefore
made by the connector, and must lie in the real bytes of blocks that it was asked to load, or that
it has taken to copy states to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.core.single_type_kv_cache_manager import MambaManager  # noqa: F401  (registers specs)
from vllm.v1.kv_cache_interface import (
    CircularBufferSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import allocate_kv_cache

from .function import Bytes, key_of
from .shapes import DRAFT
from .states import Form

POISON = 0xA5


class UnexpectedWrite(AssertionError):
    """The connector wrote outside the real bytes of the blocks that it may write to."""


def representative(spec: KVCacheSpec) -> KVCacheSpec:
    """A layer's spec of a group whose layers may differ in size but not in kind."""
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return next(iter(spec.kv_cache_specs.values()))
    return spec


@dataclass(frozen=True)
class Shard:
    """Which tokens of a block one rank keeps under context parallelism
    (``vllm/v1/worker/block_table.py``)."""

    ranks: int
    rank: int
    run: int
    """How many tokens one after another each rank keeps."""

    def keeps(self, offsets: Bytes) -> Bytes:
        """Whether this rank keeps the tokens at these places of blocks of all ranks."""
        return offsets // self.run % self.ranks == self.rank

    def place(self, offsets: Bytes) -> Bytes:
        """The places of the tokens that it keeps in its own blocks."""
        return offsets // (self.ranks * self.run) * self.run + offsets % self.run


@dataclass
class LayerMemory:
    """One layer's blocks, live and shadow: [block, kernel block, kernel token, head, bytes]."""

    name: str
    key: int
    live: npt.NDArray[np.uint8]
    shadow: npt.NDArray[np.uint8]
    form: Form | None = None
    """Of a recurrent layer's state, if it verifies drafts."""
    shard: Shard | None = None
    """Which tokens of each block are here; None for all."""

    @property
    def drafts(self) -> bool:
        """Whether this layer makes drafts."""
        return self.name.startswith(DRAFT)

    @property
    def token_bytes(self) -> int:
        return self.live.shape[3] * self.live.shape[4]

    @property
    def block_strides(self) -> tuple[int, ...]:
        """Of a block's dimensions, in bytes."""
        return self.live.strides[1:]

    def tokens(self, blocks: Sequence[int]) -> Bytes:
        """The bytes of whole blocks as [token, bytes]."""
        rows = np.asarray(blocks, dtype=np.intp)
        return self.live[rows].reshape(-1, self.token_bytes)

    def other_token(self, blocks: Sequence[int], first: int, expected: Bytes) -> int | None:
        """The first of the tokens from `first` on that has other bytes than these, if any."""
        if self.shard is None:
            found = self.tokens(blocks)[first : first + len(expected)]
        else:
            n = self.live.shape[1] * self.live.shape[2] * self.shard.ranks
            offsets = np.arange(first, first + len(expected))
            found, mine = expected.copy(), self.shard.keeps(offsets % n)
            places = self.shard.place(offsets[mine] % n) + offsets[mine] // n * (
                n // self.shard.ranks
            )
            found[mine] = self.tokens(blocks)[places]
        wrong = np.flatnonzero((found != expected).any(axis=1))
        return int(wrong[0]) if len(wrong) else None

    def other_state(self, block: int, expected: Bytes) -> Bytes | None:
        """A state's bytes, if they are others than these."""
        found = self.state(block)
        return None if np.array_equal(found, expected) else found

    def write_tokens(self, blocks: Sequence[int], offsets: Bytes, data: Bytes) -> None:
        """Write token i's bytes at offsets[i] of blocks[i]."""
        kernel_tokens = self.live.shape[2]
        of_blocks = np.asarray(blocks, dtype=np.intp)
        if self.shard is not None:
            mine = self.shard.keeps(offsets)
            of_blocks, data = of_blocks[mine], data[mine]
            offsets = self.shard.place(offsets[mine])
        place = (of_blocks, offsets // kernel_tokens, offsets % kernel_tokens)
        rows = data.reshape(len(offsets), *self.live.shape[3:])
        self.live[place] = rows
        self.shadow[place] = rows

    def state(self, block: int) -> Bytes:
        """A state's bytes."""
        return self.live[block].reshape(-1).copy()

    def write_state(self, block: int, data: Bytes) -> None:
        self.live[block] = data.reshape(self.live.shape[1:])
        self.shadow[block] = self.live[block]

    def copy_block(self, source: int, destination: int) -> None:
        self.live[destination] = self.live[source]
        self.shadow[destination] = self.live[source]

    def move_state(self, table: Sequence[int], source: int, target: int, bias: int) -> None:
        """Copies a state from one column to another: the convolutions' inputs from row `bias` on,
        and the temporal state of the draft that was accepted last."""
        if self.form is None:
            self.copy_block(table[source], table[target])
            return
        moved = self.form.move(
            self.state(table[source]),
            bias,
            self.state(table[source + bias]),
            self.state(table[target]),
        )
        self.write_state(table[target], moved)

    def zero(self, blocks: Sequence[int]) -> None:
        self.live[list(blocks)] = 0
        self.shadow[list(blocks)] = 0


class Memory:
    """The buffer, the tensors that vLLM would register, and a byte view of each layer."""

    device = torch.device("cpu")

    def __init__(
        self, config: KVCacheConfig, layout: str, kernel_block_sizes: list[int], rank: int
    ) -> None:
        self.tensors: dict[str, torch.Tensor] = allocate_kv_cache(
            config, self.device, KVCacheLayout[layout], kernel_block_sizes
        )
        storage = next(iter(self.tensors.values())).untyped_storage()
        self._take(torch.tensor([], dtype=torch.uint8, device=storage.device).set_(storage))
        self._blocks = config.num_blocks
        self.groups: list[list[LayerMemory]] = [
            [self._layer(name, rank, group.kv_cache_spec) for name in group.layer_names]
            for group in config.kv_cache_groups
        ]
        specs = [representative(group.kv_cache_spec) for group in config.kv_cache_groups]
        self.block_tokens = [spec.block_size for spec in specs]
        """By group."""
        self.recurrent = [isinstance(spec, MambaSpec) for spec in specs]
        self.rings = [isinstance(spec, CircularBufferSpec) for spec in specs]
        self.tokens_per_state = [max(1, spec.tokens_per_state) for spec in specs]
        """Of an attention group: a state is written with its last token."""
        self.export_alignments: list[int | None] = [
            spec.prefill_checkpoint_alignment
            if isinstance(spec, MambaSpec) and spec.num_prefill_checkpoint_blocks
            else None
            for spec in specs
        ]
        self.hash_tokens, self.hit_tokens = (
            config.hash_block_size,
            config.cache_hit_alignment_tokens,
        )
        self.windows = [
            spec.sliding_window if isinstance(spec, SlidingWindowSpec) else None for spec in specs
        ]

    def divide(self, context: int, rank: int, run: int) -> None:
        """Has each of ``context`` ranks keep its part of the tokens of attention groups."""
        for group, layers in enumerate(self.groups):
            if context > 1 and not self.recurrent[group]:
                self.block_tokens[group] *= context
                for layer in layers:
                    layer.shard = Shard(context, rank % context, run)

    def _take(self, raw: torch.Tensor) -> None:
        """The buffer, and its shadow."""
        self._raw = raw.numpy()
        self._raw[:] = POISON
        self._shadow = self._raw.copy()

    def _layer(self, name: str, rank: int, spec: KVCacheSpec) -> LayerMemory:
        if isinstance(spec, UniformTypeKVCacheSpecs):
            spec = spec.kv_cache_specs[name]
        tensor = self.tensors[name].view(torch.uint8)
        grouped = tensor.unflatten(0, (self._blocks, -1)).permute(0, 1, 3, 2, 4)
        form = Form.of(spec) if isinstance(spec, MambaSpec) else None
        return self._view(name, key_of("layer", name, rank), grouped, form)

    def _view(self, name: str, key: int, blocks: torch.Tensor, form: Form | None) -> LayerMemory:
        """A layer with these blocks, which lie in the buffer."""
        shadow = np.lib.stride_tricks.as_strided(
            self._shadow[blocks.storage_offset() :], tuple(blocks.shape), blocks.stride()
        )
        return LayerMemory(name, key, blocks.numpy(), shadow, form)

    def zero(self, blocks: Sequence[int]) -> None:
        """Zero new attention blocks, as the runner does before a step."""
        for layers, recurrent in zip(self.groups, self.recurrent, strict=True):
            if not recurrent:
                for layer in layers:
                    layer.zero(blocks)

    def copy_block(self, source: int, destination: int) -> None:
        for layers in self.groups:
            for layer in layers:
                layer.copy_block(source, destination)

    def forget(self) -> None:
        """The memory is gone and comes back with other bytes, as after sleep."""
        self._raw[:] = self._shadow[:] = POISON

    def accept_loads(self, loading: Iterable[tuple[int, int]]) -> int:
        """Check what the connector wrote since the last call; returns the bytes it changed.

        `loading` names the (group, block) pairs that a load or a copy may be writing now.
        """
        changed = np.flatnonzero(self._raw != self._shadow)
        if not len(changed):
            return 0
        permitted = np.zeros(len(self._raw), dtype=bool)
        for group, block in loading:
            for layer in self.groups[group]:
                base = layer.shadow.__array_interface__["data"][0]
                origin = base - self._shadow.__array_interface__["data"][0]
                view = np.lib.stride_tricks.as_strided(
                    permitted[origin:], shape=layer.shadow.shape, strides=layer.shadow.strides
                )
                view[block] = True
        wrong = changed[~permitted[changed]]
        if len(wrong):
            raise UnexpectedWrite(
                f"{len(wrong)} bytes changed outside the blocks being written, the first at byte "
                f"{wrong[0]} of the buffer: found {self._raw[wrong[0]]:#x}, "
                f"expected {self._shadow[wrong[0]]:#x}"
            )
        self._shadow[changed] = self._raw[changed]
        return len(changed)
