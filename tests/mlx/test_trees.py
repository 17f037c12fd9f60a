"""Random trees of prompts, small budgets and several tenants: every text is mlx-lm's.

A longer run: ``HYBRID_PAGES_FUZZ=200`` trees. A failing tree runs alone as ``-k tree_17``.
"""

import os
import random

import pytest

import tiny
from hybrid_pages.mlx import PrefixCache, UnsupportedError, cache_io
from runs import BLOCK, agree

TREES = int(os.environ.get("HYBRID_PAGES_FUZZ", "14"))
STEPS = 14
# None of them needs more than a second for a tree.
NAMES = tiny.made(
    "qwen3_5",
    "lfm2",
    "mamba2",
    "recurrent_gemma",
    "olmo_hybrid",
    "baichuan_m1",
    "falcon_h1",
    "bailing_hybrid",
    "granitemoehybrid",
    "jamba",
    "nemotron_h",
    "kimi_linear",
    "gear",
    "kimi_k3",
)


def least(model, block):
    """GiB for one entry of each class, and a bit."""
    from hybrid_pages.adapter.pool import Slots

    with PrefixCache(model, host_gb=0.05, block_tokens=block) as cache:
        geometry = cache.store.geometry
        slot = geometry.suggest_slot_bytes()
        return Slots(slot, 0).least(geometry) * slot / 2**30


def grow(number, model, tokenizer):
    """One tree; the cache's counts."""
    rng = random.Random(number)
    block = rng.choice([8, BLOCK])
    budget = least(model, block) * rng.choice([1.1, 6, 20, 400, 400])
    policy = rng.choice(["reuse", "lru"])
    roots = [tiny.tokens(rng.randint(20, 90), seed=10 * number + at) for at in range(2)]
    with PrefixCache(
        model, host_gb=budget, block_tokens=block, policy=policy, verify_on_load=True
    ) as cache:
        for step in range(STEPS):
            root = rng.choice(roots)
            prompt = root[: rng.choice([len(root), len(root), len(root) * 2 // 3, 1])]
            prompt = [*prompt, *tiny.tokens(rng.randint(0, 30), seed=rng.randrange(4))]
            salt = rng.choice(["", "", "", "a"])
            new = rng.choice([1, 5, 30])
            chunk = rng.choice([2048, 2048, 13])
            _, text = agree(cache, tokenizer, prompt, new, salt, prefill_step_size=chunk)
            if rng.random() < 0.4:
                roots[rng.randrange(2)] = [*prompt, *text][:150]
            if step % 5 == 4:
                stats = cache.stats()
                assert stats.resident_bytes <= stats.host_bytes
        return cache.stats()


@pytest.mark.parametrize("number", range(TREES), ids=lambda number: f"tree_{number}")
def test_texts_are_those_of_mlx_lm(models, tokenizer, number):
    stats = grow(number, models(NAMES[number % len(NAMES)]), tokenizer)
    assert stats.failed_loads == stats.failed_stores == 0
    assert stats.requests == STEPS


def test_trees_restore_enough_to_be_worth_comparing(models, tokenizer):
    stats = [grow(number, models(NAMES[number]), tokenizer) for number in range(6)]
    assert sum(each.hits for each in stats) > len(stats) * STEPS / 5


def skewed(monkeypatch):
    """States of the block before."""
    kept = {}
    state = cache_io.Reader._state

    def late(self, spec):
        now = state(self, spec).copy()
        before, kept[spec] = kept.get(spec, now), now
        return before

    monkeypatch.setattr(cache_io.Reader, "_state", late)


def offset(monkeypatch):
    put = cache_io.Writer._put
    monkeypatch.setattr(
        cache_io.Writer,
        "_put",
        lambda self, spec, start, rows: (
            put(self, spec, start, rows[:, ::-1])
            if spec.kind == "keys"
            else put(self, spec, start, rows)
        ),
    )


@pytest.mark.parametrize("fault", [skewed, offset])
def test_each_fault_is_seen(models, tokenizer, monkeypatch, fault):
    fault(monkeypatch)
    # The model itself is tried out before anything is stored: that finds some of them, too.
    with pytest.raises((AssertionError, UnsupportedError)):
        for number in range(TREES):
            grow(number, models(NAMES[number % 3]), tokenizer)


def test_tenants_share_nothing(models, tokenizer):
    prompt = tiny.tokens(60)
    with PrefixCache(models("lfm2"), host_gb=0.05, block_tokens=BLOCK) as cache:
        counts = [agree(cache, tokenizer, prompt, salt=salt)[0] for salt in ("", "a", "", "a")]
    assert counts == [0, 0, 48, 48]
