"""The rules. Each looks at an engine's settings and says what to change, if anything.

The connector itself rejects other settings (``hybrid_pages/vllm/config/support.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hybrid_pages.checks.situation import Finding, Situation
from hybrid_pages.checks.steps import step_sizes

Rule = Callable[[Situation], Iterator[Finding]]


def findings(situation: Situation) -> list[Finding]:
    """The findings of all rules, the worst first."""
    order = ("start", "safety", "hits", "time", "memory")
    found = [finding for rule in RULES for finding in rule(situation)]
    return sorted(found, key=lambda finding: order.index(finding.effect))


def _budget(it: Situation) -> Iterator[Finding]:
    if it.host_bytes is None or it.entry_bytes is None or it.host_bytes >= 2 * it.entry_bytes:
        return
    fits = it.host_bytes // it.entry_bytes
    yield Finding(
        "small-budget",
        "hits",
        f"host_gb holds {fits} {'page' if fits == 1 else 'pages'} with a checkpoint "
        f"({it.entry_bytes / (1 << 20):.1f} MiB each), so hardly a prompt is ever restored",
        f"set host_gb to at least {_gib(64 * it.entry_bytes)}, which holds 64",
    )


def _gib(nbytes: int) -> str:
    return f"{-(-nbytes // (1 << 20)) / 1024:.2f}"


def _length(it: Situation) -> Iterator[Finding]:
    n, most = it.block_tokens, it.max_model_len
    if it.whole_blocks_only and n is not None and most is not None and most <= n:
        yield Finding(
            "prompts-below-block",
            "hits",
            f"--max-model-len {most} is no longer than a block of {n} tokens, and this engine "
            "resumes at whole blocks only: no prompt ever hits",
            "raise --max-model-len, or make blocks smaller; hybrid-pages plan says how, and why "
            "only whole blocks count",
        )


def _retention(it: Situation) -> Iterator[Finding]:
    if it.retention == 0 or not it.has_states:
        return
    kept = "all states" if it.retention is None else f"a state every {it.retention} tokens"
    fix = "leave --prefix-cache-retention-interval at 0, its default"
    if it.checkpoint_mode in ("adaptive", "align"):
        fix = (
            f'"checkpoint_mode": "all" with --prefix-cache-retention-interval 0. With '
            f'"{it.checkpoint_mode}" the interval helps next turns: of an answer the states that '
            "vLLM keeps itself are kept, and no others"
        )
    yield Finding(
        "retention",
        "memory",
        f"vLLM keeps {kept} of each request in the engine's own memory, which leaves less for "
        "requests",
        fix,
    )


def _hashes(it: Situation) -> Iterator[Finding]:
    if not it.hash_algorithm.startswith("xxhash") or it.has_hash_seed:
        return
    lasting = "the disk" if it.has_disk else "the remote store" if it.has_remote else ""
    shared = lasting or ("KV events" if it.publishes_events else "")
    if shared:
        yield Finding(
            "hash-seed",
            "start" if lasting else "hits",
            f"{it.hash_algorithm} takes a random seed in each process, so {shared} name the same "
            "prefix differently in another process",
            "set PYTHONHASHSEED to the same secret for all engines, or leave "
            "--prefix-caching-hash-algo at sha256",
        )


def _siblings(it: Situation) -> Iterator[Finding]:
    if it.siblings and it.failure_policy != "recompute":
        yield Finding(
            "failure-policy",
            "hits",
            f"kv_load_failure_policy {it.failure_policy!r}: a load of {' or '.join(it.siblings)} "
            "that fails ends its request with an error",
            'put "kv_load_failure_policy": "recompute" into the outermost --kv-transfer-config',
        )


def _role(it: Situation) -> Iterator[Finding]:
    if it.has_remote:  # others fill it, or take from it
        return
    if it.kv_role == "kv_consumer":
        yield Finding(
            "role",
            "hits",
            "kv_role kv_consumer only loads, and nothing else stores into this engine's memory",
            "use kv_both",
        )
    elif it.kv_role == "kv_producer":
        yield Finding(
            "role",
            "hits",
            "kv_role kv_producer only stores: this engine restores nothing",
            "use kv_both, unless a disk is filled for others",
        )


def _resets(it: Situation) -> Iterator[Finding]:
    if it.changes_weights and not it.follows_resets:
        yield Finding(
            "resets",
            "safety",
            f"{it.changes_weights}: weights may change while the engine runs, and a plain "
            "reset_prefix_cache() leaves what the old ones made in host memory",
            "reset with reset_connector=True (HTTP: reset_external=true), or set "
            '"follow_engine_resets": true',
        )


def _modes(it: Situation) -> Iterator[Finding]:
    if it.checkpoint_mode == "none" and it.has_states:
        yield Finding(
            "checkpoint-mode",
            "hits",
            'checkpoint_mode "none": a model with recurrent layers never hits',
            'leave "checkpoint_mode" at "adaptive"',
        )


def _one_draft(it: Situation) -> Iterator[Finding]:
    if it.drafts == 1 and it.exports_states and it.retention == 0:
        yield Finding(
            "one-draft",
            "safety",
            "with exactly one draft, vLLM itself spoils the state of some long prompts of models "
            "whose kernels export states; such requests store nothing",
            "take two drafts or more",
        )


RULES: tuple[Rule, ...] = (
    _budget,
    step_sizes,
    _length,
    _retention,
    _hashes,
    _siblings,
    _role,
    _resets,
    _modes,
    _one_draft,
)
