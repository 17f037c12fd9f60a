"""The geometry of mlx-lm's prompt caches, and checks of caches against it.

Each array of a prompt cache is one layer of the geometry with one segment, so that its bytes are
dense.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from hybrid_pages import ForeignError, Geometry, InvalidArgumentError, Layer, Segment
from hybrid_pages.adapter.layout import CacheLayout, grouped
from hybrid_pages.mlx import cache_parts
from hybrid_pages.mlx.versions import UnsupportedError

KEYS, VALUES, STATE = "keys", "values", "state"


@dataclass(frozen=True)
class CacheArray:
    """One array of one part of a prompt cache.

    part: path of the part. kind: keys, values or state. index: among the states of the part.
    shape: of one block or one state, without the batch: ``[heads, block_tokens, dim]`` for keys and
    values. window: how many tokens a sliding-window part keeps; None for any other.
    """

    part: str
    kind: str
    index: int
    shape: tuple[int, ...]
    dtype: str
    window: int | None = None

    @property
    def is_state(self) -> bool:
        return self.kind == STATE

    @property
    def is_empty(self) -> bool:
        """Whether it has no bytes, as the values of multi-head latent attention do."""
        return 0 in self.shape

    @property
    def name(self) -> str:
        return f"{self.part}.{self.kind}.{self.index}"

    @property
    def mlx_dtype(self) -> Any:
        return getattr(mx, self.dtype)

    def __str__(self) -> str:
        return f"{self.kind} {self.index} of {self.shape} {self.dtype}"

    def as_layer(self) -> Layer:
        return Layer(self.name, [Segment(self.kind, self.dtype, self.shape)])


@dataclass(frozen=True)
class Layout(CacheLayout[CacheArray]):
    """The arrays and the geometry of one model's prompt caches.

    empty: the arrays of no bytes, which are in no group. kinds: a description of each part.
    """

    empty: tuple[CacheArray, ...]
    kinds: tuple[str, ...]

    def named(self, identity: Mapping[str, str]) -> Layout:
        """This layout with an identity: what its bytes depend on besides shapes and dtypes."""
        geometry = Geometry(
            block_tokens=self.block_tokens, groups=self.geometry.groups, identity=dict(identity)
        )
        return dataclasses.replace(self, geometry=geometry)

    def require_match(self, cache: Sequence[Any]) -> None:
        """Rejects a cache of another layout.

        Raises:
            ForeignError: a cache of another model; names the part, expected and found.
            InvalidArgumentError: a cache of another batch size.
            UnsupportedError: a kind of cache that cannot be copied.
        """
        found = cache_parts.parts(cache)
        kinds = [cache_parts.kind(path, part) for path, part in found.items()]
        for want, have in itertools.zip_longest(self.kinds, kinds, fillvalue="none"):
            if want != have:
                raise ForeignError(f"cache: expected the part {want}, found {have}")
        for path, part in found.items():
            if cache_parts.is_fresh(part):
                continue
            wanted = [spec for spec in (*self.arrays(), *self.empty) if spec.part == path]
            here = list(_specs(path, part, self.block_tokens))
            for spec, other in itertools.zip_longest(sorted(wanted, key=_order), here):
                if spec != other:
                    raise ForeignError(f"cache {path}: expected {spec}, found {other}")

    def require_fresh(self, cache: Sequence[Any]) -> None:
        """Rejects a cache that has seen tokens.

        Raises:
            InvalidArgumentError: names the first part that has seen tokens.
        """
        for path, part in cache_parts.parts(cache).items():
            if not cache_parts.is_fresh(part):
                raise InvalidArgumentError(
                    f"cache {path}: expected a fresh cache, found one that has seen tokens"
                )

    def seen(self, cache: Sequence[Any]) -> int | None:
        """How many tokens a cache has seen; None without attention layers, since only these count.

        Raises:
            InvalidArgumentError: the attention layers disagree.
        """
        found = {
            path: int(part.offset)
            for path, part in cache_parts.parts(cache).items()
            if cache_parts.has_tokens(part)
        }
        if len(set(found.values())) > 1:
            raise InvalidArgumentError(
                f"cache: expected all attention layers at one token, found {found}: was it "
                "trimmed or advanced in parts?"
            )
        return next(iter(found.values()), None)


def read_layout(cache: Sequence[Any], *, block_tokens: int = 32) -> Layout:
    """The layout of a prompt cache of one row that has seen at least one token.

    Args:
        cache: made by ``make_prompt_cache``, of KVCache, RotatingKVCache, ArraysCache, or
            CacheLists of them.
        block_tokens: tokens per block.

    Raises:
        UnsupportedError: another kind of cache, or one that stores nothing.
        InvalidArgumentError: a cache of another batch size, or one that has seen no token.
    """
    found = cache_parts.parts(cache)
    specs = [spec for path, part in found.items() for spec in _specs(path, part, block_tokens)]
    full = [spec for spec in specs if not spec.is_empty]
    if not full:
        raise UnsupportedError("cache: expected one that holds arrays, found none in any part")
    geometry, groups = grouped(full, block_tokens=block_tokens, identity={})
    empty = tuple(spec for spec in specs if spec.is_empty)
    kinds = tuple(cache_parts.kind(path, part) for path, part in found.items())
    return Layout(geometry, groups, empty, kinds)


def _specs(path: str, part: Any, block_tokens: int) -> Iterator[CacheArray]:
    """The arrays of a part that has seen tokens."""
    if cache_parts.has_tokens(part):
        if part.keys is None:
            # A layer that shares the keys of another one never fills its own cache.
            if part.offset:
                raise InvalidArgumentError(
                    f"cache {path}: expected keys of {part.offset} tokens, found none"
                )
            return
        for kind, array in ((KEYS, part.keys), (VALUES, part.values)):
            _require_one_row(path, array)
            shape = (array.shape[1], block_tokens, array.shape[3])
            yield CacheArray(path, kind, 0, shape, dtype_of(array), cache_parts.window(part))
        return
    for index, state in enumerate(part.cache):
        if state is not None:
            _require_one_row(path, state)
            yield CacheArray(path, STATE, index, tuple(state.shape[1:]), dtype_of(state))


def _order(spec: CacheArray) -> tuple[int, int]:
    """A sort key: the order of arrays in a part."""
    return (KEYS, VALUES, STATE).index(spec.kind), spec.index


def dtype_of(array: mx.array) -> str:
    """The name of an array's dtype: ``bfloat16``."""
    return str(array.dtype).rpartition(".")[2]


def _require_one_row(path: str, array: mx.array) -> None:
    if not array.ndim or array.shape[0] != 1:
        raise InvalidArgumentError(
            f"cache {path}: expected a batch of 1 row, found an array of {array.shape}"
        )
