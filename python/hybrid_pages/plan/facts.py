"""Everything that ``hybrid-pages plan`` says, as one object: ``--json`` prints it."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from hybrid_pages.adapter.memory import GIB
from hybrid_pages.models.blocks import CachePlan, plan
from hybrid_pages.models.choices import Choices
from hybrid_pages.models.config import Config, ModelError
from hybrid_pages.models.families import layers_of, stages_of
from hybrid_pages.models.layers import Attention, RecurrentState
from hybrid_pages.models.stages import PARTITION
from hybrid_pages.plan.capacity import (
    CONTEXTS,
    break_even,
    dense_tokens,
    full_attention_bytes,
    kept,
    page_table_bytes,
)
from hybrid_pages.text import size

_DEFAULT_HOST_GB = 4.0
_HUGE_PAGES_FROM_GB = 128
"""From how much pinned memory of a rank on huge pages are worth being reserved."""


def facts(config: Config, args: SimpleNamespace) -> dict[str, Any]:
    """The facts about a model.

    Raises:
        ModelError: a family that is not known, values with which vLLM would not start, or ones that
            the connector rejects.
    """
    _require_spread(args)
    choices = choices_of(args)
    found = _planned(config, choices, args)
    n, whole_blocks_only = found.block_tokens, found.whole_blocks_only(choices.drafts)
    inside = whole_blocks_only is None
    context = [
        {
            "tokens": tokens,
            "bytes": found.kept_bytes(tokens, tails=int(inside and tokens % n > 0)),
            "full_attention_bytes": full_attention_bytes(found, tokens),
        }
        for tokens in CONTEXTS
    ]
    modes = kept(found, args.conversation, args.turns, choices.drafts)
    budgets = {"host": args.host_gb, "disk": args.disk_gb}
    workers = args.tp * args.pp
    pinned = int(_host_gb(args) * GIB) // workers if args.device == "cuda" else 0
    return {
        "model": args.model,
        "file": config.file,
        "architecture": config.name,
        "tp": args.tp,
        "pp": args.pp,
        "nodes": args.nodes,
        "device": args.device,
        "drafts": choices.drafts,
        "dtype": choices.model_dtype(config),
        "layers": _counted(found),
        "groups": [
            {
                "kind": "states" if group.is_recurrent else group.layers[0].kind,
                "layers": len(group.layers),
                "block_tokens": group.block_tokens,
            }
            for group in found.groups
        ],
        "block_tokens": n,
        "min_batched_tokens": 2 * n - 1,
        "whole_blocks_only": whole_blocks_only,
        "bytes_per_token": found.bytes_per_token,
        "page_bytes": found.page_bytes,
        "checkpoint_bytes": found.checkpoint_bytes,
        "checkpoint_padding_bytes": found.padding_bytes,
        "stages": stages_of(config, choices),
        "zero_bytes": {
            "page": found.zero_bytes(recurrent=False),
            "checkpoint": found.zero_bytes(recurrent=True),
        },
        "per_rank": _part(found, args, workers),
        "per_node": _part(found, args, args.nodes),
        "states": _states(found),
        "settings": _settings(config, found, choices, pinned, args),
        "conversation": {"tokens": args.conversation, "turns": args.turns},
        "modes": [
            {
                "mode": mode.mode,
                "checkpoints": mode.checkpoints,
                "bytes": mode.nbytes,
                "cost": mode.cost,
                "conversations": {
                    name: mode.conversations(int(size * GIB))
                    for name, size in budgets.items()
                    if size is not None
                },
            }
            for mode in modes
        ],
        "capacity": {
            name: {"gib": size, "dense_tokens": dense_tokens(found, int(size * GIB))}
            for name, size in budgets.items()
            if size is not None
        },
        "page_table_bytes": page_table_bytes(pinned),
        "break_even": _break_even(found, args),
        "memory": context,
    }


def _require_spread(args: SimpleNamespace) -> None:
    """Rejects ranks that vLLM cannot spread, and what the connector rejects with stages or nodes.

    Raises:
        ModelError: names the option.
    """
    workers = args.tp * args.pp
    if workers % args.nodes:
        raise ModelError(
            f"--nodes: expected a divisor of {workers} ranks (--tp {args.tp} x --pp {args.pp}), "
            f"found {args.nodes}: each node has as many"
        )
    if args.pp > 1 and args.drafts:
        raise ModelError(
            f"--drafts: expected none with pipeline stages (--pp {args.pp}), found {args.drafts}"
        )
    if args.nodes > 1 and args.disk_gb is not None:
        raise ModelError(
            f"--disk-gb: expected none on {args.nodes} nodes, found {args.disk_gb:g}: a disk is "
            "read and written by one process, which sees no memory of other nodes"
        )


def _part(found: CachePlan, args: SimpleNamespace, parts: int) -> dict[str, float]:
    """One of the equal parts in which the ranks or the nodes hold everything."""
    return {
        "page_bytes": found.page_bytes // parts,
        "checkpoint_bytes": found.checkpoint_bytes // parts,
        "host_gib": _host_gb(args) / parts,
    }


def _host_gb(args: SimpleNamespace) -> float:
    return _DEFAULT_HOST_GB if args.host_gb is None else float(args.host_gb)


def choices_of(args: SimpleNamespace) -> Choices:
    """The choices that the command's options make, as vLLM would read them."""
    return Choices(
        ranks=args.tp,
        dtype=args.dtype,
        kv_dtype=args.kv_dtype,
        ssm_dtype=args.ssm_dtype,
        # vllm/platforms/cpu.py, on processors with AVX-512 BF16.
        state_dtype="float32" if args.device == "cpu" else None,
        drafts=args.drafts or 0,
        stages=args.pp,
        partition=os.environ.get(PARTITION),
    )


