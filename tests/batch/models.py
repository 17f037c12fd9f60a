"""Tiny hybrid models of Hugging Face that remember, in float32, without a download."""

import functools

import torch
import transformers

from hybrid_pages.demo import models as demo

SMALL = dict(
    vocab_size=demo.VOCAB,
    hidden_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_hidden_layers=4,
    intermediate_size=128,
    max_position_embeddings=2048,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
    initializer_range=0.1,
)


def falcon_h1():
    """Attention and a state-space mixer in every layer."""
    config = transformers.FalconH1Config(
        **SMALL, head_dim=16, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=16
    )
    return transformers.FalconH1ForCausalLM(config)


def bamba():
    config = transformers.BambaConfig(
        **SMALL, attn_layer_indices=[1, 3], mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16
    )
    return transformers.BambaForCausalLM(config)


def jamba():
    config = transformers.JambaConfig(
        **SMALL,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=1,
        num_experts_per_tok=1,
        mamba_d_state=16,
        mamba_dt_rank=8,
        use_mamba_kernels=False,
    )
    return transformers.JambaForCausalLM(config)


def nemotron_h():
    """Some layers are of experts alone and keep no cache."""
    config = transformers.NemotronHConfig(
        **{key: value for key, value in SMALL.items() if key != "num_hidden_layers"},
        head_dim=16,
        layers_block_type=["linear_attention", "mlp", "full_attention", "moe", "linear_attention"],
        ssm_state_size=16,
        mamba_num_heads=4,
        mamba_head_dim=32,
        n_groups=1,
        conv_kernel=4,
        expand=2,
        chunk_size=16,
        n_routed_experts=2,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        moe_shared_expert_intermediate_size=32,
    )
    return transformers.NemotronHForCausalLM(config)


def gemma4():
    """The last layers use the keys of others and keep none."""
    config = transformers.Gemma4TextConfig(
        **SMALL | dict(num_hidden_layers=6),
        head_dim=16,
        global_head_dim=16,
        layer_types=["sliding_attention", "full_attention"] * 3,
        num_kv_shared_layers=2,
        sliding_window=24,
        vocab_size_per_layer_input=demo.VOCAB,
        hidden_size_per_layer_input=16,
    )
    return transformers.Gemma4ForCausalLM(config)


MAKERS = {
    "qwen3.5": lambda: demo.MODELS["qwen3.5"]()[0],
    "lfm2": lambda: demo.MODELS["lfm2"]()[0],
    "gemma3": lambda: demo.MODELS["gemma3"]()[0],
    "falcon-h1": falcon_h1,
    "bamba": bamba,
    "jamba": jamba,
    "nemotron-h": nemotron_h,
    "gemma4": gemma4,
}


@functools.cache
def model(name):
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        made = MAKERS[name]().to(torch.float32).eval()
        for parameter, value in made.named_parameters():
            if parameter.endswith("A_log") and name in ("falcon-h1", "bamba", "jamba"):
                value.uniform_(0.0005, 0.004).log_()
    return made
