"""Sizes from a configuration: every family that is known, and what is said of the others."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hybrid_pages.models.blocks import CachePlan, plan
from hybrid_pages.models.choices import Choices
from hybrid_pages.models.config import Config, ModelError, find
from hybrid_pages.models.families import READERS, REFUSED, layers_of
from hybrid_pages.models.layers import RecurrentState
from model_configs import ATTENTION, QWEN35_08B, QWEN36_27B, RECURRENT, config_of


def planned(config: dict[str, Any], **options: Any) -> CachePlan:
    own = ("device", "block_size", "exports")
    choices = Choices(**{key: value for key, value in options.items() if key not in own})
    rest = {key: value for key, value in options.items() if key in own}
    return plan(layers_of(Config("config.json", config), choices), ranks=choices.ranks, **rest)


def test_there_is_an_example_of_every_family():
    assert set(RECURRENT | ATTENTION) == set(READERS)
    assert not set(READERS) & set(REFUSED)


@pytest.mark.parametrize("architecture", sorted(READERS))
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_family_is_read(architecture, ranks):
    found = planned(config_of(architecture), ranks=ranks)
    assert found.page_bytes > 0
    assert (found.checkpoint_bytes > 0) == (architecture in RECURRENT)
    assert found.block_tokens % 16 == 0
    # A state fits into the pages of a block, for they share memory.
    for group in found.groups:
        assert group.padding_bytes(found.block_tokens) >= 0


@pytest.mark.parametrize("architecture", sorted(REFUSED))
def test_other_families_are_refused_by_name(architecture):
    with pytest.raises(ModelError, match=f"{architecture}: ") as error:
        layers_of(Config("config.json", {"architectures": [architecture]}), Choices())
    assert REFUSED[architecture] in str(error.value)


def test_an_unknown_family_is_refused_with_those_that_are_known():
    with pytest.raises(ModelError, match="found NewForCausalLM: known are AfmoeForCausalLM, "):
        layers_of(Config("config.json", {"architectures": ["NewForCausalLM"]}), Choices())


def test_published_models_get_the_blocks_that_vllm_logs_for_them():
    large, small = planned(QWEN36_27B), planned(QWEN35_08B)
    assert (large.block_tokens, small.block_tokens) == (784, 544)
    assert large.page_bytes == 49 << 20
    assert large.checkpoint_bytes == 48 * (61_440 + 3_145_728)
    assert small.checkpoint_bytes == 18 * (36_864 + 1_048_576)
    assert [group.is_recurrent for group in large.groups].count(True) == 3
    assert len(large.groups) == 4


def test_kernels_that_export_states_make_other_blocks():
    assert planned(QWEN36_27B).alternative == (832, "FlashInfer")
    exporting = planned(QWEN36_27B, exports=True)
    assert (exporting.block_tokens, exporting.exports) == (832, True)
    assert planned(config_of("GraniteMoeHybridForCausalLM")).exports
    assert not planned(config_of("Lfm2ForCausalLM"), exports=True).exports


def test_types_change_sizes():
    half = planned(QWEN36_27B, ssm_dtype="bfloat16")
    assert half.checkpoint_bytes == 48 * (61_440 + 3_145_728 // 2)
    assert planned(QWEN36_27B, kv_dtype="fp8").bytes_per_token == 32_768
    # float32 weights are computed in bfloat16 by default.
    config = config_of("LlamaForCausalLM")
    assert planned(config | {"dtype": "float32"}).page_bytes == planned(config).page_bytes
    assert planned(config, dtype="float32").page_bytes == 2 * planned(config).page_bytes


def test_ranks_have_their_parts_and_repeat_heads_that_are_too_few():
    one, two = planned(QWEN36_27B), planned(QWEN36_27B, ranks=2)
    assert two.checkpoint_bytes == one.checkpoint_bytes
    assert two.bytes_per_token == one.bytes_per_token
    # Of 4 heads of keys and values, each of 8 ranks has one.
    assert planned(QWEN36_27B, ranks=8).bytes_per_token == 2 * one.bytes_per_token
    with pytest.raises(ModelError, match="--tp: expected a divisor"):
        planned(QWEN36_27B, ranks=3)
    # 24 heads of queries can't be put on 16 ranks, though those of keys and values can.
    with pytest.raises(ModelError, match="--tp: expected a divisor of num_attention_heads, which"):
        planned(QWEN36_27B, ranks=16)


def test_groups_of_mamba2_are_one_or_a_multiple_of_the_ranks():
    config = config_of("FalconH1ForCausalLM")
    one, two = planned(config), planned(config, ranks=2)
    # A single group is there on both ranks: 2 times 128 values in 3 columns of 8 layers.
    assert two.checkpoint_bytes - one.checkpoint_bytes == 8 * 3 * 2 * 128 * 2
    assert planned(config | {"mamba_n_groups": 2}, ranks=2)
    with pytest.raises(ModelError, match="--tp: expected a divisor of the groups of Mamba-2"):
        planned(config | {"mamba_n_groups": 2}, ranks=4)


def test_a_checkpoint_that_says_how_its_cache_is_quantised_is_believed():
    config = config_of("LlamaForCausalLM")
    fp8 = {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}
    assert planned(config | {"quantization_config": fp8}).page_bytes == (
        planned(config, kv_dtype="fp8").page_bytes
    )
    for other in ("NVFP4", {"num_bits": 4, "type": "float"}):
        with pytest.raises(ModelError, match=r"say one of auto, bfloat16, .* with --kv-dtype"):
            planned(
                config
                | {"quantization_config": {"quant_method": "modelopt", "kv_cache_scheme": other}}
            )


def test_old_checkpoints_say_how_they_are_quantised_in_a_file_beside(tmp_path: Path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config_of("LlamaForCausalLM")))

    def token_bytes() -> int:
        return layers_of(Config.read(file), Choices())[0].token_bytes

    plain, beside = token_bytes(), tmp_path / "hf_quant_config.json"
    says = {"producer": {"name": "modelopt"}, "quantization": {"kv_cache_quant_algo": "FP8"}}
    beside.write_text(json.dumps(says))
    assert token_bytes() == plain // 2
    file.rename(file := tmp_path / "other.json")
    assert token_bytes() == plain
    file.rename(file := tmp_path / "config.json")
    beside.write_text("{")
    with pytest.raises(ModelError, match=r"hf_quant_config.json: expected JSON"):
        token_bytes()


@pytest.mark.parametrize("nested", [False, True])
def test_a_scheme_of_llm_compressor_for_the_cache_is_fp8(nested):
    scheme = {"num_bits": 8, "type": "float", "dynamic": False, "strategy": "tensor"}
    given = {"quant_method": "compressed-tensors", "kv_cache_scheme": scheme}
    plain = {"quant_method": "compressed-tensors", "kv_cache_scheme": None}

    def config(quantised):
        if nested:
            text = QWEN36_27B["text_config"] | {"quantization_config": quantised}
            return QWEN36_27B | {"text_config": text}
        return QWEN36_27B | {"quantization_config": quantised}

    fp8 = planned(QWEN36_27B, kv_dtype="fp8")
    assert planned(config(given)) == fp8
    assert planned(config(given), kv_dtype="bfloat16") == planned(QWEN36_27B)
    assert planned(config(plain)) == planned(QWEN36_27B)
    # vLLM asks for no such scheme where latents are kept.
    latent = config_of("DeepseekV3ForCausalLM")
    assert planned(latent | {"quantization_config": given}) == planned(latent)


@pytest.mark.parametrize(
    ("architecture", "field", "value"),
    [
        ("Qwen3NextForCausalLM", "head_dim", "x"),
        ("Qwen3NextForCausalLM", "head_dim", -1),
        ("Qwen3NextForCausalLM", "head_dim", 1.5),
        ("Qwen3NextForCausalLM", "dtype", ["bfloat16"]),
        ("Qwen3NextForCausalLM", "num_hidden_layers", 1 << 31),
        ("Qwen3_5ForCausalLM", "mamba_ssm_dtype", {}),
        ("KimiLinearForCausalLM", "qk_rope_head_dim", "x"),
        ("FalconH1ForCausalLM", "mamba_d_ssm", []),
        ("JambaForCausalLM", "attn_layer_offset", "2"),
        ("NemotronHForCausalLM", "sliding_window", "x"),
        ("Gemma3nForCausalLM", "num_kv_shared_layers", 1.5),
    ],
)
def test_a_value_that_is_none_of_its_kind_is_named(architecture, field, value):
    named = "type of the recurrent states" if field == "mamba_ssm_dtype" else field
    with pytest.raises(ModelError, match=f"config.json .*{architecture}.*: {named}: expected"):
        planned(config_of(architecture) | {field: value})


def test_windows_keep_only_what_they_see():
    found = planned(config_of("Gemma3ForCausalLM"))
    short, long = found.kept_bytes(512), found.kept_bytes(1 << 16)
    full = sum(2 * 8 * 128 * 2 for _ in range(2)) * (1 << 16)
    assert short < long < full + 7 * 512 * 2 * 8 * 128 * 2
    # The layers that use other layers' pages have none.
    shared = planned(config_of("Gemma3nForCausalLM"))
    assert len(shared.layers) == len(found.layers) - 2


def test_wide_heads_of_full_attention_have_smaller_blocks():
    found = planned(config_of("Gemma4ForCausalLM"))
    assert sorted({group.block_tokens for group in found.groups}) == [16, 32]
    assert found.block_tokens == 32


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": None}, "found no dtype.* --dtype"),
        ({"dtype": "float8"}, "dtype: expected bfloat16, float16, float32, found 'float8'"),
        ({"num_key_value_heads": 0}, "num_key_value_heads: expected a positive integer, found 0"),
        ({"layer_types": ["linear_attention"]}, "a kind for each of 8 layers, found 1"),
        ({"layer_types": ["other"] * 8}, "layers of an unknown kind: other"),
        ({"layer_types": "x"}, "layer_types: expected a list of strings"),
        ({"linear_num_value_heads": None}, "linear_num_value_heads: expected a positive"),
        ({"head_dim": None, "hidden_size": 8}, "heads that have a positive width, found 8 of 0"),
        ({"text_config": 5}, "text_config: expected a JSON object"),
    ],
)
def test_a_configuration_that_says_too_little_is_refused(change, reason):
    with pytest.raises(ModelError, match=reason):
        planned(config_of("Qwen3NextForCausalLM") | change)


@pytest.mark.parametrize("value", [[1], {"head_dim": "x"}, {"num_key_value_heads": 0}])
def test_a_layer_of_its_own_that_is_none_is_refused(value):
    config = config_of("Gemma4ForCausalLM") | {"per_layer_config": {"0": value}}
    with pytest.raises(ModelError, match=r"per_layer_config: expected|a positive width, found"):
        planned(config)


def test_sparse_indexers_and_unknown_windows_are_not_guessed():
    with pytest.raises(ModelError, match="sparse indexer"):
        planned(config_of("DeepseekV3ForCausalLM") | {"index_topk": 2048})
    with pytest.raises(ModelError, match="found sliding windows"):
        planned(config_of("MistralForCausalLM") | {"sliding_window": 4096})
    planned(config_of("Qwen2ForCausalLM") | {"sliding_window": 4096, "use_sliding_window": False})


def test_a_model_is_found_as_a_folder_a_file_or_a_name(tmp_path: Path, monkeypatch):
    text = json.dumps(QWEN35_08B)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text(text)
    (tmp_path / "mine.json").write_text(text)
    home = tmp_path / "hub" / "models--Qwen--Qwen3.5-0.8B"
    (home / "snapshots" / "abc").mkdir(parents=True)
    (home / "snapshots" / "abc" / "config.json").write_text(text)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in (str(tmp_path / "folder"), str(tmp_path / "mine.json"), "Qwen/Qwen3.5-0.8B"):
        assert Config.read(find(name)).architecture == "Qwen3_5ForConditionalGeneration"
    assert find("Qwen/Qwen3.5-0.8B", "abc").is_file()
    for name, reason in (
        ("Qwen/Other", r"found none of these: `hf download Qwen/Other config.json` fetches it"),
        (str(tmp_path), "expected a config.json in this folder"),
    ):
        with pytest.raises(ModelError, match=reason):
            find(name)


def test_a_model_may_come_through_a_pipe():
    reading, writing = os.pipe()
    with open(writing, "w") as pipe:
        json.dump(QWEN35_08B, pipe)
    with open(reading):
        path = find(f"/dev/fd/{reading}")
        assert Config.read(path).architecture == QWEN35_08B["architectures"][0]


@pytest.mark.parametrize(
    ("text", "reason"), [("{", "expected JSON"), ("[1]", "found list"), ('"a"', "found str")]
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text, reason):
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ModelError, match=reason):
        Config.read(file)


def test_every_state_says_the_bytes_of_its_shapes():
    states = {
        layer.kind: layer
        for name in RECURRENT
        for layer in planned(config_of(name)).layers
        if isinstance(layer, RecurrentState)
    }
    assert set(states) == {
        "Gated DeltaNet",
        "Kimi Delta Attention",
        "Mamba-1",
        "Mamba-2",
        "lightning attention",
        "short convolution",
    }
    assert all(len(state.shapes) == len(state.element_bytes) for state in states.values())
