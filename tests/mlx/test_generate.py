"""Texts with the cache against mlx-lm's own: tokens, log-probs, text and counts."""

import pytest

import tiny
from hybrid_pages.mlx import PrefixCache
from runs import BLOCK, agree

NAMES = [*tiny.HYBRIDS, "llama"]


@pytest.fixture
def cache(models, request):
    with PrefixCache(
        models(request.param), host_gb=0.05, block_tokens=BLOCK, verify_on_load=True
    ) as made:
        yield made


@pytest.mark.parametrize("cache", NAMES, indirect=True)
def test_resends_forks_and_next_turns_give_the_texts_of_mlx_lm(cache, tokenizer):
    first = tiny.tokens(100)
    restored, new = agree(cache, tokenizer, first, new=40)
    assert restored == 0
    # A resend, by ids and as text.
    assert agree(cache, tokenizer, first)[0] == 96
    assert agree(cache, tokenizer, tiny.text(first))[0] == 96
    # The next turn: the last full block of the output.
    turn = [*first, *new, *tiny.tokens(20, seed=1)]
    assert agree(cache, tokenizer, turn)[0] == (100 + 40) // BLOCK * BLOCK
    # A fork inside: the second prompt that leaves there finds the state that the first one made.
    forks = [[*first[:70], *tiny.tokens(30, seed=seed)] for seed in range(2, 5)]
    counts = [agree(cache, tokenizer, fork)[0] for fork in forks]
    assert counts[1:] == [64, 64]
    stats = cache.stats()
    assert stats.failed_loads == stats.failed_stores == 0
    assert not stats.uncached
    assert stats.requests == 7
    assert stats.prompt_tokens == stats.restored_tokens + stats.computed_tokens
