"""The rules of `hybrid-pages doctor` and of an engine's start: each finds what it is for."""

from __future__ import annotations

from typing import Any

import pytest

from hybrid_pages.checks.rules import findings
from hybrid_pages.checks.situation import Situation

CLEAN = Situation(
    block_tokens=784,
    entry_bytes=200 << 20,
    has_states=True,
    host_bytes=64 << 30,
    max_batched_tokens=8192,
    max_model_len=32768,
)


def changed(**values: Any) -> list[str]:
    return [finding.name for finding in findings(Situation(**vars(CLEAN) | values))]


def test_nothing_is_wrong_with_defaults():
    assert changed() == []
    assert findings(Situation()) == []


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"host_bytes": 300 << 20}, ["small-budget"]),
        ({"max_batched_tokens": 783}, ["step-below-block"]),
        ({"max_batched_tokens": 784}, ["step-below-two-blocks"]),
        ({"max_batched_tokens": 1566}, ["step-below-two-blocks"]),
        ({"max_batched_tokens": 1567}, []),
        ({"max_batched_tokens": 100, "has_states": False}, []),
        ({"max_batched_tokens": 784, "max_requests": 1}, []),
        ({"max_batched_tokens": 784, "draft_slots": 1, "max_requests": 1}, ["step-below-block"]),
        ({"max_batched_tokens": 1567, "draft_slots": 1}, ["step-below-two-blocks"]),
        ({"max_batched_tokens": 1024, "state_tokens": 512}, []),
        ({"max_scheduled_tokens": 783}, ["step-below-block"]),
        ({"max_scheduled_tokens": 1566}, ["step-below-two-blocks"]),
        ({"max_scheduled_tokens": 1567}, []),
        ({"max_batched_tokens": None, "max_scheduled_tokens": 1566}, ["step-below-two-blocks"]),
        ({"max_batched_tokens": 783, "max_scheduled_tokens": 8192}, ["step-below-block"]),
        ({"long_prefill_tokens": 783}, ["step-below-block"]),
        ({"long_prefill_tokens": 784}, []),
        ({"max_batched_tokens": None, "long_prefill_tokens": 512}, ["step-below-block"]),
        ({"long_prefill_tokens": 784, "max_batched_tokens": 1566}, ["step-below-two-blocks"]),
        ({"long_prefill_tokens": 512, "max_batched_tokens": 1566}, ["step-below-block"]),
        ({"cuts_prompts": False}, ["chunked-prefill"]),
        ({"cuts_prompts": False, "has_states": False}, []),
        ({"max_model_len": 784, "whole_blocks_only": True}, ["prompts-below-block"]),
        ({"max_model_len": 785, "whole_blocks_only": True}, []),
        ({"max_model_len": 784, "whole_blocks_only": False}, []),
        ({"retention": 8192}, ["retention"]),
        ({"retention": None}, ["retention"]),
        ({"hash_algorithm": "xxhash", "has_hash_seed": False, "has_disk": True}, ["hash-seed"]),
        ({"hash_algorithm": "xxhash", "has_hash_seed": False, "has_remote": True}, ["hash-seed"]),
        ({"hash_algorithm": "xxhash", "has_hash_seed": False}, []),
        ({"hash_algorithm": "xxhash", "has_disk": True}, []),
        ({"has_hash_seed": False, "publishes_events": True}, []),
        ({"siblings": ("NixlConnector",)}, ["failure-policy"]),
        ({"siblings": ("NixlConnector",), "failure_policy": "recompute"}, []),
        ({"kv_role": "kv_consumer"}, ["role"]),
        ({"kv_role": "kv_producer"}, ["role"]),
        ({"kv_role": "kv_consumer", "has_remote": True}, []),
        ({"kv_role": "kv_producer", "has_remote": True}, []),
        ({"changes_weights": "x"}, ["resets"]),
        ({"changes_weights": "x", "follows_resets": True}, []),
        ({"checkpoint_mode": "none"}, ["checkpoint-mode"]),
        ({"drafts": 1, "exports_states": True}, ["one-draft"]),
        ({"drafts": 2, "exports_states": True}, []),
    ],
)
def test_each_rule_finds_what_it_is_for(values, names):
    assert changed(**values) == names


@pytest.mark.parametrize("mode", ["adaptive", "align"])
@pytest.mark.parametrize("retention", [None, 8192])
def test_what_keeps_states_of_answers_is_not_advised_against_without_what_else_does(
    mode, retention
):
    (finding,) = findings(Situation(**vars(CLEAN) | kept_by(mode, retention)))
    assert (finding.name, finding.effect) == ("retention", "memory")
    assert finding.fix.startswith('"checkpoint_mode": "all" with ')


def test_beside_all_states_vllms_own_copies_are_only_a_cost():
    (finding,) = findings(Situation(**vars(CLEAN) | kept_by("all", None)))
    assert finding.fix == "leave --prefix-cache-retention-interval at 0, its default"


def kept_by(mode: str, retention: int | None) -> dict[str, Any]:
    return {"checkpoint_mode": mode, "retention": retention}


def test_the_worst_comes_first():
    assert changed(changes_weights="x", retention=None, kv_role="kv_consumer") == [
        "resets",
        "role",
        "retention",
    ]


@pytest.mark.parametrize(
    ("values", "said", "fix"),
    [
        (
            {"max_batched_tokens": 512},
            "takes 2 steps, the last one with 272 tokens. No hit is lost, and nothing waits",
            "--max-num-batched-tokens 1567 or more",
        ),
        (
            {"max_batched_tokens": 98},
            "takes 8 steps, the last one with 98 tokens",
            "--max-num-batched-tokens 1567 or more",
        ),
        (
            {"long_prefill_tokens": 512, "max_batched_tokens": 1024},
            "beside other requests a prompt gets 512 tokens of a step",
            "--max-num-batched-tokens 1567 or more, and --long-prefill-token-threshold 784 or more",
        ),
        (
            {"max_scheduled_tokens": 1000},
            "beside more than 216 of other requests",
            "--max-num-scheduled-tokens 1567 or more",
        ),
        (
            {"max_batched_tokens": 512, "max_scheduled_tokens": 8192},
            "a longer prompt waits for ever",
            "--max-num-batched-tokens 1567 or more",
        ),
        (
            {"max_batched_tokens": 1000, "draft_slots": 1},
            "room for 999 tokens",
            "--max-num-batched-tokens 1568 or more",
        ),
    ],
)
def test_a_short_step_is_told_by_what_it_costs(values, said, fix):
    (finding,) = findings(Situation(**vars(CLEAN) | values))
    assert said in finding.found
    assert (finding.effect, finding.fix) == ("time", fix)
