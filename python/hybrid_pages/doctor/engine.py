"""Findings about a running engine, by its metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from hybrid_pages.adapter.memory import GIB
from hybrid_pages.checks.rules import findings
from hybrid_pages.checks.situation import Finding, Situation
from hybrid_pages.scrape import PREFIX, Samples
from hybrid_pages.vllm.config.support import is_supported, supported_range

_MANY_MISSES = 0.1
_READY = 0.999
_ANSWERS_FIX = (
    '"checkpoint_mode": "all", which also keeps the states of answers: it takes more of host_gb'
)


def examine(samples: Samples, version: str | None) -> tuple[list[Finding], list[str]]:
    """The findings, and what could not be examined, with the reason."""
    skipped = []
    found = list(_engine(samples, version))
    if version is None:
        skipped.append("vLLM's version: /version does not answer")
    if not samples.has_ours():
        found.append(
            Finding(
                "no-connector",
                "hits",
                "no metric of hybrid-pages: the connector is not in use, or no request came yet",
                "send a request; if it stays so, start vLLM with --kv-transfer-config",
            )
        )
        return found, skipped
    found += _ours(samples)
    found += _whole_blocks(samples)
    found += findings(_situation(samples))
    return found, skipped


def _info(samples: Samples) -> Mapping[str, str]:
    info = samples.all("vllm:cache_config_info")
    return info[0].labels if info else {}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch("[0-9]{1,18}", text) else None


def _block_tokens(samples: Samples) -> int | None:
    """The tokens of a block, by the connector's metrics, or else vLLM's smallest engine block."""
    n = max((it.value for it in samples.all(f"{PREFIX}block_tokens")), default=0.0)
    return int(n) if n else _number(_info(samples).get("block_size"))


def _situation(samples: Samples) -> Situation:
    info = _info(samples)
    retention = info.get("prefix_cache_retention_interval", "0")
    return Situation(
        has_states=info.get("mamba_cache_mode") == "align",
        retention=None if retention == "None" else _number(retention) or 0,
    )


def _engine(samples: Samples, version: str | None) -> Iterator[Finding]:
    info = _info(samples)
    if version is not None and not is_supported(version):
        yield Finding(
            "version",
            "start",
            f"vLLM {version} is not supported",
            f"install vllm{supported_range()}",
        )
    if info.get("enable_prefix_caching") == "False":
        yield Finding(
            "prefix-caching",
            "hits",
            "prefix caching is off",
            "start vLLM without --no-enable-prefix-caching",
        )


def _ours(samples: Samples) -> Iterator[Finding]:
    failures = {
        reason: count
        for reason, count in samples.by_label("failures", "reason").items()
        if count > 0
    }
    if "geometry" in failures:
        yield Finding(
            "cache-off",
            "hits",
            "a worker's tensors are not as planned: this engine stores and restores nothing",
            "report it with the error in the engine's log",
        )
    elif failures:
        said = ", ".join(f"{count:.0f} {reason}" for reason, count in sorted(failures.items()))
        yield Finding(
            "failures",
            "hits",
            f"copies or lookups failed, and were computed again: {said}",
            "look for their errors in the engine's log",
        )
    ready, budget = samples.ours("ready_bytes"), _budget_bytes(samples)
    if budget and ready < _READY * budget:
        yield Finding(
            "unpinned",
            "hits",
            f"{ready / budget:.0%} of the budget may be used: the rest is not pinned yet, or can't "
            "be",
            "wait, or lower host_gb; the log says why pinning failed",
        )
    elif (unpinned := samples.ours("unpinned_bytes")) > 0:
        yield Finding(
            "unpinned",
            "hits",
            f"{unpinned / GIB:.2g} GiB of the budget could not be pinned: copies of it are slower",
            "let the process pin more memory, or lower host_gb; the log says why pinning failed",
        )
    lookups, hits = samples.ours("lookup_tokens"), samples.ours("hit_tokens")
    missing = samples.ours("missing_state_tokens")
    if lookups and missing > _MANY_MISSES * lookups:
        reasons = samples.by_label("missing_states", "reason")
        worst = max(reasons, key=lambda key: reasons[key], default="never_made")
        fix = {
            "evicted": "raise host_gb, or add a disk_path",
            "answer": _ANSWERS_FIX,
            "never_made": "leave checkpoint_mode at adaptive, or hint checkpoint_at for shared "
            "prompts (docs/hints.md)",
            "window": "raise host_gb",
        }.get(worst, "raise host_gb")
        yield Finding(
            "missing-states",
            "hits",
            f"{missing / lookups:.0%} of the prompts' tokens have pages, but no state to resume "
            f"from, mostly {worst}",
            fix,
        )
    answers = samples.ours("missing_answer_tokens")
    if lookups and answers > _MANY_MISSES * lookups:
        yield Finding(
            "answers",
            "hits",
            f"{answers / lookups:.0%} of the prompts' tokens are earlier answers, sent again and "
            "computed again, as their states were not kept",
            _ANSWERS_FIX,
        )
    if lookups and not hits:
        yield Finding(
            "no-hits",
            "hits",
            f"{samples.ours('lookups'):.0f} prompts, and no token was found in any cache",
            "look at what prompts share: one goes on where an earlier request ended, and where two "
            "earlier ones parted; hybrid-pages warm makes known beginnings such places",
        )
    skipped = samples.by_label("skipped_entries", "reason")
    stored = samples.ours("stored_entries")
    if skipped.get("no_room", 0) > _MANY_MISSES * (stored or 1):
        yield Finding(
            "no-room",
            "hits",
            f"{skipped['no_room']:.0f} entries found no room, {stored:.0f} did",
            "raise host_gb",
        )
    if samples.ours("refused_hints"):
        yield Finding(
            "hints",
            "hits",
            f"{samples.ours('refused_hints'):.0f} hints made no sense and were ignored",
            "compare the requests with docs/hints.md",
        )
    yield from _disk(samples)
    yield from _remote(samples)


def _budget_bytes(samples: Samples) -> float:
    """The size of the host tier: what is resident, free or leased, once pinning has ended."""
    used = sum(samples.by_label("resident_bytes", "kind").values())
    return max(used + samples.ours("free_bytes"), samples.ours("ready_bytes"))


def _disk(samples: Samples) -> Iterator[Finding]:
    if samples.ours("disk_out"):
        yield Finding(
            "disk-out",
            "hits",
            "the disk hung, could not be opened or was moved, and is left alone for now",
            "look at the disk; the log says what it did not answer or refused",
        )
    if samples.all("vllm:hybrid_pages_disk_lasting") and not samples.ours("disk_lasting"):
        yield Finding(
            "disk-not-lasting",
            "hits",
            "after a reset, what is on disk ends with this engine",
            "restart the engine once its weights are final (docs/weight-updates.md)",
        )
    other = samples.ours("disk_used_bytes", identity="other")
    quota = samples.ours("disk_quota_bytes")
    if quota and other > quota / 2:
        yield Finding(
            "foreign-store",
            "hits",
            f"{other / quota:.0%} of the disk's quota is what other models or versions wrote",
            "hybrid-pages store gc PATH --unused-for DAYS, or a directory for each model",
        )
    if count := sum(samples.by_label("disk_failures", "reason").values()):
        yield Finding(
            "disk-failures",
            "hits",
            f"{count:.0f} failures on the disk: most cost an entry",
            "hybrid-pages store verify PATH; the log names the first of each reason",
        )


def _remote(samples: Samples) -> Iterator[Finding]:
    if samples.ours("remote_out"):
        yield Finding(
            "remote-out",
            "hits",
            "the remote store failed or hung and is left alone",
            "look at the store and the network; the log says what it did not answer",
        )
    if not all(it.value for it in samples.all("vllm:hybrid_pages_remote_sharing")):
        yield Finding(
            "remote-not-shared",
            "hits",
            "after a reset, no other engine finds what this one writes to the remote store",
            "restart the engine once its weights are final (docs/weight-updates.md)",
        )
    reasons = samples.by_label("remote_failures", "reason")
    failed = {reason: count for reason, count in reasons.items() if count}
    if failed:
        said = ", ".join(f"{count:.0f} {reason}" for reason, count in sorted(failed.items()))
        worst = max(failed, key=lambda reason: failed[reason])
        yield Finding(
            "remote-failures",
            "hits",
            f"copies or questions of the remote store failed, and were computed: {said}",
            _REMOTE_FIXES.get(worst, "the log names the first of each reason"),
        )
    lookups = samples.ours("lookups")
    if (unanswered := samples.ours("remote_unanswered")) > _MANY_MISSES * lookups:
        yield Finding(
            "remote-unanswered",
            "hits",
            f"{unanswered:.0f} of {lookups:.0f} requests went on before the remote store had "
            f"answered, which takes {_slowest(samples):.0f} ms",
            "a store that is nearer or has less to do, or a longer remote_deadline_ms",
        )
    if (passed_over := samples.ours("remote_not_worth")) > _MANY_MISSES * lookups:
        yield Finding(
            "remote-slow",
            "hits",
            f"{passed_over:.0f} of {lookups:.0f} requests computed what the remote store had, "
            "since that is faster than to read it",
            "a faster store or network; nothing, if the model is small",
        )
    written = samples.ours("remote_entries", event="written")
    declined = samples.ours("remote_entries", event="declined")
    if declined > _MANY_MISSES * (written or 1):
        yield Finding(
            "remote-declined",
            "hits",
            f"the remote store did not take {declined:.0f} entries, and {written:.0f} it did",
            "look whether it has room, and is fast enough for what is computed",
        )


_REMOTE_FIXES = {
    "deadline": "look at the store and the network, or raise remote_deadline_ms",
    "full": "give the store more memory",
    "gone": "nothing, if hits suffice: the store evicts, or its lifecycle rule deletes, what is "
    "still asked for",
    "kept": "compare the engines' logs: two of one identity have computed other bytes",
    "helper": "the log says why Mooncake's client ended or cannot start",
    "checksum": "look for who else writes there, and at the store's own checks: bytes were damaged",
}
"""What to do, by the commonest reason for failures; other reasons are in the log."""


def _slowest(samples: Samples) -> float:
    """Milliseconds that an answer of the remote store takes, by the slowest engine core."""
    found = samples.all("vllm:hybrid_pages_remote_latency_seconds")
    return 1e3 * max((it.value for it in found), default=0.0)


def _whole_blocks(samples: Samples) -> Iterator[Finding]:
    """Requests that left no place to resume from inside a block, for a reason of the engine's."""
    reasons = samples.by_label("skipped_tails", "reason")
    skipped = {reason: reasons.get(reason, 0) for reason in _WHOLE_BLOCKS}
    worst = max(skipped, key=lambda reason: skipped[reason])
    if skipped[worst] <= _MANY_MISSES * samples.ours("lookups"):
        return
    n, (why, fix) = _block_tokens(samples), _WHOLE_BLOCKS[worst]
    yield Finding(
        "whole-blocks",
        "hits",
        f"requests resume at multiples of {n or 'N'} tokens only, since {why}{_short(samples, n)}",
        fix,
    )


