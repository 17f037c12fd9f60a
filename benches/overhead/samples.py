"""Measurements: a sample per run, a pair of times per step, and answers that did not match."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NONE, OURS, RIVAL = "no connector", "hybrid-pages", "vLLM offloading"
VARIANTS = (NONE, OURS, RIVAL)
COLD, LOCAL, RESTORED = "cold", "local", "restored"
PHASES = (COLD, LOCAL, RESTORED)
STEP_KINDS = ("prompt", "decode", "waiting")


@dataclass
class Samples:
    """All runs of one case in one phase of one variant, in the rounds' order."""

    ttft_ms: list[float] = field(default_factory=list)
    """Mean over the run's prompts."""
    step_us: list[float] = field(default_factory=list)
    """Scheduler time, mean over the run's steps that ran tokens."""
    connector_us: list[float] = field(default_factory=list)
    """All calls of the scheduler into the connector, summed over the run."""
    cached: list[int] = field(default_factory=list)
    external: list[int] = field(default_factory=list)


@dataclass
class Results:
    """Results of the whole bench."""

    samples: dict[tuple[str, str, str], Samples] = field(
        default_factory=lambda: defaultdict(Samples)
    )
    """By variant, case and phase."""
    steps: dict[tuple[str, str], list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By variant and kind of step: us in the scheduler, and of these us in the connector."""
    calls: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    """By variant and connector method: us, summed over all runs."""
    problems: list[str] = field(default_factory=list)
    compared: int = 0
    max_logprob_difference: float = 0.0

    def add(self, variant: str, case: str, phase: str, run: Mapping[str, Any]) -> None:
        answers, steps = run["answers"], run["steps"]
        samples = self.samples[variant, case, phase]
        samples.ttft_ms.append(1e3 * statistics.fmean(a["ttft_s"] for a in answers))
        samples.step_us.append(
            1e6 * statistics.fmean(s["scheduler_s"] for s in steps if s["tokens"])
        )
        samples.connector_us.append(1e6 * run["connector_s"])
        samples.cached.append(sum(a["cached_tokens"] for a in answers))
        samples.external.append(sum(a["external_tokens"] for a in answers))
        for method, seconds in run["calls"].items():
            self.calls[variant, method] += 1e6 * seconds
        for step in steps:
            kind = _kind(step["tokens"], len(answers))
            times = (1e6 * step["scheduler_s"], 1e6 * step["connector_s"])
            self.steps[variant, kind].append(times)

    def compare(self, case: str, runs: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
        """Runs of one prompt that resumed at one boundary must agree, whoever restored it.

        Only runs that vLLM cut into the same steps, in company of as many tokens, are compared:
        where a prefill is split and what it shares a batch with change its log-probabilities with
        no cache at work.
        """
        for index in range(min(len(run["answers"]) for run in runs.values())):
            first: dict[str, tuple[str, Mapping[str, Any]]] = {}
            for (variant, phase), run in runs.items():
                answer, who = run["answers"][index], f"{variant} ({phase})"
                depth = answer["cached_tokens"]
                cut = f"{depth} {answer['chunks']}"
                reference_who, reference = first.setdefault(cut, (who, answer))
                if reference is answer:
                    continue
                self.compared += 1
                pairs = zip(reference["logprobs"], answer["logprobs"], strict=True)
                self.max_logprob_difference = max(
                    self.max_logprob_difference, *(abs(a - b) for a, b in pairs)
                )
                if reference["tokens"] != answer["tokens"]:
                    self.problems.append(
                        f"{case}: {who} and {reference_who} resumed at {depth} tokens and gave "
                        "different texts"
                    )

    def check_depth(self, cases: Sequence[str]) -> None:
        """Restored runs must resume where vLLM's own local hit does."""
        for (variant, case, phase), samples in list(self.samples.items()):
            if variant == NONE or phase != RESTORED or case not in cases:
                continue
            local = self.samples[variant, case, LOCAL].cached
            if samples.cached != local:
                self.problems.append(
                    f"{case}: {variant} resumed at {spread(samples.cached)} tokens; vLLM's local "
                    f"hit resumes at {spread(local)}"
                )


def _kind(tokens: int, prompts: int) -> str:
    if not tokens:
        return "waiting"
    return "decode" if tokens <= prompts else "prompt"


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def paired(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """The median of the round-by-round ratios."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True) if b]
    return f"{statistics.median(ratios):.2f}" if ratios else "-"


def spread(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"
