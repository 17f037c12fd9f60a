"""Cold runs to compare with, and what equal means."""

import torch
from transformers import DynamicCache, StaticCache

from hybrid_pages.transformers.compat import forward_arguments

BLOCK = 16
# Two cold runs of one prompt, cut at different places, differ by 1e-5 of logits around 10.
NOISE = 1e-4
# What a wrong page or state changes at least: far above the noise.
VISIBLE = 1e-2
GREEDY = dict(do_sample=False, return_dict_in_generate=True, output_logits=True)


def new_cache(model, static=None):
    """A fresh cache: dynamic, or static for so many tokens."""
    if static is None:
        return DynamicCache(config=model.config)
    return StaticCache(config=model.config, max_cache_len=static)


@torch.no_grad()
def feed(model, cache, ids, start, end=None, step=None):
    """Runs the tokens [start, end) through a cache that has seen start; the logits of all."""
    end = ids.shape[1] if end is None else end
    logits = []
    for first in range(start, end, step or max(end - start, 1)):
        last = min(end, first + (step or end - start))
        positions = torch.arange(first, last, device=ids.device)[None]
        arguments = forward_arguments(model, cache, {"position_ids": positions})
        out = model(input_ids=ids[:, first:last], **arguments)
        logits.append(out.logits)
    return torch.cat(logits, dim=1)


def tail_step(name):
    """How many tokens a model continues with at once: Jamba's scan goes on by single ones only."""
    return 1 if name == "jamba" else None


def tensors(cache):
    """Every tensor of a cache by name, as copies, with the flags."""
    found = {}
    for index, layer in enumerate(cache.layers):
        for name, value in vars(layer).items():
            items = value.items() if isinstance(value, dict) else [("", value)]
            for key, item in items:
                item = item.clone() if isinstance(item, torch.Tensor) else item
                found[index, name, key] = item
    return found


def same(left, right):
    """Whether two results of `tensors` are the same, bit for bit."""

    def equal(a, b):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            return a.dtype == b.dtype and torch.equal(a, b)
        return a is b or a == b

    return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)


def difference(left, right):
    """The largest difference between two tensors or two tuples of them."""
    pairs = zip(left, right, strict=True) if isinstance(left, tuple) else [(left, right)]
    return max((a - b).abs().max().item() for a, b in pairs)


def agree(cache, ids, new=6, **kwargs):
    """Generates with the cache and without: the texts have to be equal. How much was restored."""
    kwargs = dict(do_sample=False, max_new_tokens=new) | kwargs
    expected = cache.model.generate(ids, **kwargs)
    before = cache.stats()
    found = cache.generate(ids, **kwargs)
    after = cache.stats()
    assert torch.equal(found, expected)
    return after.restored_tokens - before.restored_tokens
