"""Checks that a model's results do not depend on where a prompt is cut into passes.

A restored prompt is cut elsewhere than one that is computed whole. Two comparisons of logits show
whether that matters: passes of equal length whose tokens differ only behind some place, before
which everything is computed alike; and one pass beside the same tokens in several passes, where
kernels round differently and layers amplify it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from hybrid_pages.mlx import cache_parts
from hybrid_pages.mlx.versions import UnsupportedError

_TOKENS, _FIRST, _ENDINGS = 48, 8, 3
# Differences are relative to the size of the logits. Healthy models in float32 differ by less than
# 1e-5. In 16 bits they differ by up to 0.23 between other cuts, if routes to experts flip, and by
# nothing if only later tokens of a pass differ. Activations that share a scale make a difference of
# 1e-2 and more.
_MOST_OF_ENDINGS = {True: 2e-4, False: 2e-3}
_MOST_OF_CUTS = {True: 1e-3, False: 0.3}


def require_even_passes(model: Any, vocabulary: int) -> None:
    """Rejects a model whose results depend on where a prompt is cut.

    Raises:
        UnsupportedError: names what was compared, and the difference.
    """
    prompts = _prompts(vocabulary)
    whole = _logits(model, prompts[1], [])
    wide = all(a.dtype == mx.float32 for _, a in tree_flatten(model) if _is_float(a))
    same = _logits(model, prompts[0], [])[:_FIRST]
    for ending in prompts[1:]:
        found = whole if ending is prompts[1] else _logits(model, ending, [])
        apart, most = _apart(found[:_FIRST], same), _MOST_OF_ENDINGS[wide]
        if not apart <= most:
            raise _uneven(model, "with other tokens later in a pass", apart, most)
    cuts = [_FIRST, _TOKENS // 2 + 1, _TOKENS - 1]
    apart, most = _apart(_logits(model, prompts[1], cuts), whole), _MOST_OF_CUTS[wide]
    if not apart <= most:
        raise _uneven(model, f"in one pass and in {len(cuts) + 1}", apart, most)


def _uneven(model: Any, compared: str, apart: float, most: float) -> UnsupportedError:
    return UnsupportedError(
        f"model: expected results that do not depend on where a prompt is cut, found logits that "
        f"differ by {apart:.1g} of their size {compared} (at most {most:.1g} is rounding): "
        f"{type(model).__module__} cannot be resumed"
    )


def _is_float(array: Any) -> bool:
    return isinstance(array, mx.array) and mx.issubdtype(array.dtype, mx.floating)


def _prompts(vocabulary: int) -> list[mx.array]:
    """Prompts with equal lengths and beginnings: one repeats its beginning, others have random
    endings."""
    keys = mx.random.split(mx.random.key(0), _ENDINGS + 1)
    beginning = mx.random.randint(0, vocabulary, (_FIRST,), key=keys[0])
    found = [mx.concatenate([beginning] * (_TOKENS // _FIRST))]
    for key in keys[1:]:
        ending = mx.random.randint(0, vocabulary, (_TOKENS - _FIRST,), key=key)
        found.append(mx.concatenate([beginning, ending]))
    return found


def _logits(model: Any, ids: mx.array, cuts: Sequence[int]) -> mx.array:
    """The logits of each token. The prompt is cut into passes at the given places."""
    cache, found = make_prompt_cache(model), []
    for start, end in zip([0, *cuts], [*cuts, ids.size], strict=True):
        found.append(model(ids[None, start:end], cache=cache)[0].astype(mx.float32))
        mx.eval(found[-1], cache_parts.arrays(cache))
    return mx.concatenate(found)


def _apart(found: mx.array, expected: mx.array) -> float:
    """How much logits differ, relative to their variation. A shift of all does not count."""
    if mx.array_equal(found, expected).item():
        return 0.0
    found = found - found.mean(-1, keepdims=True)
    expected = expected - expected.mean(-1, keepdims=True)
    largest = mx.abs(expected).max()  # squares of it may be too large for float32
    size = mx.linalg.norm(expected / largest).item()
    difference = mx.linalg.norm((found - expected) / largest).item()
    return float(difference / size) if size else math.inf
