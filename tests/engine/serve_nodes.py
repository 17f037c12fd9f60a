"""One engine on two nodes, each of which is started by this file. The first one asks: cold, local
hit, restored. It prints one JSON line for each.

usage: serve_nodes.py NODE PORT MODEL TENSOR_RANKS STAGES SETTINGS LENGTH ...

A line on the standard input lets the first node go on to the next part.
"""

import json
import sys

ENGINE = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_model_len": 4096,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 1000,
    "kv_cache_memory_bytes": 64 << 20,
    "nnodes": 2,
    "master_addr": "127.0.0.1",
    "distributed_executor_backend": "mp",
    "worker_extension_cls": "serve_once.StageBuffers",
    "disable_log_stats": False,
}


def ask(llm, prompt):
    """One prompt, alone: cached tokens, tokens, log-probabilities."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    sampling = SamplingParams(
        temperature=0, max_tokens=6, ignore_eos=True, detokenize=False, logprobs=3
    )
    given = TokensPrompt(prompt_token_ids=prompt)
    (output,) = llm.generate([given], sampling, use_tqdm=False)
    answer = output.outputs[0]
    likely = [
        sorted((token, entry.logprob) for token, entry in position.items())
        for position in answer.logprobs
    ]
    return [output.num_cached_tokens, list(answer.token_ids), likely]


def lead(arguments, lengths):
    from vllm import LLM

    llm = LLM(**arguments, node_rank=0)
    if arguments["pipeline_parallel_size"] > 1:
        llm.collective_rpc("make_stage_buffers")
    prompts = [
        [3 + (seed + i * i) % 500 for i in range(length)] for seed, length in enumerate(lengths)
    ]

    def each():
        return [ask(llm, prompt) for prompt in prompts]

    def reset(connector):
        if not llm.reset_prefix_cache(reset_connector=connector):
            raise RuntimeError("vLLM could not reset its prefix cache")

    def say(part, found):
        print(f"FOUND {json.dumps([part, found])}", flush=True)

    say("cold", each())
    say("local", each())
    reset(connector=False)
    say("restored", each())
    reset(connector=True)
    say("forgotten", each())
    metrics = {
        metric.name.removeprefix("vllm:hybrid_pages_")
        + "".join(
            f":{metric.labels.get(key)}"
            for key in ("source", "kind", "reason")
            if key in metric.labels
        ): metric.value
        for metric in llm.get_metrics()
        if "hybrid_pages" in metric.name and hasattr(metric, "value")
    }
    say("metrics", metrics)
    for line in sys.stdin:  # one length a line
        say("more", ask(llm, [5 + i * i % 500 for i in range(int(line))]))


def follow(arguments):
    """As ``vllm serve --headless`` does."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    config = AsyncEngineArgs(**arguments, node_rank=1).create_engine_config(headless=True)
    executor = MultiprocExecutor(config, monitor_workers=False)
    executor.start_worker_monitor(inline=True)


if __name__ == "__main__":
    _, node, port, model, tensor, pipeline, settings, *lengths = sys.argv
    arguments = ENGINE | {
        "model": model,
        "master_port": int(port),
        "tensor_parallel_size": int(tensor),
        "pipeline_parallel_size": int(pipeline),
    }
    if settings:
        arguments["kv_transfer_config"] = {
            "kv_connector": "HybridPagesConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": json.loads(settings),
        }
    if node == "0":
        lead(arguments, [int(length) for length in lengths])
    else:
        follow(arguments)
