"""Checks that ``generate`` gives the same text with a restored cache as without a cache.

Tests show this for the versions that they run. With a newer transformers it is checked for each
model before the first restore, since the way in which ``generate`` takes a cache may have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import StoppingCriteriaList

from hybrid_pages.transformers.compat import cache_argument
from hybrid_pages.transformers.copy_check import require_restorable
from hybrid_pages.transformers.layout import Layout
from hybrid_pages.transformers.probe import aside, forward
from hybrid_pages.transformers.versions import UnknownError

_RESTORED, _TOKENS, _NEW = 2, 3, 2
ROOM = _TOKENS + _NEW
"""The room in tokens that a static cache needs for the check."""


def require_same_text(model: Any, layout: Layout, fresh: Callable[[], Any]) -> None:
    """Runs ``generate`` on three tokens, without a cache and with two of them restored.

    fresh: makes an empty cache.

    Raises:
        UnknownError: the texts differ, or a layer would not be restored whole.
        Exception: whatever the model raises.
    """
    first, restored = fresh(), fresh()
    forward(model, first, _RESTORED)
    require_restorable(layout, first, restored)
    ids = torch.zeros((1, _TOKENS), dtype=torch.int64, device=model.device)
    call = dict(attention_mask=torch.ones_like(ids), max_new_tokens=_NEW, do_sample=False)
    with aside(model):
        expected = model.generate(ids, **call)
        found = model.generate(
            inputs=ids,
            stopping_criteria=StoppingCriteriaList(),
            **{cache_argument(): restored},
            **call,
        )
    expected, found = (
        each if isinstance(each, torch.Tensor) else each.sequences for each in (expected, found)
    )
    if not torch.equal(expected, found):
        raise UnknownError(
            f"model: expected {expected[0].tolist()} after a restore, found {found[0].tolist()}"
        )
