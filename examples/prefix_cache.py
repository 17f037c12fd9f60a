"""Prefix reuse with a Hugging Face model: `PrefixCache.generate`.

    python examples/prefix_cache.py [--model FOLDER]

Two questions about one long document. The first call computes the document, the second one restores
it. Both texts equal those of `model.generate`. Without --model it uses a tiny Qwen3.5 with random
weights, made on the spot; prompts are then token ids.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from hybrid_pages.demo import models
from hybrid_pages.transformers import PrefixCache


def main(words: Sequence[str] | None = None) -> list[int]:
    """Run the example; the tokens that each call restored."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", help="a folder with a hybrid model, instead of the tiny one")
    options = parser.parse_args(words)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder = options.model or models.ensure("qwen3.5")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    pick = random.Random(0)
    document = [pick.randrange(models.FIRST_TOKEN, models.VOCAB) for _ in range(500)]
    questions = ([10, 11, 12], [20, 21, 22, 23])

    restored = []
    with PrefixCache(model, host_gb=0.25) as cache:
        for question in questions:
            prompt = torch.tensor([document + question])
            before = cache.stats().restored_tokens
            output = cache.generate(prompt, max_new_tokens=16, do_sample=False)
            restored.append(cache.stats().restored_tokens - before)
            if not torch.equal(output, model.generate(prompt, max_new_tokens=16, do_sample=False)):
                raise AssertionError("expected the text of model.generate")
            print(f"{prompt.shape[1]} prompt tokens, {restored[-1]} restored; the same text")
        print(cache.stats())
    return restored


if __name__ == "__main__":
    main()
