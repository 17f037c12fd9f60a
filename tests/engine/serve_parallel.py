"""Two engine cores of a dense model behind one AsyncLLM, each asked alone and both at once. Prints
one JSON line.

usage: serve_parallel.py MODEL LENGTH ...
"""

import asyncio
import itertools
import json
import sys
from typing import Any

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import TokensPrompt
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.reader import get_metrics_snapshot

CORES = 2


def prompt_of(core: int, length: int) -> list[int]:
    return [3 + (7 * core + length + i * i) % 500 for i in range(length)]


class Client:
    """Asks an engine core, or whichever the balancer chooses."""

    def __init__(self, engine: AsyncLLM) -> None:
        self.engine, self._ids = engine, itertools.count()

    async def ask(self, prompt: list[int], core: int | None = None) -> list[Any]:
        """One prompt: cached tokens, tokens, log-probabilities."""
        given = TokensPrompt(prompt_token_ids=prompt)
        sampling = SamplingParams(
            temperature=0, max_tokens=6, ignore_eos=True, detokenize=False, logprobs=3
        )
        name = f"r{next(self._ids)}"
        async for output in self.engine.generate(given, sampling, name, data_parallel_rank=core):
            last = output
        answer = last.outputs[0]
        likely = [
            sorted((token, entry.logprob) for token, entry in position.items())
            for position in answer.logprobs
        ]
        return [last.num_cached_tokens, list(answer.token_ids), likely]

    async def reset(self, *, connector: bool = False) -> None:
        if not await self.engine.reset_prefix_cache(reset_connector=connector):
            raise RuntimeError("vLLM could not reset its prefix cache")


async def run(model: str, lengths: list[int]) -> dict[str, Any]:
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=model,
            skip_tokenizer_init=True,
            enforce_eager=True,
            max_model_len=4096,
            max_num_seqs=4,
            max_num_batched_tokens=1000,
            kv_cache_memory_bytes=64 << 20,
            data_parallel_size=CORES,
            disable_log_stats=False,
            kv_transfer_config={
                "kv_connector": "HybridPagesConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"host_gb": 0.1, "verify_on_load": True},
            },
        )
    )
    client, found = Client(engine), {}
    cores = range(CORES)

    async def each() -> list[list[Any]]:
        return [
            [await client.ask(prompt_of(core, length), core) for length in lengths]
            for core in cores
        ]

    try:
        found["cold"] = await each()
        found["local"] = await each()
        await client.reset()
        # Of the other core's prompts, none is in this one's cache.
        found["crossed"] = [
            await client.ask(prompt_of(1 - core, lengths[0]), core) for core in cores
        ]
        await client.reset()
        found["restored"] = await each()
        await client.reset()
        prompts = [prompt_of(core, length) for core in cores for length in lengths]
        found["at once"] = await asyncio.gather(*map(client.ask, prompts))
        await client.reset(connector=True)
        found["forgotten"] = await each()
        found["metrics"] = [
            [metric.labels["engine"], metric.name.removeprefix("vllm:hybrid_pages_"), metric.value]
            + [metric.labels[key] for key in ("source", "kind", "reason") if key in metric.labels]
            for metric in get_metrics_snapshot()
            if "hybrid_pages" in metric.name and hasattr(metric, "value")
        ]
    finally:
        engine.shutdown()
    return found


if __name__ == "__main__":
    found = asyncio.run(run(sys.argv[1], [int(length) for length in sys.argv[2:]]))
    print("FOUND " + json.dumps(found))
