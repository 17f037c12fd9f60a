"""Ways to run engines so that what is restored can be held against a cold run, and how closely.

Where a prompt resumes decides where kernels begin, and so how they round: with tiny models in
bfloat16 that moves log-probabilities by up to 0.8, which is as much as some faults do.
`test_soak_styles.py` shows for each style that what resumes inside blocks is within its bound, and
every planted fault outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import NOISE, Engine, Result, patched


@dataclass(frozen=True)
class Style:
    """A model, how its engine runs, and what counts as the same answer."""

    model: str
    within: float
    """How far an answer may be from a cold run's, in log-probability: 0 for equal to the bit."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The engine's."""
    inside: bool = True
    """Whether requests resume inside blocks, as they do by default."""
    by_token: bool = False
    """Whether each request computes one token a step."""

    def engine(self, model: Path, settings: Mapping[str, Any]) -> Engine:
        """An engine of this style."""
        options = {"kv_cache_memory_bytes": 64 << 20} | self.options
        engine = Engine(model, settings, inside=self.inside, **options)
        if self.by_token:
            _step_by_token(engine)
        return engine

    def differs(self, found: Result, cold: Result) -> bool:
        """Whether an answer counts as another one."""
        return found.distance(cold) > self.within or (not self.within and found != cold)


STYLES = {
    # Requests alone in steps of one block are equal to the bit (`a_block_a_step`). The bound is for
    # batches and answers, where it tells gross errors only.
    "blocks": Style("qwen3.5", NOISE, inside=False),
    # Every token is computed by the same kernel from the same bytes, wherever a prompt resumes.
    "tokens": Style("qwen3.5", 0.0, by_token=True),
    # Mamba-2, whose rounding is at most 2.1e-5 in float32, where faults do 0.19 and more.
    "float32": Style("granite4", 1e-3, {"dtype": "float32"}),
}


def _step_by_token(engine: Engine) -> None:
    """Has each step compute one token of each request. vLLM's own limit for a request is one token
    (`long_prefill_token_threshold`), but not while it has no other request."""
    scheduler, schedule = engine.scheduler, engine.scheduler.schedule
    scheduler.scheduler_config.long_prefill_token_threshold = 1

    def one_each(*args: Any, **kwargs: Any) -> Any:
        scheduler.max_num_scheduled_tokens = max(1, sum(scheduler.get_request_counts()))
        return schedule(*args, **kwargs)

    scheduler.schedule = one_each


@contextmanager
def a_block_a_step(engine: Engine) -> Iterator[None]:
    """A request alone computes the same bytes in steps of one block, from whichever it resumes."""
    with patched(engine.scheduler, "max_num_scheduled_tokens", engine.N):
        yield
