"""What outlives a process: prompts of the same model are found again, and of no other."""

import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

import tiny
from hybrid_pages import HybridPagesError
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.mlx import CacheStore, PrefixCache, UnsupportedError
from runs import BLOCK, agree

PROMPT = tiny.tokens(90)


def opened(model, folder, **more):
    return PrefixCache(
        model,
        host_gb=0.01,
        block_tokens=BLOCK,
        disk_path=folder,
        disk_gb=0.05,
        verify_on_load=True,
        **more,
    )


@pytest.mark.parametrize("name", tiny.made("qwen3_5", "mamba2", "recurrent_gemma", "kimi_k3"))
def test_the_next_process_finds_the_prompt(tmp_path, tokenizer, name):
    with opened(tiny.make(name), tmp_path / "disk") as cache:
        assert agree(cache, tokenizer, PROMPT)[0] == 0
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import tiny, test_disk, runs\n"
        "with test_disk.opened(tiny.make(sys.argv[2]), sys.argv[3]) as cache:\n"
        "    print(runs.agree(cache, tiny.tokenizer(), test_disk.PROMPT)[0])\n"
    )
    words = [sys.executable, "-c", script, str(Path(__file__).parent), name, str(tmp_path / "disk")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split()[-1:] == ["80"], done.stderr


def test_an_encrypted_prompt_is_found_with_its_key_alone(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setenv("KEYS", "ab" * 32)
    for restored in (0, 80):
        with opened(tiny.make("lfm2"), tmp_path / "disk", encrypt_key="env:KEYS") as cache:
            assert agree(cache, tokenizer, PROMPT)[0] == restored
    monkeypatch.setenv("KEYS", "cd" * 32)
    with pytest.raises(HybridPagesError, match=r"expected encrypt_key with the key"):
        opened(tiny.make("lfm2"), tmp_path / "disk", encrypt_key="env:KEYS")


def test_other_weights_find_nothing(tmp_path, tokenizer):
    with opened(tiny.make("lfm2"), tmp_path / "disk") as cache:
        agree(cache, tokenizer, PROMPT)
    model = tiny.make("lfm2")
    down = model.model.layers[1].feed_forward.w1
    down.weight[3, 3] = 7.0
    with opened(model, tmp_path / "disk") as cache:
        assert agree(cache, tokenizer, PROMPT)[0] == 0


def test_other_settings_find_nothing(tmp_path, tokenizer):
    with opened(tiny.make("lfm2"), tmp_path / "disk") as cache:
        agree(cache, tokenizer, PROMPT)
    model = tiny.make("lfm2")
    model.model.layers[1].operator_norm.eps = 20.0
    with opened(model, tmp_path / "disk") as cache:
        assert agree(cache, tokenizer, PROMPT)[0] == 0


def test_what_was_changed_while_it_ran_is_not_found(tmp_path, tokenizer):
    model = tiny.make("lfm2")
    with opened(model, tmp_path / "disk") as cache:
        model.model.layers[1].feed_forward.w1.weight[3, 3] = 7.0
        agree(cache, tokenizer, PROMPT)
        assert agree(cache, tokenizer, PROMPT)[0] == 80
    with opened(tiny.make("lfm2"), tmp_path / "disk") as cache:
        assert agree(cache, tokenizer, PROMPT)[0] == 0


def test_snapshots_are_not_found(tmp_path, tokenizer):
    """A store cannot tell which model filled a cache."""
    from runs import feed, fresh

    model = tiny.make("lfm2")
    with CacheStore(
        model, host_gb=0.01, block_tokens=BLOCK, disk_path=tmp_path / "disk", disk_gb=0.05
    ) as store:
        cache = fresh(model)
        feed(model, cache, PROMPT)
        assert store.snapshot(cache, PROMPT) == 90
        assert store.restore(fresh(model), [*PROMPT, 5]) == 90
    with opened(model, tmp_path / "disk") as cache:
        assert agree(cache, tokenizer, PROMPT)[0] == 0


def test_code_of_the_caller_has_no_name(tmp_path):
    model = tiny.make("lfm2")
    model.model.layers[1].extra = lambda x: mx.abs(x)
    with pytest.raises(UnsupportedError, match="mlx-lm's own code"):
        opened(model, tmp_path / "disk")


def test_settings_of_a_disk_are_checked(tmp_path):
    with pytest.raises(SettingsError, match="disk_gb"):
        PrefixCache(tiny.make("lfm2"), host_gb=0.01, disk_path=tmp_path / "disk")
    with pytest.raises(HybridPagesError, match="disk_path"):
        PrefixCache(tiny.make("lfm2"), host_gb=0.01, disk_gb=1)
