"""A real vLLM engine in this process, which answers one prompt at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybrid_pages.adapter.errors import EngineError
from hybrid_pages.vllm.scheduler.requests.check import KEY

# Set before vLLM is imported: one process and thread, no compilation, no network, little output.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}

# More than the demo writes.
DISK_GB = 0.05


@dataclass(frozen=True)
class DemoAnswer:
    """The text of one request, and its cost."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    ttft_seconds: float
    cached_tokens: int
    loaded_tokens: int
    loaded_bytes: int

    def distance(self, other: DemoAnswer) -> float:
        """Largest |delta log-probability|, infinite if the texts differ."""
        if self.tokens != other.tokens:
            return float("inf")
        return max(abs(a - b) for a, b in zip(self.logprobs, other.logprobs, strict=True))


class DemoEngine:
    """vLLM with the connector, turned on by its one flag.

    Args:
        model: folder of the model.
        host_gb: budget of the connector.
        disk: a directory for entries that outlive the engine.
    """

    def __init__(self, model: Path, host_gb: float, disk: Path | None = None) -> None:
        os.environ.update(ENVIRONMENT)
        from vllm import LLM

        settings: dict[str, object] = {"host_gb": host_gb}
        if disk is not None:
            settings |= {"disk_path": str(disk), "disk_gb": DISK_GB}
        self.llm = LLM(
            model=str(model),
            skip_tokenizer_init=True,
            enforce_eager=True,
            block_size=32,
            max_model_len=8192,
            max_num_batched_tokens=2048,
            kv_cache_memory_bytes=256 << 20,
            kv_transfer_config={
                "kv_connector": "HybridPagesConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": settings,
            },
        )
        self.half = self._core().scheduler.connector.scheduler
        self.block_tokens: int = self.half.connection.geometry.block_tokens

    def _core(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core

    def ask(self, prompt: Sequence[int], count: int = 8, *, stored: bool = True) -> DemoAnswer:
        """Generates ``count`` tokens, greedily. stored: whether that leaves anything behind."""
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        engine, before = self.llm.llm_engine, self.counters()
        parameters = SamplingParams(
            temperature=0,
            max_tokens=count,
            ignore_eos=True,
            detokenize=False,
            logprobs=0,
            extra_args={"kv_transfer_params": {KEY: {"store": stored}}},
        )
        started, first, last = time.perf_counter(), None, None
        engine.add_request(
            f"demo-{started}", TokensPrompt(prompt_token_ids=list(prompt)), parameters
        )
        while engine.has_unfinished_requests():
            for output in engine.step():
                first = first or time.perf_counter()
                last = output
        if first is None or last is None:
            raise EngineError("the engine ended a request without an answer")
        while self._core().scheduler.has_requests():
            engine.step()
        after, completion = self.counters(), last.outputs[0]
        moved = {name: after.get(name, 0) - before.get(name, 0) for name in after}
        return DemoAnswer(
            tuple(completion.token_ids),
            tuple(next(iter(at.values())).logprob for at in completion.logprobs),
            first - started,
            last.num_cached_tokens or 0,
            int(moved.get("hit_tokens:host", 0) + moved.get("hit_tokens:disk", 0)),
            int(sum(n for name, n in moved.items() if name.startswith("loaded_bytes:"))),
        )

    def forget(self, *, everything: bool = False) -> None:
        """Empties vLLM's own prefix cache, and the host memory too if ``everything``."""
        if not self.llm.llm_engine.reset_prefix_cache(reset_connector=everything):
            raise EngineError("vLLM could not empty its prefix cache")

    def counters(self) -> dict[str, float]:
        """The connector's counters since the start."""
        return dict(self.half.stats()["counters"])

    def failures(self) -> dict[str, float]:
        """The counters of failures."""
        return {name: count for name, count in self.counters().items() if "failures" in name}

    def gauges(self) -> dict[str, float]:
        """The connector's gauges now, such as the entries in host memory."""
        return dict(self.half.stats()["gauges"])

    def shutdown(self) -> None:
        """Ends the engine, after its writes to a disk have arrived."""
        self.llm.llm_engine.engine_core.shutdown()
