"""The verdict: restored answers against the engine's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from hybrid_pages.verify.answers import Answer, Difference, first_difference
from hybrid_pages.verify.questions import is_right
from hybrid_pages.verify.runs import COLD, COLD_AGAIN, LOCAL, LOCAL_AGAIN, OWN, Runs
from hybrid_pages.verify.tiers import HOST

EQUAL, WITHIN, DIFFERS, NOTHING = "equal", "within the noise", "DIFFERS", "nothing restored"
MARGIN = 2.0
"""How many times the largest noise seen a restored run may differ by: few runs show the noise."""
BLIND = 1.0
"""Noise above this hides faults: a wrong page may move a log-probability by less. No limit is
above it."""
_REASONS = (
    "failures",
    "disk_failures",
    "remote_failures",
    "skipped_loads",
    "skipped_entries",
    "missing_states",
)


@dataclass(frozen=True)
class Noise:
    """The largest differences of log-probabilities between runs that restore nothing.

    cold: between two cold runs that take the same steps. local: between two runs on vLLM's own hit.
    steps: between a cold run and one on vLLM's own hit, whose steps and so rounding differ.
    """

    cold: float
    local: float
    steps: float

    @property
    def floor(self) -> float:
        """The noise between runs that take the same steps; 0 where the engine is deterministic."""
        return max(self.cold, self.local)

    @property
    def limit(self) -> float:
        """The largest difference of runs that take the same steps that counts as noise."""
        return min(BLIND, MARGIN * self.floor)

    @property
    def limit_of_steps(self) -> float:
        """The same of runs whose steps differ."""
        return min(BLIND, MARGIN * max(self.floor, self.steps))


@dataclass(frozen=True)
class VerdictRow:
    """One prompt, restored from one tier.

    against: the run that it was compared with. limit: the largest difference that counts as noise.
    behind: how many tokens of its answer were sent as the end of the prompt.
    """

    prompt: int
    tier: str
    restored: int
    verdict: str
    against: str
    limit: float
    distance: float
    difference: Difference | None
    behind: int = 0


@dataclass(frozen=True)
class VerifyVerdict:
    """Everything that was found. problems: why it is not good."""

    noise: Noise
    rows: tuple[VerdictRow, ...]
    problems: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Whether every tier gave back what the engine computes itself."""
        return not self.problems

    @property
    def differs(self) -> bool:
        """Whether a restored answer is not what the engine computes itself."""
        return any(row.verdict == DIFFERS for row in self.rows)


def judge(runs: Runs) -> VerifyVerdict:
    """Compares the restored answers of every tier."""
    noise = _noise(runs)
    rows = [
        _row(runs, noise, index, tier)
        for tier in runs.facts["tiers"]
        for index in range(len(runs.prompts))
    ]
    rows += [
        _row_of_rest(runs, noise, index, tier, rest)
        for tier in runs.facts["tiers"]
        for index, rest in runs.rests.get(tier, {}).items()
        if _goes_on_as_cold(runs, index)
    ]
    problems = [*_unsound(runs, noise), *_differing(runs, rows)]
    for tier in runs.facts["tiers"]:
        problems += _missing(runs, tier)
    return VerifyVerdict(noise, tuple(rows), tuple(problems))


def _noise(runs: Runs) -> Noise:
    def worst(one: str, other: str) -> float:
        pairs = zip(runs.phase(one), runs.phase(other), strict=True)
        return max((a.distance(b) for a, b in pairs), default=0.0)

    cold = worst(COLD, COLD_AGAIN)
    for index, more in runs.more.items():
        every = [runs.phase(COLD)[index], runs.phase(COLD_AGAIN)[index], *more]
        cold = max(cold, *(one.distance(other) for one, other in combinations(every, 2)))
    return Noise(cold, worst(LOCAL, LOCAL_AGAIN), worst(COLD, LOCAL))


def _row(runs: Runs, noise: Noise, index: int, tier: str) -> VerdictRow:
    found, local = runs.phase(tier)[index], runs.phase(LOCAL)[index]
    if not found.cached:
        return VerdictRow(index, tier, 0, NOTHING, "", 0.0, 0.0, None)
    exact = local.source == "local" and local.cached == found.cached
    expected, against = (local, LOCAL) if exact else (runs.phase(COLD)[index], COLD)
    limit = noise.limit if exact else noise.limit_of_steps
    return _compared(index, tier, expected, found, against, limit)


def _goes_on_as_cold(runs: Runs, index: int) -> bool:
    """Whether half an answer is that of the cold run, so that the rest can be compared with it."""
    half = runs.halves[index].tokens
    return runs.phase(COLD)[index].tokens[: len(half)] == half


def _row_of_rest(runs: Runs, noise: Noise, index: int, tier: str, found: Answer) -> VerdictRow:
    """The rest of an answer. Kernels may add in another order where one token is a prompt's, so
    the limit is that of runs whose steps differ."""
    behind = len(runs.halves[index].tokens)
    if not found.cached:
        return VerdictRow(index, tier, 0, NOTHING, "", 0.0, 0.0, None, behind)
    expected = runs.phase(COLD)[index].behind(behind)
    row = _compared(index, tier, expected, found, COLD, noise.limit_of_steps)
    return replace(row, behind=behind)


def _compared(
    index: int, tier: str, expected: Answer, found: Answer, against: str, limit: float
) -> VerdictRow:
    distance = expected.distance(found)
    if expected.same(found):
        verdict = EQUAL
    else:
        verdict = WITHIN if distance <= limit and limit > 0 else DIFFERS
    difference = first_difference(expected, found)
    return VerdictRow(index, tier, found.cached, verdict, against, limit, distance, difference)


