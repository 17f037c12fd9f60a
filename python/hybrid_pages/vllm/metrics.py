"""Counters and gauges of the connector, as vLLM's connector stats and as Prometheus metrics.

A counter has the count since it was last read, a gauge the present value. A key is a metric's name,
or ``name:label`` if the metric has a label.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
    PromMetric,
    PromMetricT,
)

from hybrid_pages import Disk, InvalidArgumentError, Mooncake, Remote

KINDS = {"attention": "pages", "window": "windows", "recurrent": "checkpoints"}
"""The label of an entry by the kind of its class."""

COUNTERS = {
    "lookups": (None, "Requests whose prefix was looked up when they were scheduled."),
    "lookup_tokens": (None, "Prompt tokens of the requests looked up."),
    "hit_tokens": (
        "source",
        "Tokens not recomputed, by source: local (vLLM's own), host, disk, remote, or other "
        "(connectors beside).",
    ),
    "tail_tokens": (
        None,
        "Tokens of hit_tokens behind the last whole block of a hit, not computed thanks to tails.",
    ),
    "preempted_hit_tokens": (
        "source",
        "Tokens that preempted requests did not recompute when they came back, by source.",
    ),
    "missing_state_tokens": (
        None,
        "Tokens whose attention pages were there but no recurrent state to resume from.",
    ),
    "missing_answer_tokens": (
        None,
        "Tokens of earlier answers that were computed again: their states were not kept.",
    ),
    "missing_states": (
        "reason",
        "Prompts that no state lets resume as deep as they could have, by reason: answer (the "
        "state is in an earlier answer, and checkpoint_mode did not keep it), or, where attention "
        "pages are deeper: never_made, evicted, writing, or window (its pages are missing).",
    ),
    "steered_steps": (
        None,
        "Steps that ended at a boundary because a checkpoint was wanted there.",
    ),
    "early_restores": (
        None,
        "Restores from tiers below that began while their request waited for its first turn.",
    ),
    "awaited_stores": (
        "outcome",
        "Requests that waited for a store under way, by outcome: found, late (the wait took too "
        "long) or lost (the store failed, or its entries left).",
    ),
    "expected_restores": (
        None,
        "Prefixes that were brought to the host for a request that a hint said to come.",
    ),
    "refused_hints": (None, "Hints that made no sense and were ignored."),
    "stored_bytes": (None, "Bytes copied out of the engine."),
    "stored_seconds": (None, "Seconds of copying out, summed over ranks."),
    "stored_entries": ("kind", "Entries published, by kind."),
    "loaded_bytes": ("kind", "Bytes copied back into the engine, by kind of entry."),
    "loaded_seconds": (None, "Seconds of copying back, summed over ranks."),
    "reloaded_tokens": (
        "reason",
        "Tokens whose attention pages were loaded though vLLM had them without a state, by reason: "
        "last_block (vLLM has a connector load a token at least), window (the model has sliding "
        "windows), drafts, beside (there are other connectors), or refused (no load was possible).",
    ),
    "skipped_loads": (
        "reason",
        "Hits that were computed, since vLLM could not have admitted or finished their loads, by "
        "reason: no_room (other loads held the blocks), never_admitted (the pool is too small), or "
        "turned_down (vLLM took none of what it was offered).",
    ),
    "skipped_entries": ("reason", "Entries not stored, by reason."),
    "skipped_tails": (
        "reason",
        "Requests of which a state inside a block was not stored, by reason: of the engine drafts, "
        "narrow_window, layout or unconfirmed; of the request embeddings, hint, stale, "
        "unknown_token, unknown_key, partial_state, partial_page or no_free_blocks.",
    ),
    "failures": ("reason", "Transfers or lookups that failed; each ended in recompute."),
    "evicted_entries": ("kind", "Entries evicted, by kind."),
    "disk_entries": (
        "event",
        "Entries of the disk, by event: written, read, found (of an earlier engine), spared (the "
        "bytes were there already), declined (not wanted, no room or a full queue), or evicted.",
    ),
    "disk_bytes": ("event", "Bytes of the disk, by event: written or read."),
    "disk_seconds": ("event", "Seconds that copies took, queues included, summed, by event."),
    "disk_failures": ("reason", "Copies that failed and entries that were lost, by reason."),
    "disk_outages": (
        None,
        "Times that the disk was left alone since it hung, could not be opened, or was moved.",
    ),
    "remote_entries": (
        "event",
        "Entries of the remote store, by event: written, read, found (not put there by this "
        "engine), spared (the bytes were there already), unproven (offered, and used by one "
        "request only so far), declined (a full queue, or a store that takes none), or evicted "
        "(from this engine's view alone).",
    ),
    "remote_bytes": ("event", "Bytes of the remote store, by event: written or read."),
    "remote_seconds": ("event", "Seconds that copies took, queues included, summed, by event."),
    "remote_requests": ("kind", "Requests to the remote store, by kind: put, get or list."),
    "remote_failures": ("reason", "Copies and listings that failed, by reason."),
    "remote_outages": (None, "Times that the remote store was left alone since it failed or hung."),
    "remote_not_worth": (
        None,
        "Hits that were not read as deep as they go since computing is faster.",
    ),
    "remote_unanswered": (
        None,
        "Requests that went on before it was known what the remote store has, since that took "
        "longer than the deadline or than computing.",
    ),
}
GAUGES = {
    "block_tokens": (None, "Tokens of a block: states are kept at multiples of it, and in tails."),
    "resident_entries": ("kind", "Entries in host memory, by kind."),
    "resident_bytes": ("kind", "Bytes of entries in host memory, by kind."),
    "ready_bytes": (None, "Bytes of the budget that may be used by now: a GPU's are pinned first."),
    "unpinned_bytes": (None, "Bytes of these that could not be pinned: their copies are slower."),
    "free_bytes": (None, "Bytes of the budget that may be used and hold nothing."),
    "leased_bytes": (None, "Bytes held by transfers under way."),
    "tenants": (None, "Tenants with entries, if tenant_share is below 1."),
    "metadata_bytes": (None, "Memory of index and policy."),
    "disk_quota_bytes": (None, "Bytes that this engine core may take on the disk."),
    "disk_used_bytes": ("identity", "Bytes taken of them, by identity: this, or other."),
    "disk_left_over_entries": (None, "Entries of earlier engines that were not found again yet."),
    "disk_queue": ("event", "Copies that have not ended, by event: written or read."),
    "disk_out": (None, "1 while the disk is left alone: see disk_outages."),
    "disk_lasting": (None, "1 while what is written outlives the engine: until its first reset."),
    "remote_known_entries": (None, "Entries that the remote store is known to have."),
    "remote_known_packs": (None, "Packs that the remote store is known to have."),
    "remote_known_bytes": (None, "Bytes of the entries that the remote store is known to have."),
    "remote_queue": ("event", "Copies that have not ended, by event: written or read."),
    "remote_out": (None, "1 while the remote store is left alone since it failed or hung."),
    "remote_sharing": (None, "1 while others find what is written: until the first reset."),
    "remote_latency_seconds": (
        None,
        "Seconds that the remote store takes for a small answer, as last measured.",
    ),
    "remote_bytes_per_second": (
        None,
        "Bytes a second that reads from the remote store bring, as last measured.",
    ),
    "prompt_tokens_per_second": (
        None,
        "Prompt tokens that the engine computes in a second, as reads from the remote store are "
        "weighed against it; 0 while unknown.",
    ),
}


@dataclass
class HybridPagesStats(KVConnectorStats):
    """Counters and gauges of an interval; ``data`` is plain and serialises."""

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        """Drops everything counted so far."""
        self.data: dict[str, dict[str, float]] = {"counters": {}, "gauges": {}}

    def aggregate(self, other: KVConnectorStats) -> "HybridPagesStats":
        """Adds the counters of a later interval, and takes its gauges."""
        counters = self.data["counters"]
        for key, amount in other.data.get("counters", {}).items():
            counters[key] = counters.get(key, 0) + amount
        self.data["gauges"].update(other.data.get("gauges", {}))
        return self

    def reduce(self) -> dict[str, int | float]:
        """The values for one line of vLLM's log."""
        return {**self.data["counters"], **self.data["gauges"]}

    def is_empty(self) -> bool:
        """Whether the interval has no values."""
        return not (self.data["counters"] or self.data["gauges"])


