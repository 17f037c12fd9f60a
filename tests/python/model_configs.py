"""A configuration of each family, small or published, in the words of its files."""

from __future__ import annotations

from typing import Any

_GATED = dict(
    linear_conv_kernel_dim=4,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_num_key_heads=16,
    linear_num_value_heads=32,
    full_attention_interval=4,
)
_ATTENTION = dict(
    dtype="bfloat16",
    hidden_size=2048,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
)
_MAMBA2 = dict(
    mamba_n_heads=64,
    mamba_d_head=64,
    mamba_d_state=128,
    mamba_n_groups=1,
    mamba_d_conv=4,
    mamba_expand=2,
)
_LATENT = dict(kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128)
_HYBRID = ["linear_attention"] * 3 + ["full_attention"]

# Sizes as published.
QWEN36_27B: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": dict(
        dtype="bfloat16",
        hidden_size=5120,
        num_hidden_layers=64,
        num_attention_heads=24,
        num_key_value_heads=4,
        head_dim=256,
        mamba_ssm_dtype="float32",
        **_GATED | dict(linear_num_value_heads=48),
    ),
}
QWEN35_08B: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": dict(
        dtype="bfloat16",
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=256,
        mamba_ssm_dtype="float32",
        **_GATED | dict(linear_num_value_heads=16),
    ),
}

_QWEN = _ATTENTION | _GATED | dict(layer_types=_HYBRID * 2)
_NEMOTRON = _ATTENTION | dict(
    hybrid_override_pattern="M-M*-M*E",
    mamba_num_heads=64,
    mamba_head_dim=64,
    n_groups=8,
    ssm_state_size=128,
    conv_kernel=4,
)
_LFM2 = _ATTENTION | dict(layer_types=["conv", "full_attention"] * 4, conv_L_cache=3)
_KIMI = (
    _ATTENTION
    | _LATENT
    | dict(
        linear_attn_config=dict(
            num_heads=32,
            head_dim=128,
            short_conv_kernel_size=4,
            kda_layers=[1, 2, 3, 5, 6, 7],
            full_attn_layers=[4, 8],
        )
    )
)
_BAILING = _ATTENTION | _LATENT | dict(layer_group_size=4, short_conv_kernel_size=4)
_JAMBA = _ATTENTION | dict(
    attn_layer_period=4, attn_layer_offset=2, mamba_expand=2, mamba_d_state=16, mamba_d_conv=4
)
_ZAMBA2 = _ATTENTION | dict(
    layers_block_type=["mamba", "hybrid"] * 4,
    mamba_expand=2,
    mamba_d_state=64,
    mamba_d_conv=4,
    mamba_ngroups=1,
    n_mamba_heads=32,
    mamba_headdim=128,
)

