"""The engine that the rules look at, as far as its settings are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Effect = Literal["start", "safety", "hits", "time", "memory"]
"""Kinds of findings: the engine does not start, answers may be wrong, or hits, time or memory are
lost."""


@dataclass(frozen=True)
class Finding:
    """One thing to change."""

    name: str
    effect: Effect
    found: str
    fix: str

    def line(self) -> str:
        """The finding as a line for a log."""
        return f"{self.name}: {self.found}: {self.fix}"


@dataclass(frozen=True)
class Situation:
    """An engine's settings. None stands for one that is not known, which no rule looks at."""

    block_tokens: int | None = None
    """Tokens of a block of the cache."""
    entry_bytes: int | None = None
    """Bytes of a page and a checkpoint together."""
    has_states: bool | None = None
    exports_states: bool = False
    whole_blocks_only: bool | None = None
    """Whether requests resume at multiples of ``block_tokens`` only, not where others ended."""
    host_bytes: int | None = None
    state_tokens: int | None = None
    """Tokens of the block at whose ends steps of a prompt end; None for ``block_tokens``."""
    max_batched_tokens: int | None = None
    max_scheduled_tokens: int | None = None
    """``max_num_scheduled_tokens``, if it is not ``max_num_batched_tokens``."""
    long_prefill_tokens: int = 0
    """``long_prefill_token_threshold``: the most tokens of a prompt in a step, beside other
    requests; 0 for no limit."""
    max_requests: int | None = None
    """``max_num_seqs``."""
    cuts_prompts: bool = True
    """Whether a prompt may take several steps (chunked prefill)."""
    max_model_len: int | None = None
    drafts: int = 0
    draft_slots: int = 0
    """How many tokens of a step each request takes for drafts, beside its own."""
    retention: int | None = 0
    """``prefix_cache_retention_interval``; None keeps all."""
    hash_algorithm: str = "sha256"
    has_hash_seed: bool = True
    """Whether ``PYTHONHASHSEED`` is set."""
    has_disk: bool = False
    has_remote: bool = False
    publishes_events: bool = False
    siblings: tuple[str, ...] = field(default=())
    """Other connectors of a ``MultiConnector``."""
    failure_policy: str = "fail"
    """``kv_load_failure_policy`` of the outermost configuration."""
    kv_role: str = "kv_both"
    changes_weights: str = ""
    """The setting by which weights may change while the engine runs; empty if there is none."""
    follows_resets: bool = False
    checkpoint_mode: str = "adaptive"
