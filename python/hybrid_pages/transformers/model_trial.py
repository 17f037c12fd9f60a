"""A model tried out on a few tokens, to learn whether its caches may be stored and restored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from hybrid_pages.transformers import structure
from hybrid_pages.transformers.chunk_invariance import depends_on_pass
from hybrid_pages.transformers.compat import is_out_of_memory
from hybrid_pages.transformers.layout import Layout
from hybrid_pages.transformers.probe import continues, read_layout
from hybrid_pages.transformers.restore_check import require_same_text
from hybrid_pages.transformers.structure import Structure
from hybrid_pages.transformers.taint import reaches_outputs
from hybrid_pages.transformers.versions import reason_of, untested
from hybrid_pages.transformers.weight_samples import WeightSampler

RANDOM = "random numbers in forward passes"
"""Why a model runs uncached whose passes draw random numbers: a restore would draw fewer, and texts
would not be those of the same seed."""
NO_MEMORY = "out of memory while trying the model out"


@dataclass(frozen=True)
class Trial:
    """What a few passes have shown of a model.

    continues: whether it goes on from a recurrent state when it is given several tokens. uncached:
    why the cache cannot be used, or None. written: the full names of the tensors and attributes
    that each pass writes; None where the model failed on two tokens.
    """

    continues: bool
    uncached: str | None
    written: frozenset[str] | None


def try_out(model: Any, layout: Layout, sampler: WeightSampler) -> Trial:
    """Runs a model on a few tokens. Torch's random numbers go on as if it had not run.

    layout: that the model's caches should have. sampler: reads the tensors before and after.
    """
    generators = random_states(model)
    before = structure.describe(model)
    sample = sampler.read(before.tensors, before.replaced)
    try:
        now = read_layout(model, layout.block_tokens, layout.geometry.identity)
        goes_on = continues(model, layout) if now.groups == layout.groups else False
    except Exception as error:  # code of the model ran; `generate` may not meet the same error
        kind = type(error.__cause__ or error).__name__
        return Trial(False, f"the model fails on two tokens: {kind}", None)
    reason = None
    if now.groups != layout.groups:
        reason = "model changed"
    if not all(map(torch.equal, generators, random_states(model))):
        set_random_states(model, generators)
        reason = RANDOM
    after = structure.describe(model)
    # What a first pass works out and keeps is no change of what was there.
    new = after.replaced - before.tensors.keys()
    tensors = sample.changed(sampler.read(after.tensors, after.replaced))
    tensors = [name for name in tensors if name not in new]
    attributes = list(differences(before, after))
    if attributes:
        reason = f"{attributes[0]} is written by each forward pass"
    for name in tensors:
        if name not in after.tensors or _matters(model, name):
            reason = f"{name} is written by each forward pass"
    if reason is None:
        reason = _chunk_dependence(model, goes_on)
    if reason is None and untested():
        reason = _restore_failure(model, layout)
        set_random_states(model, generators)
    return Trial(goes_on, reason, frozenset(tensors) | frozenset(attributes))


def differences(before: Structure, after: Structure) -> Iterator[str]:
    """The full names of the attributes in which two descriptions of a model differ."""
    for name, values in after.modules.items():
        old = before.modules.get(name)
        if old == values:
            continue
        left, right = (dict(side.attributes) if side else {} for side in (old, values))
        differing = [key for key in left | right if left.get(key) != right.get(key)]
        if not differing:
            same_code = old is not None and old.code == values.code
            differing = ["modules" if same_code else "forward"]
        yield from (f"{name}.{key}" if name else str(key) for key in differing)


def _chunk_dependence(model: Any, goes_on: bool) -> str | None:
    """Why texts would depend on where prompts are cut into passes, or None."""
    generators = random_states(model)
    try:
        reason = depends_on_pass(model, continues=goes_on)
    except Exception as error:  # code of the model ran; `generate` may not meet the same error
        failed = f"the model fails on a few tokens: {type(error).__name__}"
        reason = NO_MEMORY if is_out_of_memory(error) else failed
    if not all(map(torch.equal, generators, random_states(model))):
        set_random_states(model, generators)
        reason = RANDOM
    return reason


def _restore_failure(model: Any, layout: Layout) -> str | None:
    """Why a model does not go on from a restored cache under an untested transformers, or None."""
    try:
        require_same_text(model, layout, lambda: DynamicCache(config=model.config))
    except Exception as error:  # an untested version may fail in any way: the reason is counted
        return NO_MEMORY if is_out_of_memory(error) else reason_of(error)
    return None


def _matters(model: Any, name: str) -> bool:
    """Whether anything that is stored or answered depends on a tensor that passes write."""
    try:
        return reaches_outputs(model, lambda: structure.describe(model).tensors[name])
    except Exception:  # what cannot be followed may matter
        return True


def random_states(model: Any) -> list[torch.Tensor]:
    """The states of the generators of random numbers that a model's passes draw from."""
    states = [torch.get_rng_state()]
    if model.device.type == "cuda":
        states.append(torch.cuda.get_rng_state(model.device))
    return states


def set_random_states(model: Any, states: list[torch.Tensor]) -> None:
    """Puts the generators back into states that :func:`random_states` has returned."""
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1], model.device)
