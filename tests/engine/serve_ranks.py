"""One engine on a disk, in vLLM's default multi-process mode: each prompt twice. Prints one JSON
line, and then waits to be ended if told to.

usage: serve_ranks.py MODEL DISK TENSOR_PARALLEL_SIZE end|wait LENGTH ...
"""

import json
import sys
import time

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt


def main(model: str, disk: str, ranks: int, lengths: list[int]) -> dict[str, object]:
    llm = LLM(
        model=model,
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=4096,
        max_num_seqs=4,
        max_num_batched_tokens=1000,
        kv_cache_memory_bytes=64 << 20,
        tensor_parallel_size=ranks,
        disable_log_stats=False,
        kv_transfer_config={
            "kv_connector": "HybridPagesConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "host_gb": 0.1,
                "disk_path": disk,
                "disk_gb": 0.5,
                # As long as processes need to report on a busy machine.
                "disk_deadline_ms": 60_000,
            },
        },
    )
    sampling = SamplingParams(
        temperature=0, max_tokens=6, ignore_eos=True, detokenize=False, logprobs=3
    )

    def ask(length: int) -> list[object]:
        """One prompt, alone: cached tokens, tokens, log-probabilities."""
        given = TokensPrompt(prompt_token_ids=[3 + (length + i * i) % 500 for i in range(length)])
        (output,) = llm.generate([given], sampling, use_tqdm=False)
        answer = output.outputs[0]
        likely = [
            sorted((token, entry.logprob) for token, entry in position.items())
            for position in answer.logprobs
        ]
        return [output.num_cached_tokens, list(answer.token_ids), likely]

    first = [ask(length) for length in lengths]
    local = [ask(length) for length in lengths]
    metrics: dict[str, float] = {}
    for metric in llm.get_metrics():
        if "hybrid_pages" in metric.name and hasattr(metric, "value"):
            names = ("source", "kind", "reason", "event", "identity")
            labels = [metric.labels[name] for name in names if name in metric.labels]
            metrics[":".join([metric.name.removeprefix("vllm:hybrid_pages_"), *labels])] = (
                metric.value
            )
    return {"first": first, "local": local, "metrics": metrics}


if __name__ == "__main__":
    _, model, disk, ranks, how, *lengths = sys.argv
    found = main(model, disk, int(ranks), [int(length) for length in lengths])
    print("FOUND " + json.dumps(found), flush=True)
    if how == "wait":
        time.sleep(3600)