def _planned(config: Config, choices: Choices, args: SimpleNamespace) -> CachePlan:
    return plan(
        layers_of(config, choices),
        ranks=args.tp,
        device=args.device,
        block_size=args.block_size,
        exports=args.exports,
        stages=stages_of(config, choices),
    )


def _counted(found: CachePlan) -> list[dict[str, Any]]:
    counts = Counter(layer.kind for layer in found.layers)
    sizes = {
        layer.kind: ("state_bytes", layer.nbytes)
        if isinstance(layer, RecurrentState)
        else ("bytes_per_token", layer.token_bytes)
        for layer in found.layers
    }
    return [
        {"kind": kind, "count": count, sizes[kind][0]: sizes[kind][1]}
        for kind, count in counts.items()
    ]


def _states(found: CachePlan) -> dict[str, Any] | None:
    if not found.checkpoint_bytes:
        return None
    made = "at step ends"
    if found.exports:
        made += " and exported from inside a prefill's last step"
    other = found.alternative
    return {
        "made": made,
        "alternative": None if other is None else {"kernels": other[1], "block_tokens": other[0]},
    }


def _settings(
    config: Config, found: CachePlan, choices: Choices, pinned: int, args: SimpleNamespace
) -> list[dict[str, str]]:
    n, rows = found.block_tokens, []

    def row(setting: str, why: str, cost: str) -> None:
        rows.append({"setting": setting, "why": why, "cost": cost})

    if found.checkpoint_bytes:
        row(
            f"--max-num-batched-tokens {2 * n - 1} or more",
            "2N-1: a prefill still gets a whole block beside N-1 other tokens; with less it may "
            "wait, and below N each block takes several steps",
            "longer steps, and activations for as many tokens; vLLM's default may be larger "
            "already",
        )
    host = _host_gb(args)
    tables = size(page_table_bytes(pinned), ",.4g")
    row(
        f'"host_gb": {host:g}',
        f"holds {dense_tokens(found, int(host * GIB)):,} tokens with a checkpoint at every "
        "boundary",
        (
            "host memory of the machine, for each engine core"
            if args.nodes == 1
            else f"host memory: {host / args.nodes:g} GiB of each of {args.nodes} nodes, for each "
            "engine core"
        )
        + (
            f", and of each GPU {tables} for page tables and 128 MiB to stage copies "
            "(`staging_mb`), beside vLLM's share"
            if pinned
            else ""
        ),
    )
    if pinned >= _HUGE_PAGES_FROM_GB * GIB:
        row(
            '"huge_pages": "2M"',
            f"{size(pinned, ',.4g')} a rank are pinned faster, and map more at a time",
            "memory that the system has to reserve before (sysctl vm.nr_hugepages)",
        )
    if found.checkpoint_bytes:
        row(
            '"checkpoint_mode": "adaptive"',
            "the default: checkpoints where they are expected to be used",
            "one step more for a prompt that leaves a known prefix where no state is",
        )
    if args.disk_gb is not None:
        row(
            f'"disk_path": "...", "disk_gb": {args.disk_gb:g}',
            "what is published outlives the engine",
            "every entry that the policy wants is written once",
        )
    if any(isinstance(it, RecurrentState) and 4 in it.element_bytes[1:] for it in found.layers):
        smaller = _planned(config, replace(choices, ssm_dtype="bfloat16"), args)
        if smaller.checkpoint_bytes < found.checkpoint_bytes:
            row(
                "--mamba-ssm-cache-dtype bfloat16",
                f"N = {smaller.block_tokens:,}, and checkpoints of "
                f"{smaller.checkpoint_bytes / found.checkpoint_bytes:.0%} of the size",
                "less exact states: measure what that does to answers",
            )
    if all(isinstance(it, Attention) for it in found.layers) or args.kv_dtype == "auto":
        smaller = _planned(config, replace(choices, kv_dtype="fp8"), args)
        if smaller.bytes_per_token < found.bytes_per_token:
            row(
                "--kv-cache-dtype fp8",
                f"N = {smaller.block_tokens:,}, and {smaller.bytes_per_token:,} bytes per token",
                "less exact keys and values",
            )
    return rows


def _break_even(found: CachePlan, args: SimpleNamespace) -> dict[str, Any] | None:
    given = {
        "active_params": args.active_params,
        "tflops": args.tflops,
        "gb_per_s": args.gb_per_s,
    }
    if None in given.values():
        return None
    tokens = break_even(
        found,
        active_params=args.active_params * 1e9,
        tflops=args.tflops,
        gb_per_s=args.gb_per_s,
        drafts=args.drafts or 0,
    )
    return {**given, "tokens": tokens}
