"""vLLM with hybrid-pages, offline: a conversation that comes back is restored from host memory.

    python examples/vllm_offline.py [MODEL]

One argument of `LLM` turns hybrid-pages on. The program asks, empties vLLM's own prefix cache (as
the prompts of others would), and goes on with the conversation: what came before is restored from
host memory. Without MODEL it uses a tiny Qwen3.5 with random weights, made on the spot.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Sequence

from hybrid_pages.demo import models

# What makes a tiny model quick; hybrid-pages needs none of it.
TINY = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_model_len": 4096,
    "kv_cache_memory_bytes": 128 << 20,
}


def main(words: Sequence[str] = ()) -> tuple[int, int]:
    """Run the example; the prompt tokens that each of the two requests did not compute."""
    if not words:
        # Read when vLLM is imported: one process, no network.
        os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1")
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    llm = LLM(
        model=str(words[0] if words else models.ensure("qwen3.5")),
        kv_transfer_config={
            "kv_connector": "HybridPagesConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"host_gb": 4 if words else 0.25},
        },
        **({} if words else TINY),
    )
    sampling = SamplingParams(temperature=0, max_tokens=16, detokenize=bool(words))

    def ask(prompt: list[int]) -> tuple[int, list[int]]:
        request = TokensPrompt(prompt_token_ids=prompt)
        (output,) = llm.generate([request], sampling, use_tqdm=False)
        return output.num_cached_tokens or 0, list(output.outputs[0].token_ids)

    pick = random.Random(0)
    conversation = [pick.randrange(models.FIRST_TOKEN, models.VOCAB) for _ in range(1500)]
    first, answer = ask(conversation)
    llm.reset_prefix_cache()  # vLLM's own; hybrid-pages keeps what it has
    second, _ = ask([*conversation, *answer, 10, 11, 12])
    print(f"first request: {first} tokens cached; second: {second}, from host memory")
    return first, second


if __name__ == "__main__":
    main(sys.argv[1:])