def _key(metrics: dict[str, tuple[str | None, str]], name: str, label: str | None) -> str:
    if (metrics[name][0] is None) != (label is None):
        raise InvalidArgumentError(
            f"metric {name}: expected label {metrics[name][0]}, found {label}"
        )
    return name if label is None else f"{name}:{label}"


_OBSERVED = {
    _key(GAUGES, "resident_entries", "pages"): "pages",
    _key(GAUGES, "resident_bytes", "pages"): "page_bytes",
    _key(GAUGES, "resident_entries", "windows"): "windows",
    _key(GAUGES, "resident_bytes", "windows"): "window_bytes",
    _key(GAUGES, "resident_entries", "checkpoints"): "checkpoints",
    _key(GAUGES, "resident_bytes", "checkpoints"): "checkpoint_bytes",
    _key(GAUGES, "tenants", None): "tenants",
    _key(GAUGES, "metadata_bytes", None): "metadata_bytes",
}
"""Gauges that are values of ``Cache.stats()``, by their keys there."""
_observed = itemgetter(*_OBSERVED.values())
_CACHE_COUNTERS = {
    (f"{event}_entries", kind): f"{event}_{kind}"
    for event in ("stored", "evicted")
    for kind in KINDS.values()
}
"""Counters that are values of ``Cache.stats()`` since the start, by name and label."""
_DISK_COUNTERS = {
    ("disk_entries", "written"): "writes",
    ("disk_entries", "read"): "reads",
    ("disk_entries", "spared"): "spared_writes",
    ("disk_bytes", "written"): "written_bytes",
    ("disk_bytes", "read"): "read_bytes",
    ("disk_outages", None): "outages",
}
_DISK_GAUGES = {
    _key(GAUGES, "disk_quota_bytes", None): "quota_bytes",
    _key(GAUGES, "disk_used_bytes", "this"): "live_bytes",
    _key(GAUGES, "disk_used_bytes", "other"): "other_bytes",
    _key(GAUGES, "disk_left_over_entries", None): "left_over",
    _key(GAUGES, "disk_queue", "written"): "writing",
    _key(GAUGES, "disk_queue", "read"): "reading",
    _key(GAUGES, "disk_out", None): "out",
    _key(GAUGES, "disk_lasting", None): "persistent",
}
"""Metrics that are values of ``Disk.stats()``, by name and label."""

