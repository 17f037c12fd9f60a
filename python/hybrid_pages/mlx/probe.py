"""Runs a model on a few tokens, to find the layout of its caches and check that a copy suffices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from hybrid_pages.adapter.layout import require_blocks_in_windows
from hybrid_pages.mlx import cache_parts
from hybrid_pages.mlx.cache_io import Reader, Writer, states_of
from hybrid_pages.mlx.chunk_invariance import require_even_passes
from hybrid_pages.mlx.layout import Layout, read_layout
from hybrid_pages.mlx.numpy_views import numpy_dtype
from hybrid_pages.mlx.versions import UnsupportedError

# How much logits of a copied cache may differ, relative to the largest one. Kernels differ by less.
_TOLERANCE = 0.02
_FIRST, _REST = 11, 3


# The class of modules whose keys depend on where the pass that computed them ended.
_BY_PASS = "DynamicNTKScalingRoPE"


def try_model(model: Any, block_tokens: int) -> Layout:
    """The layout of a model's caches, without an identity.

    A few tokens are run through the model, once with its cache and once with a copy of it. A model
    that remembers something elsewhere is rejected, and so is one whose results depend on where a
    prompt is cut.

    Raises:
        UnsupportedError: a kind of cache that cannot be copied, or a model that cannot be resumed.
        SettingsError: block_tokens is not less than a sliding window.
    """
    if not hasattr(model, "layers"):
        raise UnsupportedError(f"model: expected one of mlx-lm, found {type(model).__name__}")
    _require_even_keys(model)
    ids = mx.array([[token % 2 for token in range(_FIRST)]])
    rest = mx.array([[1 - token % 2 for token in range(_REST)]])
    cache = make_prompt_cache(model)
    with _even_windows(model, cache):
        model(ids, cache=cache)
    mx.eval(cache_parts.arrays(cache))
    layout = read_layout(cache, block_tokens=block_tokens)
    require_blocks_in_windows(layout.geometry)
    copied = _copied(model, layout, cache)
    # Single tokens, as in decoding, may run through other code.
    for tokens in (rest, rest[:, :1]):
        expected, found = (model(tokens, cache=each).astype(mx.float32) for each in (cache, copied))
        mx.eval(expected, found)
        apart = mx.abs(expected - found).max().item()
        most = mx.abs(expected).max().item() * _TOLERANCE
        if not apart <= most:
            raise UnsupportedError(
                f"model: expected one whose caches hold all that it remembers, found logits that "
                f"differ by {apart:.3g} after its caches were copied (at most {most:.3g} allowed): "
                f"{type(model).__module__} cannot be resumed"
            )
    require_even_passes(model, expected.shape[-1])
    return layout


def _require_even_keys(model: Any) -> None:
    for path, module in model.named_modules():
        if type(module).__name__ == _BY_PASS:
            raise UnsupportedError(
                f"model: expected keys that depend on their position alone, found {_BY_PASS} at "
                f"{path}: long prompts give other texts where they are cut elsewhere, "
                f"{type(model).__module__} cannot be resumed"
            )


@contextmanager
def _even_windows(model: Any, cache: Any) -> Iterator[None]:
    """Rejects a model whose mask shows more of a window than its cache keeps for the next pass.

    The model asks the cache for the mask, so this shows with prompts of any length.
    """
    asked: list[tuple[str, int, int]] = []

    def noting(path: str, part: Any) -> Callable[..., Any]:
        make = part.make_mask

        def make_mask(count: int, window_size: int | None = None, **more: Any) -> Any:
            asked.append((path, window_size or part.max_size, part.max_size))
            return make(count, window_size=window_size, **more)

        return make_mask

    windows = {
        path: part for path, part in cache_parts.parts(cache).items() if cache_parts.window(part)
    }
    for path, part in windows.items():
        part.make_mask = noting(path, part)
    yield
    for part in windows.values():
        del part.make_mask
    for path, seen, kept in asked:
        if seen > kept:
            raise UnsupportedError(
                f"cache {path}: expected a window of the {kept} tokens that it keeps, found a mask "
                f"that shows {seen}: texts depend on where a prompt is cut, "
                f"{type(model).__module__} cannot be resumed"
            )


def _copied(model: Any, layout: Layout, cache: Any) -> Any:
    """A fresh cache that is filled from another one, as a restore does it."""
    import numpy as np

    reader = Reader(layout, cache, states_of(layout, cache), _FIRST)
    writer = Writer(layout, _FIRST)
    blocks = -(-_FIRST // layout.block_tokens)
    for spec in layout.arrays():
        for block in range(1 if spec.is_state else blocks):
            page = np.zeros((1, *spec.shape), numpy_dtype(spec.mlx_dtype))
            reader(spec, block, page)
            writer(spec, block, page)
    fresh = make_prompt_cache(model)
    writer.adopt(fresh)
    return fresh