def _unsound(runs: Runs, noise: Noise) -> Iterator[str]:
    """The reasons why nothing can be concluded."""
    if not all(answer.is_whole for phase in OWN for answer in runs.phase(phase)):
        yield (
            "log-probabilities of the engine's own runs: expected numbers, found NaN: the model "
            "computes nothing that can be compared with these flags"
        )
    elif noise.floor > BLIND:
        yield (
            f"two equal runs of this engine differ by {noise.floor:.3g} in a log-probability: that "
            "hides faults; use --concurrency 1 and flags under which the engine repeats itself"
        )
    elif noise.steps > BLIND:
        yield (
            f"cold runs and vLLM's own hits: expected log-probabilities that differ by at most "
            f"{BLIND:g}, found {noise.steps:.3g}: vLLM's own cache gives other answers than it "
            "computes, or rounds so coarsely that faults hide; ask vLLM without hybrid-pages the "
            "same prompt twice, and report it there if the answers differ as much"
        )
    warm = [answer for phase in (COLD, COLD_AGAIN) for answer in runs.phase(phase) if answer.cached]
    if warm:
        yield (
            f"cold runs: expected no hit, found {warm[0].cached} tokens from {warm[0].source} (and "
            f"hits in {len(warm)} runs): another connector finds prompts under a salt of their own"
        )


def _differing(runs: Runs, rows: Sequence[VerdictRow]) -> Iterator[str]:
    for tier in runs.facts["tiers"]:
        of_tier = [row for row in rows if row.tier == tier]
        wrong = [row for row in of_tier if row.verdict == DIFFERS]
        if wrong:
            names = ", ".join(runs.prompts[row.prompt].name for row in wrong[:3])
            more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
            yield (
                f"{tier}: {len(wrong)} of {len(of_tier)} answers differ from what the engine "
                f"computes itself: {names}{more}"
            )


def _missing(runs: Runs, tier: str) -> Iterator[str]:
    """Complaints about prompts that a tier did not restore, or that another source served."""
    answers, figures = runs.phase(tier), runs.figures.get(tier, {})
    every = [*answers, *runs.rests.get(tier, {}).values()]
    others = sorted({each.source for each in every if each.cached and each.source != tier})
    if others:
        yield f"{tier}: expected hits from {tier} alone, found them from {'; '.join(others)}"
    has_hits = any(answer.cached for answer in runs.phase(LOCAL))
    if not any(answer.cached for answer in (answers if has_hits else every)):
        yield f"{tier}: nothing was restored: {_why(runs, tier, figures)}"
    failed = {
        name: count
        for name, count in figures.items()
        if name.partition(":")[0].endswith("failures") and count
    }
    if failed:
        counts = ", ".join(f"{name} {count:g}" for name, count in sorted(failed.items()))
        yield f"{tier}: the cache counted failures ({counts}): see the engine's log (--verbose)"


def _why(runs: Runs, tier: str, figures: Mapping[str, float]) -> str:
    n = runs.facts["block_tokens"]
    longest = max(len(prompt.tokens) for prompt in runs.prompts)
    if longest <= n:
        return (
            f"a prompt has to be longer than a block of {n} tokens, and the longest has "
            f"{longest}: give longer prompts, or none for built-in ones"
            if runs.facts["longest"] > n + 1
            else f"a block has {n} tokens, and --max-model-len allows {runs.facts['longest']}: "
            "raise it"
        )
    if tier in runs.reasons:
        return runs.reasons[tier]
    stored = sum(
        count
        for name, count in runs.figures.get(HOST, {}).items()
        if name.startswith("stored_entries")
    )
    if not stored:
        said = "nothing was stored"
    elif tier != HOST and any(answer.cached for answer in runs.phase(HOST)):
        said = "the host gave its part, and this tier found nothing"
    elif not any(answer.cached for answer in runs.phase(LOCAL)):
        said = "vLLM's own cache found nothing either"
    else:
        said = f"{stored:g} entries were stored"
    reasons = {**runs.figures.get(HOST, {}), **figures}
    counts = ", ".join(
        f"{name} {count:g}"
        for name, count in sorted(reasons.items())
        if count and name.partition(":")[0] in _REASONS and not name.endswith(":hint")
    )
    return f"{said}{f' ({counts})' if counts else ''}; see the engine's log (--verbose)"


def scores(runs: Runs) -> dict[str, int]:
    """Questions with a right answer, by phase; empty without questions."""
    asked = [
        (index, prompt.wanted)
        for index, prompt in enumerate(runs.prompts)
        if prompt.wanted is not None
    ]
    if not asked:
        return {}
    return {
        phase: sum(is_right(runs.phase(phase)[index].text, wanted) for index, wanted in asked)
        for phase in (*OWN, *runs.facts["tiers"])
    }


def unfit_for(runs: Runs, plant: str) -> str | None:
    """Why a planted fault cannot show on this model and with these prompts; None if it can."""
    stored = runs.figures.get(HOST, {})
    n = runs.facts["block_tokens"]
    restored = [*runs.phase(HOST), *runs.rests.get(HOST, {}).values()]
    if not any(answer.cached for answer in restored):
        return f"--plant {plant}: nothing was restored that it could spoil: {_why(runs, HOST, {})}"
    if plant == "zero-state" and not stored.get("stored_entries:checkpoints"):
        return (
            "--plant zero-state: expected a model with recurrent layers, found no checkpoint "
            "stored: use --plant swap-pages"
        )
    if plant == "swap-pages" and not any(answer.cached > n for answer in restored):
        return (
            f"--plant swap-pages: expected a prompt with more than a restored page of {n} tokens, "
            "found none: give longer prompts, or none for built-in ones"
        )
    return None