_REMOTE_COUNTERS = {
    ("remote_entries", "written"): "writes",
    ("remote_entries", "read"): "reads",
    ("remote_entries", "spared"): "spared_writes",
    ("remote_entries", "unproven"): "unproven",
    ("remote_bytes", "written"): "written_bytes",
    ("remote_bytes", "read"): "read_bytes",
    ("remote_requests", "put"): "puts",
    ("remote_requests", "get"): "gets",
    ("remote_requests", "list"): "lists",
    ("remote_outages", None): "outages",
}
_REMOTE_GAUGES = {
    _key(GAUGES, "remote_known_entries", None): "entries",
    _key(GAUGES, "remote_known_packs", None): "packs",
    _key(GAUGES, "remote_known_bytes", None): "stored_bytes",
    _key(GAUGES, "remote_queue", "written"): "writing",
    _key(GAUGES, "remote_queue", "read"): "reading",
    _key(GAUGES, "remote_out", None): "out",
    _key(GAUGES, "remote_sharing", None): "shared",
    _key(GAUGES, "remote_bytes_per_second", None): "bandwidth",
}
"""Metrics that are values of ``Remote.stats()``, by name and label."""


class Figures:
    """The counts of one engine: of the present interval, which vLLM reads, and since the start.

    Args:
        block_tokens: tokens of a block.
    """

    def __init__(self, block_tokens: int = 0) -> None:
        self._block_tokens = block_tokens
        self.interval: dict[str, float] = {}
        """The counters of the interval but those that are zero."""
        self._before: dict[str, float] = {}
        """The counters of all earlier intervals."""
        self._gauges: dict[str, float] = {}
        self._checked: set[str] = set()
        self._below: dict[tuple[str, str | None], float] = {}

    def count(self, name: str, amount: float = 1, label: str | None = None) -> None:
        """Adds to a counter of :data:`COUNTERS`. Zero has no effect."""
        if amount:
            key = name if label is None else f"{name}:{label}"
            if key not in self._checked:
                self._checked.add(_key(COUNTERS, name, label))
            self.interval[key] = self.interval.get(key, 0) + amount

    def stored(self, nbytes: int, seconds: float) -> None:
        """Counts a published store. The cache counts its entries."""
        interval = self.interval
        interval["stored_bytes"] = interval.get("stored_bytes", 0) + nbytes
        interval["stored_seconds"] = interval.get("stored_seconds", 0) + seconds

    def observe(self, cache: Mapping[str, int], unpinned_bytes: float = 0) -> None:
        """Adds the values of ``Cache.stats()`` to the interval.

        unpinned_bytes: how much of the memory that is ready could not be pinned.
        """
        self._count_up({key: cache[name] for key, name in _CACHE_COUNTERS.items()})
        slot_bytes = cache["slot_bytes"]
        self._gauges = gauges = dict(zip(_OBSERVED, _observed(cache), strict=True))
        gauges["block_tokens"] = self._block_tokens
        gauges["ready_bytes"] = cache["ready_slots"] * slot_bytes
        gauges["unpinned_bytes"] = unpinned_bytes
        gauges["free_bytes"] = cache["free_slots"] * slot_bytes
        gauges["leased_bytes"] = cache["leased_slots"] * slot_bytes

    def observe_disk(self, disk: Disk, tier: Mapping[str, int | str]) -> None:
        """Adds the values of a disk to the interval, after :meth:`observe`.

        tier: the cache's counts of the disk, from ``Cache.tiers()``.
        """
        stats = disk.stats()
        found: dict[tuple[str, str | None], float] = {
            key: stats[name] for key, name in _DISK_COUNTERS.items()
        }
        for event in ("found", "declined", "evicted"):
            found["disk_entries", event] = float(tier[event])
        for event, name in (("written", "write"), ("read", "read")):
            found["disk_seconds", event] = disk.latencies()[name][1] / 1e6
        for name, count in stats.items():
            if name.startswith("failed_"):
                found["disk_failures", name.removeprefix("failed_")] = count
        self._count_up(found)
        self._gauges.update({key: stats[name] for key, name in _DISK_GAUGES.items()})

    def observe_remote(
        self,
        remote: Remote | Mooncake,
        tier: Mapping[str, int | str],
        restores: Mapping[str, int],
        tokens_per_second: float | None,
    ) -> None:
        """Adds the values of a remote store to the interval, after :meth:`observe`.

        tier: the cache's counts of the store, from ``Cache.tiers()``. restores: from
        ``Cache.restores()``. tokens_per_second: the rate of prefill; None if unknown.
        """
        stats = remote.stats()
        found: dict[tuple[str, str | None], float] = {
            key: stats[name] for key, name in _REMOTE_COUNTERS.items()
        }
        for event in ("found", "evicted"):
            found["remote_entries", event] = float(tier[event])
        found["remote_entries", "declined"] = float(tier["declined"]) - stats["unproven"]
        for event, name in (("written", "write_us"), ("read", "read_us")):
            found["remote_seconds", event] = stats[name] / 1e6
        for name, count in stats.items():
            if name.startswith("failed_"):
                found["remote_failures", name.removeprefix("failed_")] = count
        found["remote_not_worth", None] = restores["not_worth"]
        self._count_up(found)
        # The contents of a Mooncake Store are not known.
        known = {key: stats.get(name) for key, name in _REMOTE_GAUGES.items()}
        self._gauges.update({key: value for key, value in known.items() if value is not None})
        self._gauges["remote_latency_seconds"] = stats["latency_us"] / 1e6
        self._gauges["prompt_tokens_per_second"] = tokens_per_second or 0.0

    def observe_expected(self, brought: int, failed: int) -> None:
        """Adds how many prefixes were brought for expected requests, or could not be looked up."""
        self._count_up({("expected_restores", None): brought, ("failures", "lookup"): failed})

    def _count_up(self, found: Mapping[tuple[str, str | None], float]) -> None:
        """Counts the increase of values that count from the start."""
        for (name, label), seen in found.items():
            # A cache that a panic has closed reports 0.
            known = self._below.get((name, label), 0)
            self._below[name, label] = max(seen, known)
            self.count(name, max(seen - known, 0), label)

    def take(self) -> HybridPagesStats:
        """The values of the interval. A new interval begins."""
        counters, self.interval = self.interval, {}
        for key, amount in counters.items():
            self._before[key] = self._before.get(key, 0) + amount
        return HybridPagesStats({"counters": counters, "gauges": self._gauges.copy()})

    def snapshot(self) -> dict[str, dict[str, float]]:
        """The values since the start."""
        counters = self._before.copy()
        for key, amount in self.interval.items():
            counters[key] = counters.get(key, 0) + amount
        return {"counters": counters, "gauges": self._gauges.copy()}


class HybridPagesPromMetrics(KVConnectorPromMetrics):
    """The connector's Prometheus metrics, under ``vllm:hybrid_pages_*``."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._metrics = {
            name: self._counter_cls(
                name=f"vllm:hybrid_pages_{name}",
                documentation=text,
                labelnames=[*labelnames, label] if label else labelnames,
            )
            for name, (label, text) in COUNTERS.items()
        } | {
            name: self._gauge_cls(
                name=f"vllm:hybrid_pages_{name}",
                documentation=text,
                labelnames=[*labelnames, label] if label else labelnames,
                multiprocess_mode="mostrecent",
            )
            for name, (label, text) in GAUGES.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Adds an interval's counters and sets its gauges."""
        for key, amount in transfer_stats_data.get("counters", {}).items():
            self._child(key, engine_idx).inc(amount)
        for key, value in transfer_stats_data.get("gauges", {}).items():
            self._child(key, engine_idx).set(value)

    def _child(self, key: str, engine_idx: int) -> Any:
        name, _, label = key.partition(":")
        values = self.per_engine_labelvalues[engine_idx]
        return self._metrics[name].labels(*values, *([label] if label else []))
