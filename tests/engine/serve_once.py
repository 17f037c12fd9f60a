"""One engine in vLLM's default multi-process mode: cold, local hit, restored. Prints one JSON line.

usage: serve_once.py MODEL TENSOR_PARALLEL_SIZE
"""

import json
import sys

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt


def main(model: str, ranks: int) -> None:
    llm = LLM(
        model=model,
        skip_tokenizer_init=True,
        enforce_eager=True,
        block_size=32,
        max_model_len=2048,
        max_num_seqs=4,
        kv_cache_memory_bytes=64 << 20,
        tensor_parallel_size=ranks,
        disable_log_stats=False,
        kv_transfer_config={
            "kv_connector": "HybridPagesConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"host_gb": 0.1, "verify_on_load": True},
        },
    )
    length = llm.llm_engine.vllm_config.cache_config.block_size * 4 + 9
    prompts = [[3 + (seed + i * i) % 500 for i in range(length)] for seed in (1, 2)]

    def ask() -> list[object]:
        outputs = llm.generate(
            [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts],
            SamplingParams(
                temperature=0, max_tokens=6, ignore_eos=True, detokenize=False, logprobs=3
            ),
            use_tqdm=False,
        )
        return [
            [
                output.num_cached_tokens,
                list(output.outputs[0].token_ids),
                [
                    sorted((token, entry.logprob) for token, entry in position.items())
                    for position in output.outputs[0].logprobs
                ],
            ]
            for output in outputs
        ]

    def reset(connector: bool) -> None:
        if not llm.reset_prefix_cache(reset_connector=connector):
            raise RuntimeError("vLLM could not reset its prefix cache")

    found = {"cold": ask(), "local": ask()}
    reset(connector=False)
    found["restored"] = ask()
    reset(connector=True)
    found["forgotten"] = ask()
    found["metrics"] = {
        metric.name
        + "".join(
            f":{metric.labels.get(key)}" for key in ("source", "kind") if key in metric.labels
        ): metric.value
        for metric in llm.get_metrics()
        if "hybrid_pages" in metric.name and hasattr(metric, "value")
    }
    print("FOUND " + json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