_WHOLE_BLOCKS = {
    "drafts": (
        "with drafts no state inside a block is kept",
        "nothing, if drafts are worth more: without them, requests resume where others have ended",
    ),
    "narrow_window": (
        "a sliding window is narrower than a block",
        "nothing; smaller blocks: hybrid-pages plan MODEL",
    ),
    "layout": (
        "it is not known where a token lies in the pages of a layer, which the log names",
        "another --attention-backend or --kv-cache-dtype, if there is one (docs/resume.md)",
    ),
}
"""Why no state inside a block is kept by a whole engine, and what to do about it."""


def _short(samples: Samples, n: int | None) -> str:
    """How many prompts are too short for that, by vLLM's histogram; empty if they are few."""
    buckets: dict[float, float] = {}
    for sample in samples.all("vllm:request_prompt_tokens_bucket"):
        try:
            edge = float(sample.labels["le"])
        except (KeyError, ValueError):
            continue
        buckets[edge] = buckets.get(edge, 0.0) + sample.value
    total = buckets.get(float("inf"), 0.0)
    below = max((edge for edge in buckets if n and edge < n), default=None)
    if not total or below is None or buckets[below] <= total / 2:
        return ""
    return f"; {buckets[below] / total:.0%} of the prompts have at most {below:.0f}, and never hit"
