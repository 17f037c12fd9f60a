"""Tiny models of the Mamba families, which vLLM runs on a CPU only with `gpu_path`.

The sizes make a recurrent state fit into an attention page of 32 tokens, as it does in the real
models with their own sizes, so that blocks stay small and prompts of several blocks cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import transformers

from hybrid_pages.demo import models as demo

if TYPE_CHECKING:
    import torch

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
_MIXING = {
    "embeddings.weight": 0.3,
    "conv1d.weight": 0.5,
    "mamba.out_proj.weight": 0.3,
    "mixer.out_proj.weight": 0.3,
    "mixer.o_proj.weight": 0.3,
    # Mamba-1's step size: not large enough to forget within a few tokens.
    "dt_proj.bias": 0.0,
}
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


MODELS: dict[str, demo.Maker] = {
    **demo.MODELS,
    "granite4": _granite4,
    "nemotron-h": _nemotron_h,
    # Attention and recurrence in one layer.
    "falcon-h1": _falcon_h1,
    "zamba2": _zamba2,
    # Attention alone; windows and learnt sinks beside it.
    "llama": _llama,
    "gpt-oss": _gpt_oss,
    # Mamba-1.
    "jamba": _jamba,
}
