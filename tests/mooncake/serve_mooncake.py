"""One engine on a Mooncake Store: each prompt once. Prints one JSON line, and waits for a line.

usage: serve_mooncake.py MODEL URL LENGTH ...
"""

import json
import sys
import time

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

LIMIT = 120.0


def main(model: str, url: str, lengths: list[int]) -> None:
    llm = LLM(
        model=model,
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=4096,
        max_num_seqs=4,
        max_num_batched_tokens=1000,
        kv_cache_memory_bytes=64 << 20,
        disable_log_stats=False,
        kv_transfer_config={
            "kv_connector": "HybridPagesConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "host_gb": 0.1,
                "remote_url": url,
                # As long as processes need on a busy machine.
                "remote_deadline_ms": 30_000,
                "remote_admit": "all",
            },
        },
    )
    sampling = SamplingParams(
        temperature=0, max_tokens=6, ignore_eos=True, detokenize=False, logprobs=3
    )

    def ask(length: int, seed: int) -> list[object]:
        """One prompt, alone: cached tokens, tokens, log-probabilities."""
        ids = [3 + (seed + length + i * i) % 500 for i in range(length)]
        given = TokensPrompt(prompt_token_ids=ids)
        (output,) = llm.generate([given], sampling, use_tqdm=False)
        answer = output.outputs[0]
        likely = [
            sorted((token, entry.logprob) for token, entry in position.items())
            for position in answer.logprobs
        ]
        return [output.num_cached_tokens, list(answer.token_ids), likely]

    def metrics() -> dict[str, float]:
        found = {}
        for metric in llm.get_metrics():
            if "hybrid_pages" in metric.name and hasattr(metric, "value"):
                names = ("source", "kind", "reason", "event")
                labels = [metric.labels[name] for name in names if name in metric.labels]
                name = metric.name.removeprefix("vllm:hybrid_pages_")
                found[":".join([name, *labels])] = metric.value
        return found

    # Its client starts with the first step. So short a prompt is never restored.
    begun = time.monotonic()
    while ask(10, 7) and metrics().get("remote_out") != 0:
        if time.monotonic() - begun > LIMIT:
            raise RuntimeError(f"expected a store that answers, found {metrics()}")
        time.sleep(0.1)
    answers = [ask(length, 0) for length in lengths]
    while (found := metrics()).get("remote_queue:written"):
        ask(10, 7)
    print("FOUND " + json.dumps({"answers": answers, "metrics": found}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], [int(length) for length in sys.argv[3:]])
