"""One engine on a disk, in vLLM's default multi-process mode, which waits to be ended by others.

It asks every prompt twice, prints one JSON line and waits.

usage: serve_disk.py MODEL DISK LENGTH ...
"""

import json
import sys
import time

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt


def main(model: str, disk: str, lengths: list[int]) -> None:
    llm = LLM(
        model=model,
        skip_tokenizer_init=True,
        enforce_eager=True,
        block_size=32,
        max_model_len=4096,
        max_num_seqs=4,
        max_num_batched_tokens=1000,
        kv_cache_memory_bytes=64 << 20,
        disable_log_stats=False,
        kv_transfer_config={
            "kv_connector": "HybridPagesConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"host_gb": 0.1, "disk_path": disk, "disk_gb": 0.2},
        },
    )
    sampling = SamplingParams(
        temperature=0, max_tokens=6, ignore_eos=True, detokenize=False, logprobs=3
    )

    def ask(length: int) -> list[object]:
        """One prompt, alone: cached tokens, tokens, log-probabilities."""
        prompt = [3 + (length + i * i) % 500 for i in range(length)]
        given = TokensPrompt(prompt_token_ids=prompt)
        (output,) = llm.generate([given], sampling, use_tqdm=False)
        answer = output.outputs[0]
        likely = [
            sorted((token, entry.logprob) for token, entry in position.items())
            for position in answer.logprobs
        ]
        return [output.num_cached_tokens, list(answer.token_ids), likely]

    found = {key: [ask(length) for length in lengths] for key in ("first", "local")}
    found["metrics"] = {
        f"{metric.name}:{metric.labels.get('source', '')}": metric.value
        for metric in llm.get_metrics()
        if "hybrid_pages_hit_tokens" in metric.name
    }
    print("FOUND " + json.dumps(found), flush=True)
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], [int(length) for length in sys.argv[3:]])
