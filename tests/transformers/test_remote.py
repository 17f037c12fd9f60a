"""Prompts of another process through a shared directory: restored bit for bit, or not at all."""

import copy
import shutil

import pytest
import torch

import tiny
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.transformers import PrefixCache
from runs import BLOCK, GREEDY

PROMPT = tiny.tokens(5 * BLOCK + 3, 1)


@pytest.fixture
def opened(tmp_path):
    """Opens caches on one store; those before go on."""
    made = []

    def opened(model, **settings):
        given = dict(
            host_gb=0.01,
            block_tokens=BLOCK,
            remote_url=(tmp_path / "shared").as_uri(),
            remote_admit="all",
        )
        made.append(PrefixCache(model, **(given | settings)))
        return made[-1]

    yield opened
    for cache in made:
        cache.close()


def run(cache, prompt=PROMPT):
    """A result, and how many tokens of it were restored."""
    before = cache.stats().restored_tokens
    result = cache.generate(prompt, max_new_tokens=6, **GREEDY)
    return result, cache.stats().restored_tokens - before


@pytest.mark.parametrize("model", ["qwen3.5", "gemma3"], indirect=True)
def test_another_cache_restores_what_the_host_would(model, opened):
    first = opened(model)
    run(first)
    hit, restored = run(first)
    assert restored == 5 * BLOCK
    assert first.store._remote.settle(60)
    other = opened(copy.deepcopy(model))
    found, again = run(other)
    assert again == restored
    assert torch.equal(found.sequences, hit.sequences)
    assert all(map(torch.equal, found.logits, hit.logits))


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_what_a_store_did_not_take_is_told_at_the_end(model, opened, tmp_path, caplog):
    cache = opened(model)
    shutil.rmtree(tmp_path / "shared")
    run(cache)
    cache.close()
    assert f"remote store file://{tmp_path / 'shared'}" in caplog.text


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_other_weights_restore_nothing(model, opened):
    first = opened(model)
    run(first)
    assert first.store._remote.settle(60)
    other = copy.deepcopy(model)
    with torch.no_grad():
        next(iter(other.parameters())).view(-1)[7] += 1
    assert run(opened(other))[1] == 0


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_what_one_call_has_used_stays_out_until_a_second_does(model, opened):
    first = opened(model, remote_admit="auto")
    run(first)
    assert first.store._remote.settle(60)
    assert first.store._remote.stats()["writes"] == 0
    run(first)
    assert first.store._remote.settle(60)
    assert first.store._remote.stats()["writes"] > 0


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_a_wrong_url_is_refused(model, opened):
    with pytest.raises(SettingsError, match="remote_url: expected s3://"):
        opened(model, remote_url="http://host/a")
