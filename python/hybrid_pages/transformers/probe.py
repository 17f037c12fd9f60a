"""What a model's caches are made of and whether it goes on from them, seen on a few tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from hybrid_pages.transformers import layers
from hybrid_pages.transformers.layout import Layout, require_cache
from hybrid_pages.transformers.support import UnsupportedError

_OTHER_STATE = 100.0


def read_layout(model: Any, block_tokens: int, identity: Mapping[str, str]) -> Layout:
    """Runs two tokens through a model and reads its cache.

    Raises:
        UnsupportedError: its cache has a kind of layer that cannot be moved, or no attention.
    """
    cache = DynamicCache(config=model.config)
    require_cache(cache)
    if not any(layers.has_tokens(layer) for layer in cache.layers):
        raise UnsupportedError(
            "model: expected at least one attention layer, whose keys tell how many tokens have "
            "been seen, found none"
        )
    _run(model, cache)
    return Layout.of_cache(cache, block_tokens=block_tokens, identity=identity)


def continues(model: Any, layout: Layout) -> bool:
    """Whether a model that is given several tokens starts from all the states in its cache.

    Not all do: the selective scan of Jamba in transformers 5.19 starts from zero unless it is given
    exactly one token (``mamba_selective_scan`` in ``models/jamba/modeling_jamba.py``). Told from
    runs that differ in one state alone, the first of its kind: do their logits differ?
    """
    firsts = {part.kind: part for part in reversed(list(layout.parts())) if part.is_state}
    for part in firsts.values():
        logits = []
        for value in (0.0, _OTHER_STATE):
            cache = DynamicCache(config=model.config)
            _run(model, cache)
            state = layers.states(cache.layers[part.layer])[part.kind, part.index]
            state.fill_(value)
            logits.append(_run(model, cache))
        if torch.equal(*logits):
            return False
    return True


def _run(model: Any, cache: Any) -> torch.Tensor:
    """Runs two tokens through a model and its cache; the logits of the last."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            ids = torch.zeros((1, 2), dtype=torch.int64, device=model.device)
            logits = model(input_ids=ids, past_key_values=cache, use_cache=True).logits
    finally:
        model.train(training)
    last: torch.Tensor = logits[:, -1]
    return last
