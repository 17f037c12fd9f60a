"""Prompts under different adapters share nothing."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from vllm.lora.request import LoRARequest

from harness import Engine, tokens

HIDDEN, RANK = 128, 4


def adapter(folder, seed: int):
    """An adapter that changes the values of the full-attention layers."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": ["o_proj"],
        "task_type": "CAUSAL_LM",
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    weights = {}
    for layer in (3, 7):
        name = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(RANK, 4 * 64, generator=generator) * 0.2
        weights[f"{name}.lora_B.weight"] = torch.randn(HIDDEN, RANK, generator=generator) * 0.2
    save_file(weights, folder / "adapter_model.safetensors")
    return str(folder)


@pytest.fixture(scope="module")
def engine(start):
    return start("qwen3.5", enable_lora=True, max_lora_rank=8, max_loras=2)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("adapters")
    return [adapter(base / f"{seed}", seed) for seed in (1, 2)]


def test_adapters_and_the_base_model_share_nothing(engine: Engine, folders):
    prompt = tokens("adapters", 3 * engine.N + 5)
    one = LoRARequest("one", 1, folders[0])
    two = LoRARequest("two", 2, folders[1])
    engine.reset_all()
    results = [engine.run(prompt, lora=lora) for lora in (None, one, two)]
    assert [result.resumed for result in results] == [0, 0, 0]
    assert len({result.logprobs for result in results}) == 3
    for lora, result in zip((None, one, two), results, strict=True):
        engine.reset_local()
        restored = engine.run(prompt, lora=lora)
        assert restored.host == 3 * engine.N
        assert restored == result


def test_an_adapter_of_the_same_name_with_another_id_shares_nothing(engine: Engine, folders):
    prompt = tokens("same name", 3 * engine.N + 5)
    engine.reset_all()
    engine.run(prompt, lora=LoRARequest("name", 11, folders[0]))
    engine.reset_local()
    assert engine.run(prompt, lora=LoRARequest("name", 12, folders[1])).host == 0
    engine.reset_local()
    assert engine.run(prompt, lora=LoRARequest("name", 11, folders[0])).host == 3 * engine.N


def test_an_adapter_that_is_reloaded_in_place_starts_anew(engine: Engine, tmp_path):
    prompt = tokens("reloaded", 3 * engine.N + 5)
    folder = Path(adapter(tmp_path / "reloaded", 3))
    lora = LoRARequest("reloaded", 21, str(folder))
    engine.reset_all()
    old = engine.run(prompt, lora=lora)
    shutil.rmtree(folder)
    adapter(folder, 4)
    engine.reset_local()
    again = LoRARequest("reloaded", 21, str(folder), load_inplace=True)
    new = engine.run(prompt, lora=again)
    assert new.resumed == 0 and new != old
    engine.reset_local()
    restored = engine.run(prompt, lora=lora)
    assert restored.host == 3 * engine.N
    assert restored == new
