"""mlx-lm's batches as vllm-mlx uses them, whose rows begin behind a restored prefix."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlx_lm.generate import BatchGenerator, GenerationBatch

from hybrid_pages.mlx.prompts import Prompts
from hybrid_pages.vllm_mlx.prompt_tokens import PromptTokens


class Prompt(list[int]):
    """The tokens of a request of vllm-mlx's scheduler.

    request: it hears how many of them were restored. ends: where messages of the prompt end.
    """

    def __init__(self, tokens: Sequence[int], request: Any, ends: Sequence[int]) -> None:
        super().__init__(tokens)
        self.request, self.ends = request, ends


@dataclass(frozen=True)
class _Row:
    """A row whose first ``seen`` tokens were restored."""

    prompt: Prompt
    seen: int


class _Rows(GenerationBatch):  # type: ignore[misc]
    """Rows that are decoded, each with its own processors.

    mlx-lm 0.31.3 leaves the places of rows that have ended as long as no row has a processor. A
    later row's would stand in another row's place.
    """

    samplers: list[Any]
    logits_processors: list[Any]

    def filter(self, keep: list[int]) -> None:
        super().filter(keep)
        if not any(self.samplers):
            self.samplers = [None for _ in keep]
        if not any(self.logits_processors):
            self.logits_processors = [[] for _ in keep]


class RowBatches(BatchGenerator):  # type: ignore[misc]
    """Restores the longest known prefix of each prompt, computes the rest up to each place where a
    state is wanted, and stores it there and at the end of the answer.

    prompts: where; None to batch as mlx-lm does. counts: of requests and of restored tokens.
    """

    prompts: Prompts | None = None
    counts: Counter[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._rows: dict[int, _Row] = {}
        self._generation_batch = _Rows.empty(self.model, self.sampler)

    def insert(
        self, prompts: list[list[int]], max_tokens: Any = None, caches: Any = None, **more: Any
    ) -> list[int]:
        if self.prompts is None or not all(isinstance(each, Prompt) for each in prompts):
            found: list[int] = super().insert(prompts, max_tokens, caches, **more)
            return found
        rows, segments, restored = [], [], []
        for prompt in prompts:
            assert isinstance(prompt, Prompt)
            stops = self.prompts.plan(prompt, prompt.ends)
            cache, seen = self.prompts.restore(prompt)
            cuts = [seen, *(stop for stop in stops if stop > seen), len(prompt)]
            segments.append([prompt[begin:end] for begin, end in itertools.pairwise(cuts)])
            rows.append(_Row(prompt, seen))
            restored.append(cache)
            self._tell(prompt, seen)
        # Logits processors see the restored tokens, too.
        before = [row.prompt[: row.seen] for row in rows]
        uids: list[int] = super().insert_segments(segments, max_tokens, restored, before, **more)
        self._rows.update(zip(uids, rows, strict=True))
        return uids

    def _tell(self, prompt: Prompt, seen: int) -> None:
        request = prompt.request
        request.cached_tokens = seen
        request.num_prompt_tokens = PromptTokens(len(prompt), seen)
        request.cache_hit_type = "prefix" if seen else "miss"
        self.counts["hits" if seen else "misses"] += 1
        self.counts["tokens_saved"] += seen

    def _next(self) -> Any:
        progress, answers = super()._next()
        if self.prompts is None:
            return progress, answers
        for part in progress:
            row = self._rows.get(part.uid)
            if row is None or not part.end_of_segment or part.end_of_prompt:
                continue
            with self.prompts.guard("store"):
                batch = self._prompt_batch
                cache = batch.extract_cache(batch.uids.index(part.uid))
                self.prompts.store(row.prompt[: row.seen + part.progress[0]], cache)
        for answer in answers:
            row = self._rows.pop(answer.uid, None) if answer.finish_reason is not None else None
            if row is not None:
                tokens, cache = answer.all_tokens, answer.prompt_cache
                self.prompts.store(tokens, cache, prompt=len(row.prompt))
                answer.prompt_cache = None
        return progress, answers

    def remove(self, uids: list[int], *args: Any, **kwargs: Any) -> Any:
        for uid in uids:
            self._rows.pop(uid, None)
        return super().remove(uids, *args, **kwargs)
