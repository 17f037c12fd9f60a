"""One engine in vLLM's default multi-process mode: cold, local hit, restored. Prints one JSON line.

usage: serve_once.py MODEL TENSOR_RANKS[xSTAGES] LENGTH ... [forever]

With `forever` it then restores the prompts and stores others until it is ended.
"""

import json
import sys

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt


class StageBuffers:
    """Makes the buffers between pipeline stages, as vLLM does when it warms up a model. On a CPU it
    does so only if it compiles the model, too."""

    def make_stage_buffers(self) -> None:
        runner = self.model_runner
        runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
            batch_size=runner.max_num_tokens, dtype=runner.dtype, device=runner.device
        )


def main(model: str, ranks: int, stages: int, lengths: list[int], forever: bool) -> None:
    llm = LLM(
        model=model,
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=4096,
        max_num_seqs=4,
        max_num_batched_tokens=1000,
        kv_cache_memory_bytes=64 << 20,
        tensor_parallel_size=ranks,
        pipeline_parallel_size=stages,
        worker_extension_cls="serve_once.StageBuffers",
        disable_log_stats=False,
        kv_transfer_config={
            "kv_connector": "HybridPagesConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"host_gb": 0.1, "verify_on_load": True},
        },
    )
    if stages > 1:
        llm.collective_rpc("make_stage_buffers")
    prompts = [
        [3 + (seed + i * i) % 500 for i in range(length)] for seed, length in enumerate(lengths)
    ]
    sampling = SamplingParams(
        temperature=0, max_tokens=6, ignore_eos=True, detokenize=False, logprobs=3
    )

    def ask(prompt: list[int]) -> list[object]:
        """One prompt, alone: cached tokens, tokens, log-probabilities."""
        given = TokensPrompt(prompt_token_ids=prompt)
        (output,) = llm.generate([given], sampling, use_tqdm=False)
        answer = output.outputs[0]
        likely = [
            sorted((token, entry.logprob) for token, entry in position.items())
            for position in answer.logprobs
        ]
        return [output.num_cached_tokens, list(answer.token_ids), likely]

    def reset(connector: bool) -> None:
        if not llm.reset_prefix_cache(reset_connector=connector):
            raise RuntimeError("vLLM could not reset its prefix cache")

    found: dict[str, object] = {}
    found["cold"] = [ask(prompt) for prompt in prompts]
    found["local"] = [ask(prompt) for prompt in prompts]
    reset(connector=False)
    found["restored"] = [ask(prompt) for prompt in prompts]
    reset(connector=True)
    found["forgotten"] = [ask(prompt) for prompt in prompts]
    found["metrics"] = {
        metric.name
        + "".join(
            f":{metric.labels.get(key)}" for key in ("source", "kind") if key in metric.labels
        ): metric.value
        for metric in llm.get_metrics()
        if "hybrid_pages" in metric.name and hasattr(metric, "value")
    }
    print("FOUND " + json.dumps(found), flush=True)
    while forever:
        llm.reset_prefix_cache()  # not while a store reads blocks
        for prompt in prompts:
            ask(prompt)
            prompt[-1] = 3 + prompt[-1] % 500


if __name__ == "__main__":
    ranks, _, stages = sys.argv[2].partition("x")
    lengths = [int(word) for word in sys.argv[3:] if word != "forever"]
    main(sys.argv[1], int(ranks), int(stages or 1), lengths, sys.argv[-1] == "forever")
