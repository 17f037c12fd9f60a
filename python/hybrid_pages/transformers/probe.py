"""Runs a model on a few tokens, to find the layout of its caches and how it goes on from them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from hybrid_pages import HybridPagesError
from hybrid_pages.transformers import layers
from hybrid_pages.transformers.compat import forward_arguments, is_out_of_memory
from hybrid_pages.transformers.copy_check import require_restorable
from hybrid_pages.transformers.layout import Layout, require_cache
from hybrid_pages.transformers.rope import left_alone
from hybrid_pages.transformers.versions import UnknownError, UnsupportedError, untested

_OTHER_STATE = 100.0
# One trial at a time in the process: modules' modes and torch's compiler are shared by all.
_TRIALS = threading.RLock()


def read_layout(model: Any, block_tokens: int, identity: Mapping[str, str]) -> Layout:
    """Runs two tokens through a model and reads the layout of its cache.

    Raises:
        UnknownError: a restore would not bring the cache back whole, or an untested library fails.
        UnsupportedError: the model does not run with a DynamicCache, or the cache has a kind of
            layer that cannot be copied, or no attention.
    """
    try:
        return _read_layout(model, block_tokens, identity)
    except HybridPagesError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        # A failure under a tested transformers is the model's; an untested one may be the cause.
        said = (
            f"model: expected one that runs two tokens with a DynamicCache, found that "
            f"{type(model).__name__} fails with {type(error).__name__}: {error}: use its own "
            "`generate`"
        )
        if untested():
            raise UnknownError(said) from error
        raise UnsupportedError(said) from error


def _read_layout(model: Any, block_tokens: int, identity: Mapping[str, str]) -> Layout:
    cache = DynamicCache(config=model.config)
    require_cache(cache)
    if not any(layers.has_tokens(layer) for layer in cache.layers):
        raise UnsupportedError(
            "model: expected at least one attention layer, whose keys tell how many tokens have "
            "been seen, found none"
        )
    forward(model, cache)
    layout = Layout.of_cache(cache, block_tokens=block_tokens, identity=identity)
    require_restorable(layout, cache, DynamicCache(config=model.config))
    return layout


def continues(model: Any, layout: Layout) -> bool:
    """Whether a model that is given several tokens starts from all the states in its cache.

    Some do not: the selective scan of Jamba in transformers 5.19 starts from zero unless it is
    given exactly one token (``mamba_selective_scan`` in ``models/jamba/modeling_jamba.py``). For
    the first state of each kind, two runs that differ in this state only must have different
    logits.
    """
    firsts = {spec.kind: spec for spec in reversed(list(layout.arrays())) if spec.is_state}
    for spec in firsts.values():
        found = []
        for value in (0.0, _OTHER_STATE):
            cache = DynamicCache(config=model.config)
            forward(model, cache)
            state = layers.states(cache.layers[spec.layer])[spec.kind, spec.index]
            state.fill_(value)
            found.append(forward(model, cache))
        if torch.equal(*found):
            return False
    return True


def forward(model: Any, cache: Any, tokens: int = 2) -> torch.Tensor:
    """Runs some tokens through a model with a cache; returns the logits of the last token.

    The model runs in evaluation mode without autocast, as calls that use the cache do. Afterwards
    modes and rotary frequencies are as before.
    """
    ids = torch.zeros((1, tokens), dtype=torch.int64, device=model.device)
    return logits(model, cache, ids)[:, -1]


def logits(model: Any, cache: Any, ids: torch.Tensor, **optional: Any) -> torch.Tensor:
    """Runs token ids through a model as :func:`forward` does; returns the logits of all tokens.

    optional: arguments that the model gets if it takes them.
    """
    with aside(model):
        found = model(input_ids=ids, **forward_arguments(model, cache, optional)).logits
    assert isinstance(found, torch.Tensor)
    return found


@contextmanager
def aside(model: Any) -> Iterator[None]:
    """The context in which a model is tried out, see :func:`forward`."""
    autocast = torch.autocast(model.device.type, enabled=False)
    with _TRIALS, _uncompiled(), _evaluating(model), left_alone(model), autocast, torch.no_grad():
        yield


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Runs compiled functions eagerly.

    Each new length makes torch compile a function again. After some times it gives up, and the
    function stays slow or, with ``fullgraph``, fails.
    """
    if "torch._dynamo" not in sys.modules:  # nothing is compiled
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Puts all modules into evaluation mode, and afterwards back into their own modes."""
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
