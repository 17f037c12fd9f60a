"""Snapshot and restore of a live Hugging Face cache: `CacheStore`.

    python examples/cache_store.py

The program calls the model itself. It stores the `DynamicCache` of a prompt, drops it, restores it
into a fresh one, and goes on from there: the logits equal those of the cache that was never gone.
The model is a tiny Qwen3.5 with random weights, made on the spot.
"""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging

from hybrid_pages.demo import models
from hybrid_pages.transformers import CacheStore

BLOCK = 64


@torch.no_grad()
def main() -> int:
    """Run the example; the tokens that were restored."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder = models.ensure("qwen3.5")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(
        models.FIRST_TOKEN, models.VOCAB, (1, 4 * BLOCK + 5), generator=generator
    )
    prompt, rest = tokens[:, : 4 * BLOCK], tokens[:, 4 * BLOCK :]

    with CacheStore(model, host_gb=0.1, block_tokens=BLOCK) as store:
        # Snapshots are taken at the end of a block, where a state is worth keeping.
        cache = DynamicCache(config=model.config)
        model(prompt, past_key_values=cache)
        stored = store.snapshot(cache, prompt)
        expected = model(rest, past_key_values=cache).logits
        del cache

        fresh = DynamicCache(config=model.config)
        restored = store.restore(fresh, tokens)
        found = model(rest, past_key_values=fresh).logits

    if not torch.equal(found, expected):
        raise AssertionError("expected the logits of the cache that was never gone")
    print(f"stored {stored} tokens, restored {restored} of {tokens.shape[1]}; equal logits")
    return restored


if __name__ == "__main__":
    main()
