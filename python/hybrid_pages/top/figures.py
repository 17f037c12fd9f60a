"""Figures from two readings of an engine's metrics: totals, and rates between the two."""

from __future__ import annotations

from typing import Any

from hybrid_pages.scrape import PREFIX, Sample, Samples

SOURCES = ("local", "host", "disk", "remote", "other")
"""The sources of hit tokens, the nearest first."""
KINDS = ("pages", "windows", "checkpoints")


def figures(now: Samples, before: Samples | None, seconds: float) -> dict[str, Any]:
    """The figures of all engine cores together.

    Args:
        now: the later reading.
        before: the earlier reading; None for the first, then rates are None and shares are of all
            since the start.
        seconds: between the two readings.
    """
    span = _Span(now, before, seconds)
    looked = span.more("lookup_tokens")
    hits = {source: span.more("hit_tokens", source=source) for source in SOURCES}
    missing = span.more("missing_state_tokens")
    return {
        "engines": len({sample.labels.get("engine", "") for sample in _all_ours(now)}),
        "since": "start" if before is None else round(seconds, 3),
        "prompts": span.more("lookups"),
        "prompt_tokens": looked,
        "hit_rate": sum(hits.values()) / looked if looked else None,
        "hit_tokens": hits,
        "hit_rates": {source: hits[source] / looked if looked else None for source in SOURCES},
        "missing_state_tokens": missing,
        "missing_state_share": missing / looked if looked else None,
        "missing_states": span.labels("missing_states", "reason"),
        "host": {
            "bytes": {kind: now.ours("resident_bytes", kind=kind) for kind in KINDS},
            "entries": {kind: now.ours("resident_entries", kind=kind) for kind in KINDS},
            "free_bytes": now.ours("free_bytes"),
            "leased_bytes": now.ours("leased_bytes"),
            "ready_bytes": now.ours("ready_bytes"),
        },
        "disk": _disk(now, span),
        "copies": {
            name: {
                "bytes": span.more(f"{name}_bytes"),
                "bytes_per_s": span.rate(f"{name}_bytes"),
                "gb_per_s_while_copying": _speed(
                    span.more(f"{name}_bytes"), span.more(f"{name}_seconds")
                ),
            }
            for name in ("stored", "loaded")
        },
        "stored_entries": span.labels("stored_entries", "kind"),
        "evicted_entries": span.labels("evicted_entries", "kind"),
        "skipped_entries": span.labels("skipped_entries", "reason"),
        "skipped_loads": span.labels("skipped_loads", "reason"),
        "failures": now.by_label("failures", "reason"),
        "disk_failures": now.by_label("disk_failures", "reason"),
        "remote": _remote(now, span),
        "remote_failures": now.by_label("remote_failures", "reason"),
    }


def _disk(now: Samples, span: _Span) -> dict[str, Any] | None:
    quota = now.ours("disk_quota_bytes")
    if not quota:
        return None
    return {
        "quota_bytes": quota,
        "used_bytes": now.by_label("disk_used_bytes", "identity"),
        "written_bytes": span.more("disk_bytes", event="written"),
        "read_bytes": span.more("disk_bytes", event="read"),
        "seconds_each": span.seconds_each("disk"),
        "queue": now.by_label("disk_queue", "event"),
        "out": bool(now.ours("disk_out")),
        "lasting": bool(now.ours("disk_lasting")),
    }


def _remote(now: Samples, span: _Span) -> dict[str, Any] | None:
    if not now.all("vllm:hybrid_pages_remote_out"):
        return None
    return {
        "known_entries": _most(now, "remote_known_entries"),
        "known_bytes": _most(now, "remote_known_bytes"),
        "written_bytes": span.more("remote_bytes", event="written"),
        "read_bytes": span.more("remote_bytes", event="read"),
        "seconds_each": span.seconds_each("remote"),
        "queue": now.by_label("remote_queue", "event"),
        "requests": span.labels("remote_requests", "kind"),
        "not_written": {
            event: amount
            for event, amount in span.labels("remote_entries", "event").items()
            if event in ("unproven", "declined")
        },
        "not_read": {
            name: amount
            for name in ("not_worth", "unanswered")
            if (amount := span.more(f"remote_{name}"))
        },
        "latency_seconds": _most(now, "remote_latency_seconds"),
        "bytes_per_second": _most(now, "remote_bytes_per_second"),
        "out": bool(now.ours("remote_out")),
        "outages": span.more("remote_outages"),
        "sharing": all(it.value for it in now.all("vllm:hybrid_pages_remote_sharing")),
    }


def _most(now: Samples, name: str) -> float | None:
    """The largest value of a metric among engine cores, for something that all share and report.

    None if no engine core reports it, as with a Mooncake Store.
    """
    return max((it.value for it in now.all(f"vllm:hybrid_pages_{name}")), default=None)


def _all_ours(samples: Samples) -> list[Any]:
    return [
        it for name in ("lookups", "free_bytes") for it in samples.all(f"vllm:hybrid_pages_{name}")
    ]


def _engine(sample: Sample) -> str:
    return sample.labels.get("engine", "")


def _key(sample: Sample) -> tuple[str, tuple[tuple[str, str], ...]]:
    return sample.name, tuple(sorted(sample.labels.items()))


def _counters(samples: Samples) -> dict[tuple[str, tuple[tuple[str, str], ...]], Sample]:
    return {
        _key(sample): sample
        for name, found in samples.by_name.items()
        if name.startswith(PREFIX) and name.endswith("_total")
        for sample in found
    }


def _speed(nbytes: float, seconds: float) -> float | None:
    return nbytes / seconds / 1e9 if seconds else None


class _Span:
    """The growth of counters between two readings. If one counter of an engine core is lower than
    before, that engine core has started anew, and all its counters are taken from 0."""

    def __init__(self, now: Samples, before: Samples | None, seconds: float) -> None:
        self._now, self._before, self._seconds = now, before, seconds
        earlier = {} if before is None else _counters(before)
        began_again = {
            _engine(sample)
            for key, sample in _counters(now).items()
            if key in earlier and sample.value < earlier[key].value
        }
        self._earlier = {
            key: sample.value
            for key, sample in earlier.items()
            if _engine(sample) not in began_again
        }

    def more(self, name: str, **labels: str) -> float:
        return sum(
            sample.value - self._earlier.get(_key(sample), 0.0)
            for sample in self._now.all(PREFIX + name, **labels)
        )

    def rate(self, name: str) -> float | None:
        if self._before is None or self._seconds <= 0:
            return None
        return self.more(name) / self._seconds

    def seconds_each(self, tier: str) -> dict[str, float]:
        """Mean seconds of a copy of one entry, queues included, by direction if there were any."""
        copies = {event: self.more(f"{tier}_entries", event=event) for event in ("written", "read")}
        return {
            event: self.more(f"{tier}_seconds", event=event) / entries
            for event, entries in copies.items()
            if entries
        }

    def labels(self, name: str, label: str) -> dict[str, float]:
        return {
            key: amount
            for key in sorted(self._now.by_label(name, label))
            if (amount := self.more(name, **{label: key}))
        }
