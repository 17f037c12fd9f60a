"""Checks that a model's results do not depend on where a prompt is cut into passes.

A restored prompt is cut elsewhere than one that is computed whole. Some models then give other
texts: quantisation may take one scale from all activations of a pass, experts may have a limited
capacity, or a norm may reach over tokens. Two comparisons of logits show it:

- Passes of equal length whose tokens differ only behind some place. Before that place the same
  kernels compute the same numbers, so the logits are equal in every dtype. Only experts that get
  other numbers of tokens may round differently, in half precision as much as between cuts.
- One pass, and the same tokens in several passes. Kernels round differently there, and layers
  amplify it. By how much is measured: by a pass whose embeddings are each off by one rounding.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from hybrid_pages.transformers.probe import logits
from hybrid_pages.transformers.rope import short_length
from hybrid_pages.transformers.torch_settings import rounding

_TOKENS, _FIRST, _ENDINGS = 48, 8, 3
_FEWEST = 6
# All differences are relative to the size of the logits. If a prompt is cut elsewhere, the logits
# of healthy models of 2 to 24 layers differ by at most 1.1 times what one rounding of the
# embeddings changes. This allows more.
_MARGIN = 4.0
# In float32 they may also differ by 1e-5: behind a quantised layer, a rounding of the embeddings
# may change nothing. This allows more.
_LEAST = 2e-5
# A model that amplifies a rounding by more than this does not work in this dtype.
_MOST = 1e4
# If only later tokens of a pass differ, the logits of healthy models differ by 0, or by 1e-5 if
# there are experts in float32. Quantised activations that share a scale make it 5e-4 to 1, mostly
# above 1e-2.
_MOST_OF_ENDINGS = 2e-4
# Above the rounding of float32, below that of float16.
_COARSE = 1e-5

_CUT = "texts depend on where a prompt is cut"


def depends_on_pass(model: Any, *, continues: bool) -> str | None:
    """Why texts of a model depend on where a prompt is cut into passes, or None.

    continues: whether the model goes on from a recurrent state when it is given several tokens.
    """
    for path, module in model.named_modules():
        threshold = getattr(getattr(module, "state", None), "threshold", 0)
        if type(module).__name__ == "Linear8bitLt" and threshold > 0:
            # Which inputs are outliers depends on all tokens of the pass, later ones included.
            return f"{_CUT}: {path} is a Linear8bitLt with an outlier threshold of {threshold:g}"
    count = short_length(model, _TOKENS)
    if count < _FEWEST:
        return None
    first = min(_FIRST, count // 3)
    prompts = _prompts(model, count, first)
    whole = _run(model, prompts[1], [])
    unit = rounding(model)
    with _rounded(model, unit) as noted:
        changed = _apart(_run(model, prompts[1], []), whole)
    explained = min(max(_MARGIN * changed, _LEAST), _MOST * unit) if noted else _MOST * unit
    coarse = unit > _COARSE and _has_experts(model)
    most = explained if coarse else min(explained, _MOST_OF_ENDINGS)
    same = _run(model, prompts[0], [])[:first]
    for ending in prompts[1:]:
        found = whole if ending is prompts[1] else _run(model, ending, [])
        apart = _apart(found[:first], same)
        if not apart <= most:
            return (
                f"{_CUT}: with other tokens later in a pass, logits differ by {apart:.1g} of their "
                f"size (rounding explains {most:.1g})"
            )
    cuts = [first, count // 2 + 1, count - 1] if continues else [count - 3, count - 2, count - 1]
    apart = _apart(_run(model, prompts[1], cuts), whole)
    if not apart <= explained:
        return (
            f"{_CUT}: in one pass and in {len(cuts) + 1}, logits differ by {apart:.1g} of their "
            f"size (rounding explains {explained:.1g})"
        )
    return None


def _has_experts(model: Any) -> bool:
    return any(
        "expert" in name.lower()
        for path, module in model.named_modules()
        for name in (path, type(module).__name__)
    )


def _prompts(model: Any, count: int, first: int) -> list[torch.Tensor]:
    """Prompts with equal lengths and beginnings: one repeats its beginning, others have random
    endings."""
    generator = torch.Generator().manual_seed(0)
    size = int(model.config.get_text_config(decoder=True).vocab_size)
    beginning = torch.randint(0, size, (first,), generator=generator)
    repeats = beginning.repeat(count // first + 1)[:count]
    found = [repeats]
    for _ in range(_ENDINGS):
        ending = torch.randint(0, size, (count - first,), generator=generator)
        found.append(torch.cat([beginning, ending]))
    return [ids[None].to(model.device) for ids in found]


def _run(model: Any, ids: torch.Tensor, cuts: list[int]) -> torch.Tensor:
    """The logits of each token. The prompt is cut into passes at the given places."""
    cache = DynamicCache(config=model.config)
    positions = torch.arange(ids.shape[1], device=ids.device)[None]
    found = []
    for start, end in zip([0, *cuts], [*cuts, ids.shape[1]], strict=True):
        here = slice(start, end)
        part = logits(model, cache, ids[:, here], position_ids=positions[:, here])
        found.append(part[0].float())
    return torch.cat(found)


def _apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """How much logits differ, relative to their variation.

    A shift of all of them does not count.
    """
    if torch.equal(found, expected):
        return 0.0
    found = found - found.mean(-1, keepdim=True)
    expected = expected - expected.mean(-1, keepdim=True)
    largest = expected.abs().max()  # squares of it may be too large for float32
    size = (expected / largest).norm().item()
    return ((found - expected) / largest).norm().item() / size if size else math.inf


@contextmanager
def _rounded(model: Any, unit: float) -> Iterator[list[None]]:
    """Makes the model's embeddings wrong by one rounding.

    Yields:
        A list that stays empty if no embeddings were changed.
    """
    noted: list[None] = []
    thread = threading.get_ident()

    def change(module: Any, inputs: Any, output: Any) -> Any:
        if threading.get_ident() != thread:  # another thread uses the model meanwhile
            return output
        if not isinstance(output, torch.Tensor) or not output.is_floating_point():
            return output
        noted.append(None)
        generator = torch.Generator().manual_seed(len(noted))
        signs = torch.randint(0, 2, output.shape, generator=generator).to(output.device) * 2 - 1
        return (output.float() * (1 + signs * unit)).to(output.dtype)

    try:
        handle = model.get_input_embeddings().register_forward_hook(change)
    except (AttributeError, NotImplementedError):  # the model does not name its embeddings
        yield noted
        return
    try:
        yield noted
    finally:
        handle.remove()
