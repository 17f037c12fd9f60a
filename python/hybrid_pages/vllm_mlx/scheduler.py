"""vllm-mlx's scheduler over this package's prompts."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from fastapi import HTTPException
from vllm_mlx import scheduler

from hybrid_pages.mlx.prompts import Prompts
from hybrid_pages.vllm_mlx.batches import Prompt
from hybrid_pages.vllm_mlx.message_ends import MessageEnds

_MIB = 1 << 20


class Scheduler(scheduler.Scheduler):  # type: ignore[misc]
    """Schedules as vllm-mlx does. Its own prompt cache is off where there are prompts.

    Args:
        model, tokenizer, config: vllm-mlx's.
        prompts: what is known of the model's prompts, closed with the scheduler; None for
            vllm-mlx's own cache.
        ends: of the messages of prompts.
        together: whether several prompts may be computed in one pass.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        config: Any = None,
        *,
        prompts: Prompts | None,
        ends: MessageEnds,
        together: bool,
    ) -> None:
        config = config or scheduler.SchedulerConfig()
        config = dataclasses.replace(
            config,
            enable_prefix_cache=prompts is None,
            prefill_batch_size=config.prefill_batch_size if together else 1,
        )
        self.prompts, self._ends = prompts, ends
        self._counts: Counter[str] = Counter()
        super().__init__(model, tokenizer, config)

    def add_request(self, request: Any) -> None:
        super().add_request(request)
        tokens = request.prompt_token_ids
        if not tokens:
            self.waiting.remove(request)
            del self.requests[request.request_id]
            raise HTTPException(400, "prompt: expected at least one token, found none: send some")
        if self.prompts is not None:
            ends = self._ends.of(request.prompt, tokens, self._actual_tokenizer.encode)
            prompt = Prompt(tokens, request, ends)
            request.prompt_token_ids = request.remaining_tokens = prompt

    def _create_batch_generator(self, sampling_params: Any) -> Any:
        made = super()._create_batch_generator(sampling_params)
        made.prompts, made.counts = self.prompts, self._counts
        return made

    def get_cache_stats(self) -> dict[str, Any] | None:
        if self.prompts is None:
            found: dict[str, Any] | None = super().get_cache_stats()
            return found
        hits, asked = self._counts["hits"], self._counts["hits"] + self._counts["misses"]
        held, most = self.prompts.nbytes, self.prompts.budget
        return {
            "hits": hits,
            "misses": self._counts["misses"],
            "hit_rate": hits / asked if asked else 0.0,
            "tokens_saved": self._counts["tokens_saved"],
            "entry_count": len(self.prompts),
            "current_memory_mb": held / _MIB,
            "max_memory_mb": most / _MIB,
            "memory_utilization": held / most,
            **self.prompts.losses(),
        }

    def get_stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = super().get_stats()
        if self.prompts is not None:
            # The name under which vllm-mlx's metrics look for a cache.
            stats["memory_aware_cache"] = self.get_cache_stats()
        return stats

    def clear_runtime_caches(self) -> dict[str, bool]:
        cleared: dict[str, bool] = super().clear_runtime_caches()
        if self.prompts is not None:
            self.prompts.clear()
            cleared["memory_aware_cache"] = True
        return cleared

    def clear_prefix_cache(self) -> None:
        super().clear_prefix_cache()
        if self.prompts is not None:
            self.prompts.clear()

    def _recover_from_cache_error(self) -> None:
        """Forgets what is stored: the requests that failed are computed again without it."""
        super()._recover_from_cache_error()
        if self.prompts is not None:
            self.prompts.clear()

    def reset(self) -> None:
        """Ends the use of the scheduler: vllm-mlx calls it when it closes an engine."""
        prompts, self.prompts = self.prompts, None
        super().reset()
        if prompts is not None:
            prompts.close()