RECURRENT: dict[str, dict[str, Any]] = {
    "AliceAIForCausalLM": _QWEN | dict(linear_num_value_heads=16),
    "BailingMoeV2_5ForCausalLM": _BAILING,
    "BailingMoeV3ForCausalLM": _BAILING,
    "BailingMoeV3VLForConditionalGeneration": {"text_config": _BAILING},
    "ClefFlashForJointSchema": {"text_config": _QWEN},
    "ColBERTLfm2Model": _LFM2 | dict(conv_dim=2048),
    "ColQwen3_5": {"text_config": _QWEN},
    "D3ForSequenceClassification": {"text_config": _QWEN},
    "FalconH1ForCausalLM": _ATTENTION | _MAMBA2 | dict(mamba_d_ssm=3072, mamba_n_heads=48),
    "GraniteMoeHybridForCausalLM": _ATTENTION
    | _MAMBA2
    | dict(layer_types=["mamba", "attention"] * 4),
    "InternS2MobiusForConditionalGeneration": {"text_config": _QWEN},
    "InternS2PreviewForConditionalGeneration": {"text_config": _QWEN},
    "JambaForCausalLM": _JAMBA,
    "JambaForSequenceClassification": _JAMBA,
    "KimiK3ForConditionalGeneration": {"text_config": _KIMI},
    "KimiLinearForCausalLM": _KIMI,
    "Lfm2ForCausalLM": _LFM2 | dict(conv_dim=2048),
    "Lfm2MoeForCausalLM": _LFM2,
    "Lfm2VlForConditionalGeneration": {"text_config": _LFM2},
    "MiniCPMOcrForConditionalGeneration": {"text_config": _QWEN},
    "MiniCPMV4_6ForConditionalGeneration": {"text_config": _QWEN},
    "MiniCPMV4_7ForConditionalGeneration": {"text_config": _QWEN},
    "NemotronHForCausalLM": _NEMOTRON,
    "NemotronHPuzzleForCausalLM": _NEMOTRON,
    "NemotronH_Nano_Omni_Reasoning_V3": {"llm_config": _NEMOTRON},
    "NemotronH_Nano_VL_V2": {"llm_config": _NEMOTRON},
    "NemotronH_Omni_Reasoning_V3": {"text_config": _NEMOTRON},
    "NemotronH_Super_Omni_Reasoning_V3": {"text_config": _NEMOTRON},
    "OlmoHybridForCausalLM": _QWEN,
    "Qwen3NextForCausalLM": _QWEN,
    "Qwen3_5ForCausalLM": _QWEN | dict(mamba_ssm_dtype="float32"),
    "Qwen3_5ForConditionalGeneration": {"text_config": _QWEN | dict(mamba_ssm_dtype="float32")},
    "Qwen3_5MoeForCausalLM": _QWEN,
    "Qwen3_5MoeForConditionalGeneration": {"text_config": _QWEN},
    "Zamba2ForCausalLM": _ZAMBA2,
}

_WINDOWS = _ATTENTION | dict(
    sliding_window=512, layer_types=["sliding_attention"] * 3 + ["full_attention"]
)
_WINDOWS["layer_types"] = _WINDOWS["layer_types"] * 2
_GEMMA4 = _WINDOWS | dict(global_head_dim=256)

ATTENTION: dict[str, dict[str, Any]] = {
    "AfmoeForCausalLM": _WINDOWS,
    "ApertusForCausalLM": _WINDOWS,
    "Cohere2ForCausalLM": _WINDOWS,
    "Cohere2MoeForCausalLM": _WINDOWS,
    "DeepseekV2ForCausalLM": _ATTENTION | _LATENT,
    "DeepseekV3ForCausalLM": _ATTENTION | _LATENT,
    "Exaone4ForCausalLM": _WINDOWS,
    "Gemma2ForCausalLM": _WINDOWS,
    "Gemma3ForCausalLM": _WINDOWS,
    "Gemma3ForConditionalGeneration": {"dtype": "bfloat16", "text_config": {}},
    "Gemma3nForCausalLM": _WINDOWS | dict(num_kv_shared_layers=2),
    "Gemma3nForConditionalGeneration": {"dtype": "bfloat16", "text_config": {}},
    "Gemma4ForCausalLM": _GEMMA4,
    "Gemma4ForConditionalGeneration": {"text_config": _GEMMA4},
    "Gemma4UnifiedForConditionalGeneration": {"text_config": _GEMMA4},
    "GptOssForCausalLM": _WINDOWS,
    "GraniteSWAForCausalLM": _WINDOWS,
    "LagunaForCausalLM": _WINDOWS,
    "LlamaForCausalLM": _ATTENTION,
    "MistralForCausalLM": _ATTENTION,
    "Olmo3ForCausalLM": _WINDOWS,
    "Qwen2ForCausalLM": _ATTENTION,
    "Qwen3ForCausalLM": _ATTENTION,
    "Qwen3MoeForCausalLM": _ATTENTION,
}


def config_of(architecture: str) -> dict[str, Any]:
    """As it stands in a file."""
    return {"architectures": [architecture], **(RECURRENT | ATTENTION)[architecture]}
