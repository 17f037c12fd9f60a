"""Tiny models of further families, most of which vLLM runs on a CPU only with `gpu_path`.

The sizes make a recurrent state fit into an attention page of 32 tokens, as it does in the real
models with their own sizes, so that blocks stay small and prompts of several blocks cheap.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers

from hybrid_pages.demo import models as demo

_COMMON = demo.COMMON | dict(
    num_attention_heads=2, intermediate_size=128, num_hidden_layers=4, initializer_range=0.1
)
_MAMBA2 = dict(
    mamba_n_heads=2,
    mamba_d_head=64,
    mamba_d_state=16,
    mamba_n_groups=1,
    mamba_d_conv=4,
    mamba_expand=1,
    mamba_chunk_size=32,
)
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_MIXING = {"conv1d.weight": 0.5}
# Where the mixing above leaves attention barely heard beside the recurrent states.
_LOUD_ATTENTION = {"self_attn.o_proj.weight": 2.0}


def _made(model: torch.nn.Module, **more: float) -> tuple[torch.nn.Module, dict[str, object]]:
    demo.remember(model, _MIXING | more)
    return model, {"architectures": [type(model).__name__]}


def _granite4() -> Any:
    config = transformers.GraniteMoeHybridConfig(
        **_COMMON,
        **_MAMBA2,
        shared_intermediate_size=128,
        layer_types=["mamba", "mamba", "attention", "mamba"],
        num_local_experts=0,
        num_experts_per_tok=0,
        attention_multiplier=0.125,
        position_embedding_type="nope",
        rope_parameters=_ROPE,
    )
    return _made(transformers.GraniteMoeHybridForCausalLM(config))


def _nemotron_h() -> Any:
    config = transformers.NemotronHConfig(
        **{key: value for key, value in _COMMON.items() if key != "num_hidden_layers"},
        layers_block_type=["mamba", "mlp", "attention", "mamba"],
        head_dim=64,
        ssm_state_size=16,
        mamba_num_heads=2,
        mamba_head_dim=64,
        n_groups=1,
        chunk_size=32,
    )
    return _made(transformers.NemotronHForCausalLM(config))


def _falcon_h1() -> Any:
    config = transformers.FalconH1Config(
        **_COMMON | {"num_hidden_layers": 2}, **_MAMBA2, mamba_d_ssm=128, rope_parameters=_ROPE
    )
    return _made(transformers.FalconH1ForCausalLM(config), **_LOUD_ATTENTION)


def _zamba2() -> Any:
    config = transformers.Zamba2Config(
        **_COMMON | {"num_attention_heads": 4, "num_key_value_heads": 4},
        layers_block_type=["mamba", "hybrid", "mamba", "hybrid"],
        mamba_d_state=16,
        mamba_expand=1,
        mamba_ngroups=1,
        n_mamba_heads=2,
        chunk_size=32,
        num_mem_blocks=1,
        use_mem_rope=True,
        rope_parameters=_ROPE,
        adapter_rank=16,
    )
    return _made(transformers.Zamba2ForCausalLM(config))


def _jamba() -> Any:
    config = transformers.JambaConfig(
        **_COMMON,
        attn_layer_period=4,
        attn_layer_offset=2,
        expert_layer_period=2,
        expert_layer_offset=1,
        num_experts=1,
        num_experts_per_tok=1,
        mamba_d_state=16,
        # Not 4: for CPUs with bfloat16 vLLM packs such weights in a way its Mamba-1 cannot read.
        mamba_d_conv=3,
        mamba_expand=2,
        use_mamba_kernels=False,
    )
    return _made(transformers.JambaForCausalLM(config), **_LOUD_ATTENTION)


def _qwen35_mtp() -> Any:
    """Qwen3.5 with a head that guesses the token after next, right more often than not.

    The head passes on the last token's embedding, which often decides the next one; what it adds
    from its own attention and from the model's last state makes its pages matter to its guesses.
    """
    model, extra = demo.MODELS["qwen3.5"]()
    config = model.config
    last = config.layer_types.index("full_attention")
    layer = copy.deepcopy(model.model.layers[last])
    layer.self_attn.o_proj.weight.normal_(0, 0.1)
    layer.mlp.down_proj.weight.zero_()
    head = torch.nn.Module()
    head.layers = torch.nn.ModuleList([layer])
    head.fc = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
    head.fc.weight.copy_(torch.cat([torch.eye(config.hidden_size)] * 2, 1))
    head.fc.weight[:, config.hidden_size :] *= 0.1
    head.norm = copy.deepcopy(model.model.norm)
    head.pre_fc_norm_hidden = copy.deepcopy(model.model.norm)
    head.pre_fc_norm_embedding = copy.deepcopy(model.model.norm)
    model.mtp = head
    model.model.embed_tokens.weight.mul_(60)
    return model, extra | {"mtp_num_hidden_layers": 1}


def _llama() -> Any:
    config = transformers.LlamaConfig(**_COMMON, rope_parameters=_ROPE)
    return _made(transformers.LlamaForCausalLM(config))


def _gpt_oss() -> Any:
    config = transformers.GptOssConfig(
        **demo.COMMON,
        intermediate_size=128,
        num_hidden_layers=4,
        head_dim=64,
        # Every expert takes part: a routing that flips on a rounding error would drown the rest.
        num_local_experts=4,
        num_experts_per_tok=4,
        sliding_window=128,
        initializer_range=0.1,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 2.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
        },
    )
    return _made(transformers.GptOssForCausalLM(config))


def _lfm2_moe() -> Any:
    config = transformers.Lfm2MoeConfig(
        **_COMMON,
        layer_types=["conv", "full_attention"] * 2,
        conv_L_cache=3,
        num_dense_layers=1,
        num_experts=4,
        num_experts_per_tok=4,
        moe_intermediate_size=64,
        rope_parameters=_ROPE,
    )
    return _made(transformers.Lfm2MoeForCausalLM(config))


def _deepseek() -> Any:
    config = transformers.DeepseekV2Config(
        **_COMMON | {"num_key_value_heads": 2, "num_hidden_layers": 2},
        # The only size that vLLM's CPU kernel has.
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        q_lora_rank=None,
        qk_nope_head_dim=64,
        v_head_dim=64,
        first_k_dense_replace=2,
        n_routed_experts=4,
        num_experts_per_tok=4,
        moe_intermediate_size=64,
        rope_parameters=_ROPE,
    )
    return _made(transformers.DeepseekV2ForCausalLM(config))


def _kimi_linear() -> Any:
    config = transformers.KimiLinearConfig(
        **_COMMON | {"num_key_value_heads": 2},
        layer_types=["linear_attention"] * 3 + ["full_attention"],
        mlp_layer_types=["sparse"] * 4,
        linear_head_dim=64,
        linear_num_heads=2,
        # The only size that vLLM's CPU kernel has.
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=64,
        v_head_dim=64,
        moe_intermediate_size=64,
        num_local_experts=4,
        num_experts_per_tok=4,
    )
    model, extra = _made(transformers.KimiLinearForCausalLM(config))
    sizes = {
        "head_dim": 64,
        "num_heads": 2,
        "short_conv_kernel_size": 4,
        "kda_layers": [1, 2, 3],
        "full_attn_layers": [4],
    }
    own = {"mla_use_nope": True, "linear_attn_config": sizes}
    return model, extra | own


def _gemma4(full_head: int) -> Any:
    config = transformers.Gemma4TextConfig(
        **_COMMON | {"intermediate_size": 256},
        head_dim=64,
        global_head_dim=full_head,
        sliding_window=128,
        layer_types=["sliding_attention", "full_attention"] * 2,
        hidden_size_per_layer_input=0,
        num_kv_shared_layers=0,
        vocab_size_per_layer_input=demo.VOCAB,
    )
    return _made(transformers.Gemma4ForCausalLM(config))


MODELS: dict[str, demo.Maker] = {
    **demo.MODELS,
    "qwen3.5-mtp": _qwen35_mtp,
    "granite4": _granite4,
    "nemotron-h": _nemotron_h,
    # Attention and recurrence in one layer.
    "falcon-h1": _falcon_h1,
    "zamba2": _zamba2,
    # Attention alone; windows and learnt sinks beside it.
    "llama": _llama,
    "gpt-oss": _gpt_oss,
    "lfm2-moe": _lfm2_moe,
    # Latent attention.
    "deepseek": _deepseek,
    # Kimi Delta Attention beside latent attention.
    "kimi-linear": _kimi_linear,
    # Windows of blocks half as long as those of full attention, and twice as long.
    "gemma4": lambda: _gemma4(full_head=32),
    "gemma4-e4b": lambda: _gemma4(full_head=128),
    # Mamba-1.
    "jamba": _jamba,
}
