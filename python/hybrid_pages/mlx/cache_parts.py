"""Reads and fills the parts of mlx-lm's prompt caches.

A prompt cache is a list with a cache object for each layer. A ``CacheList`` contains several cache
objects. All other objects are *parts*, and a path names each: ``3`` for that of layer 3, or ``3.1``
for the second one of a list there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache

from hybrid_pages import InvalidArgumentError
from hybrid_pages.mlx.versions import UnsupportedError

STEP = KVCache.step
"""The number of tokens by which a ``KVCache`` grows."""


@dataclass(frozen=True)
class Tokens:
    """Keys and values ``[1, heads, tokens, dim]`` in the order of their tokens.

    first: the first of these tokens.
    """

    keys: mx.array
    values: mx.array
    first: int


def parts(cache: Sequence[Any]) -> dict[str, Any]:
    """The parts of a prompt cache by path.

    Raises:
        UnsupportedError: a kind of cache that cannot be copied.
    """
    return {path: part for at, each in enumerate(cache) for path, part in _flat(str(at), each)}


def leaves(cache: Sequence[Any]) -> list[Any]:
    """The cache objects in a prompt cache and its lists, of any kind."""
    return [
        part
        for each in cache
        for part in (leaves(each.caches) if type(each) is CacheList else [each])
    ]


def arrays(cache: Sequence[Any]) -> list[mx.array]:
    """The arrays that a prompt cache holds now, to be computed."""
    held = (
        (part.keys, part.values) if has_tokens(part) else part.cache
        for part in parts(cache).values()
    )
    return [array for each in held for array in each if array is not None]


def _flat(path: str, cache: Any) -> Iterator[tuple[str, Any]]:
    if type(cache) is CacheList:
        for at, each in enumerate(cache.caches):
            yield from _flat(f"{path}.{at}", each)
        return
    if type(cache) not in (KVCache, RotatingKVCache, ArraysCache):
        raise UnsupportedError(
            f"cache {path}: expected KVCache, RotatingKVCache, ArraysCache or a CacheList of them, "
            f"found {type(cache).__name__}: run such prompts without hybrid_pages"
        )
    if type(cache) is RotatingKVCache and cache.keep:
        raise UnsupportedError(
            f"cache {path}: expected a RotatingKVCache that keeps no first tokens, found "
            f"keep={cache.keep}: leave max_kv_size out"
        )
    if type(cache) is ArraysCache and not (cache.left_padding is None and cache.lengths is None):
        raise InvalidArgumentError(
            f"cache {path}: expected a cache of one row without padding, found one of a batch: "
            "extract its rows first"
        )
    yield path, cache


def kind(path: str, part: Any) -> str:
    """A description of a part, to be compared with that of another cache."""
    width = window(part) if has_tokens(part) else None
    size = f" of {len(part.cache)}" if not has_tokens(part) else f" of {width}" if width else ""
    return f"{path} {type(part).__name__}{size}"


def has_tokens(part: Any) -> bool:
    """Whether a part holds keys and values."""
    return type(part) is not ArraysCache


def window(part: Any) -> int | None:
    """How many tokens a part with keys and values keeps, the present one included; None for all of
    them."""
    return int(part.max_size) if type(part) is RotatingKVCache else None


def tokens(part: Any) -> Tokens:
    """The keys and values that a part holds."""
    if type(part) is KVCache:
        return Tokens(part.keys, part.values, 0)
    keys, values = part._temporal_order(part.keys), part._temporal_order(part.values)
    return Tokens(keys, values, part.offset - keys.shape[2])


def is_fresh(part: Any) -> bool:
    """Whether a part has seen no token."""
    if type(part) is ArraysCache:
        return all(state is None for state in part.cache)
    return part.keys is None and part.offset == 0
