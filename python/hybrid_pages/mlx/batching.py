"""Which models mlx-lm computes correctly in batches."""

from __future__ import annotations

from typing import Any

from mlx_lm.models.cache import ArraysCache, make_prompt_cache

from hybrid_pages.mlx import cache_parts
from hybrid_pages.mlx.differences import BATCHED, DECODED_TOGETHER


def batches_rightly(model: Any) -> bool:
    """Whether batches of a model are known to give the same texts as single rows."""
    return not _is_hybrid(model) or _name(model) in BATCHED


def decodes_rightly(model: Any) -> bool:
    """Whether rows of a model, each with a prompt computed alone, are known to be decoded in a
    batch as they are alone."""
    return not _is_hybrid(model) or _name(model) in DECODED_TOGETHER


def _is_hybrid(model: Any) -> bool:
    found = cache_parts.leaves(make_prompt_cache(model))
    return any(isinstance(part, ArraysCache) for part in found)


def _name(model: Any) -> str:
    return type(model).__module__.rpartition(".")[2]
