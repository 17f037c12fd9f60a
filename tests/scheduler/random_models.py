"""Random configurations of model families, in the words of their files.

Only what decides sizes is random. Defaults of transformers' classes fill in the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

Values = dict[str, Any]


def _base(random: Random, architecture: str, model_type: str) -> Values:
    heads = random.choice([8, 16, 24, 32])
    return dict(
        architectures=[architecture],
        model_type=model_type,
        torch_dtype="bfloat16",
        hidden_size=heads * random.choice([64, 128]),
        intermediate_size=1024,
        num_attention_heads=heads,
        num_key_value_heads=random.choice([1, 2, 4, 8]),
        vocab_size=1024,
        max_position_embeddings=4096,
    )


def _experts() -> Values:
    return dict(num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=64)


def _gated(random: Random) -> Values:
    heads = random.choice([4, 8, 16])
    return dict(
        linear_conv_kernel_dim=4,
        linear_key_head_dim=random.choice([64, 128]),
        linear_value_head_dim=128,
        linear_num_key_heads=heads,
        linear_num_value_heads=heads * random.choice([1, 2, 3, 4]),
        full_attention_interval=random.choice([3, 4]),
        head_dim=random.choice([128, 256]),
        num_hidden_layers=random.choice([8, 12, 26]),
    )


def _qwen3_next(random: Random) -> Values:
    base = _base(random, "Qwen3NextForCausalLM", "qwen3_next")
    return base | _gated(random) | _experts() | dict(shared_expert_intermediate_size=64)


def _qwen35_text(random: Random) -> Values:
    found = _base(random, "Qwen3_5ForCausalLM", "qwen3_5_text") | _gated(random)
    if random.random() < 0.7:
        found["mamba_ssm_dtype"] = random.choice(["float32", "bfloat16"])
    return found


def _qwen35(random: Random) -> Values:
    text = _qwen35_text(random) | dict(dtype="bfloat16")
    for field in ("architectures", "torch_dtype"):
        del text[field]
    return dict(
        architectures=["Qwen3_5ForConditionalGeneration"],
        model_type="qwen3_5",
        text_config=text,
        vision_config=dict(
            depth=1, hidden_size=64, intermediate_size=64, out_hidden_size=text["hidden_size"]
        ),
    )


def _granite(random: Random) -> Values:
    heads = random.choice([48, 64, 96, 128])
    return (
        _base(random, "GraniteMoeHybridForCausalLM", "granitemoehybrid")
        | _experts()
        | dict(
            hidden_size=heads * 32,
            num_attention_heads=random.choice([8, 16]),
            num_hidden_layers=20,
            layer_types=["attention" if layer % 10 == 5 else "mamba" for layer in range(20)],
            mamba_d_conv=4,
            mamba_d_head=64,
            mamba_d_state=random.choice([64, 128, 256]),
            mamba_expand=2,
            mamba_n_groups=random.choice([1, 8]),
            mamba_n_heads=heads,
            shared_intermediate_size=64,
            position_embedding_type="nope",
        )
    )


def _nemotron(random: Random) -> Values:
    pattern = random.choice(["M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-", "M-M*-M-M*-"])
    found = _base(random, "NemotronHForCausalLM", "nemotron_h") | dict(
        head_dim=random.choice([64, 128]),
        num_hidden_layers=len(pattern),
        hybrid_override_pattern=pattern,
        mamba_num_heads=random.choice([32, 64, 128]),
        mamba_head_dim=random.choice([64, 80]),
        n_groups=8,
        ssm_state_size=128,
        conv_kernel=4,
    )
    if random.random() < 0.3:
        found["mamba_ssm_cache_dtype"] = random.choice(["float32", "float16"])
    if random.random() < 0.5:
        kinds = {"M": "mamba", "*": "attention", "-": "mlp"}
        found["layers_block_type"] = [kinds[letter] for letter in pattern]
        del found["hybrid_override_pattern"]
    return found


def _falcon_h1(random: Random) -> Values:
    heads = random.choice([24, 32, 48, 128])
    return _base(random, "FalconH1ForCausalLM", "falcon_h1") | dict(
        head_dim=random.choice([64, 128]),
        num_hidden_layers=random.choice([6, 24]),
        mamba_d_ssm=heads * 64,
        mamba_n_heads=heads,
        mamba_d_head=64,
        mamba_n_groups=random.choice([1, 4]),
        mamba_d_state=random.choice([128, 256]),
        mamba_d_conv=4,
    )


def _zamba2(random: Random) -> Values:
    hidden, kinds = random.choice([1280, 2560]), (["mamba"] * 5 + ["hybrid"]) * 3
    return _base(random, "Zamba2ForCausalLM", "zamba2") | dict(
        hidden_size=hidden,
        num_attention_heads=32,
        num_key_value_heads=32,
        num_hidden_layers=len(kinds),
        layers_block_type=kinds,
        hybrid_layer_ids=[layer for layer, kind in enumerate(kinds) if kind == "hybrid"],
        attention_hidden_size=2 * hidden,
        attention_head_dim=2 * hidden // 32,
        mamba_d_conv=4,
        mamba_d_state=64,
        mamba_expand=2,
        mamba_ngroups=1,
        n_mamba_heads=2 * hidden // 64,
        num_mem_blocks=random.choice([1, 2]),
    )


def _jamba(random: Random) -> Values:
    return _base(random, "JambaForCausalLM", "jamba") | dict(
        num_hidden_layers=random.choice([8, 32]),
        attn_layer_period=8,
        attn_layer_offset=random.choice([3, 4]),
        mamba_d_conv=4,
        mamba_d_state=16,
        mamba_expand=2,
        num_experts=4,
    )


def _lfm2(random: Random) -> Values:
    found = _base(random, "Lfm2ForCausalLM", "lfm2") | dict(num_hidden_layers=16, conv_L_cache=3)
    hidden, full = found["hidden_size"], (2, 5, 8, 10, 12, 14)
    found |= dict(conv_dim=hidden, conv_dim_out=hidden, block_dim=hidden, block_ff_dim=1024)
    if random.random() < 0.5:
        return found | dict(full_attn_idxs=list(full))
    kinds = ["full_attention" if layer in full else "conv" for layer in range(16)]
    return found | dict(layer_types=kinds)


def _windows(every: int, layers: int) -> list[str]:
    return [
        "sliding_attention" if (layer + 1) % every else "full_attention" for layer in range(layers)
    ]


def _gemma3(random: Random) -> Values:
    layers = random.choice([6, 18, 26, 34])
    found = _base(random, "Gemma3ForCausalLM", "gemma3_text") | dict(
        head_dim=256, num_hidden_layers=layers, sliding_window=random.choice([512, 1024])
    )
    return found | random.choice([{}, {"layer_types": _windows(6, layers)}])


def _gemma3n(random: Random) -> Values:
    return _base(random, "Gemma3nForCausalLM", "gemma3n_text") | dict(
        head_dim=256,
        num_hidden_layers=30,
        layer_types=_windows(5, 30),
        sliding_window=512,
        num_kv_shared_layers=random.choice([10, 15]),
        activation_sparsity_pattern=[0.0] * 30,
        hidden_size_per_layer_input=64,
        vocab_size_per_layer_input=1024,
    )


def _gemma4(random: Random) -> Values:
    return _base(random, "Gemma4ForCausalLM", "gemma4_text") | dict(
        head_dim=256,
        global_head_dim=512,
        num_hidden_layers=30,
        layer_types=_windows(6, 30),
        sliding_window=512,
        num_global_key_value_heads=random.choice([None, 1, 2]),
        attention_k_eq_v=random.choice([True, False]),
        num_kv_shared_layers=random.choice([0, 10]),
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=1024,
    )


def _gpt_oss(random: Random) -> Values:
    layers = random.choice([12, 24])
    found = _base(random, "GptOssForCausalLM", "gpt_oss") | _experts()
    return found | dict(
        num_key_value_heads=8, head_dim=64, num_hidden_layers=layers, sliding_window=128
    )


def _cohere2(random: Random) -> Values:
    found = _base(random, "Cohere2ForCausalLM", "cohere2")
    return found | dict(num_hidden_layers=8, sliding_window=1024, sliding_window_pattern=4)


def _deepseek(random: Random) -> Values:
    found = _base(random, "DeepseekV3ForCausalLM", "deepseek_v3")
    return found | dict(
        num_key_value_heads=found["num_attention_heads"],
        num_hidden_layers=3,
        first_k_dense_replace=3,
        kv_lora_rank=random.choice([256, 512]),
        q_lora_rank=256,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    )


def _llama(random: Random) -> Values:
    return _base(random, "LlamaForCausalLM", "llama") | dict(num_hidden_layers=4)


FAMILIES: dict[str, Callable[[Random], Values]] = {
    "qwen3-next": _qwen3_next,
    "qwen3.5": _qwen35,
    "qwen3.5-text": _qwen35_text,
    "granite4": _granite,
    "nemotron-h": _nemotron,
    "falcon-h1": _falcon_h1,
    "zamba2": _zamba2,
    "jamba": _jamba,
    "lfm2": _lfm2,
    "gemma3": _gemma3,
    "gemma3n": _gemma3n,
    "gemma4": _gemma4,
    "gpt-oss": _gpt_oss,
    "cohere2": _cohere2,
    "deepseek": _deepseek,
    "llama": _llama,
}
