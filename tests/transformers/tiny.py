"""Tiny hybrid models of Hugging Face whose states last, so that a wrong state shows."""

from collections.abc import Callable

import torch
import transformers

from hybrid_pages.demo.models import FIRST_TOKEN, remember

VOCAB = 256

_COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=4096,
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
    initializer_range=0.1,
)
_DELTA_NET = dict(
    head_dim=32,
    linear_conv_kernel_dim=4,
    linear_key_head_dim=32,
    linear_value_head_dim=32,
    linear_num_key_heads=1,
    linear_num_value_heads=2,
)
_MAMBA2 = dict(
    mamba_n_heads=4,
    mamba_d_head=32,
    mamba_n_groups=1,
    mamba_d_state=16,
    mamba_d_conv=4,
    mamba_expand=2,
    mamba_chunk_size=16,
)
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def _qwen35() -> torch.nn.Module:
    config = transformers.Qwen3_5TextConfig(
        **_COMMON,
        **_DELTA_NET,
        num_hidden_layers=4,
        rope_parameters=_ROPE | {"partial_rotary_factor": 0.25},
    )
    return transformers.Qwen3_5ForCausalLM(config)


def _qwen3_next() -> torch.nn.Module:
    config = transformers.Qwen3NextConfig(
        **_COMMON,
        **_DELTA_NET,
        num_hidden_layers=4,
        rope_parameters=_ROPE | {"partial_rotary_factor": 0.25},
        # Every expert takes part: a routing that flips on a rounding error would drown the rest.
        num_experts=4,
        num_experts_per_tok=4,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
    )
    return transformers.Qwen3NextForCausalLM(config)


def _lfm2() -> torch.nn.Module:
    config = transformers.Lfm2Config(
        **_COMMON,
        block_auto_adjust_ff_dim=False,
        num_hidden_layers=4,
        full_attn_idxs=[1, 3],
        conv_L_cache=4,
        rope_parameters=_ROPE,
    )
    return transformers.Lfm2ForCausalLM(config)


def _jamba() -> torch.nn.Module:
    config = transformers.JambaConfig(
        **_COMMON,
        num_hidden_layers=4,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=2,
        num_experts_per_tok=2,
        expert_layer_period=2,
        expert_layer_offset=1,
        mamba_d_state=16,
    )
    return transformers.JambaForCausalLM(config)


def _bamba() -> torch.nn.Module:
    config = transformers.BambaConfig(
        **_COMMON, **_MAMBA2, num_hidden_layers=4, attn_layer_indices=[1, 3], rope_parameters=_ROPE
    )
    return transformers.BambaForCausalLM(config)


def _granite4() -> torch.nn.Module:
    config = transformers.GraniteMoeHybridConfig(
        **_COMMON,
        **_MAMBA2,
        num_hidden_layers=4,
        layer_types=["linear_attention", "full_attention"] * 2,
        num_local_experts=2,
        num_experts_per_tok=2,
        shared_intermediate_size=32,
        rope_parameters=_ROPE,
        position_embedding_type="rope",
    )
    return transformers.GraniteMoeHybridForCausalLM(config)


def _falcon_h1() -> torch.nn.Module:
    config = transformers.FalconH1Config(
        **_COMMON,
        num_hidden_layers=2,
        head_dim=16,
        mamba_d_ssm=128,
        mamba_n_heads=4,
        mamba_d_head=32,
        mamba_n_groups=1,
        mamba_d_state=16,
        mamba_d_conv=4,
        mamba_chunk_size=16,
        rope_parameters=_ROPE,
    )
    return transformers.FalconH1ForCausalLM(config)


def _gemma3() -> torch.nn.Module:
    config = transformers.Gemma3TextConfig(
        **_COMMON,
        num_hidden_layers=4,
        head_dim=32,
        sliding_window=40,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )
    return transformers.Gemma3ForCausalLM(config)


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "qwen3.5": _qwen35,
    "qwen3-next": _qwen3_next,
    "lfm2": _lfm2,
    "jamba": _jamba,
    "bamba": _bamba,
    "granite4": _granite4,
    # Attention and recurrence in one layer.
    "falcon-h1": _falcon_h1,
    # Sliding windows beside full attention, nothing recurrent.
    "gemma3": _gemma3,
}


def _nemotron_h() -> torch.nn.Module:
    config = transformers.NemotronHConfig(
        **_COMMON,
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


_GEMMA = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=96,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    num_hidden_layers=6,
    layer_types=["sliding_attention", "full_attention"] * 3,
    num_kv_shared_layers=2,
    sliding_window=40,
    vocab_size_per_layer_input=VOCAB,
    hidden_size_per_layer_input=16,
    initializer_range=0.1,
)


def _gemma3n() -> torch.nn.Module:
    config = transformers.Gemma3nTextConfig(
        **_GEMMA, laurel_rank=8, altup_num_inputs=2, activation_sparsity_pattern=[0.0] * 6
    )
    return transformers.Gemma3nForCausalLM(config)


def _gemma4() -> torch.nn.Module:
    return transformers.Gemma4ForCausalLM(
        transformers.Gemma4TextConfig(**_GEMMA, global_head_dim=16)
    )


def _minimax() -> torch.nn.Module:
    config = transformers.MiniMaxConfig(
        **_COMMON,
        num_hidden_layers=4,
        head_dim=16,
        num_experts_per_tok=2,
        num_local_experts=2,
        layer_types=["linear_attention", "full_attention"] * 2,
        block_size=16,
        rope_parameters=_ROPE,
    )
    return transformers.MiniMaxForCausalLM(config)


def _mamba() -> torch.nn.Module:
    config = transformers.MambaConfig(
        vocab_size=VOCAB, hidden_size=64, state_size=8, num_hidden_layers=2, initializer_range=0.1
    )
    return transformers.MambaForCausalLM(config)


def _zamba() -> torch.nn.Module:
    config = transformers.ZambaConfig(
        **_COMMON | {"num_key_value_heads": 4},
        num_hidden_layers=4,
        layers_block_type=["mamba", "hybrid"] * 2,
        attention_head_dim=32,
        n_mamba_heads=2,
        mamba_d_state=16,
        use_mamba_kernels=False,
    )
    return transformers.ZambaForCausalLM(config)


# Some of their layers keep no cache: those of experts alone, and those that use another's keys.
PLACES: dict[str, Callable[[], torch.nn.Module]] = {
    "nemotron-h": _nemotron_h,
    "gemma3n": _gemma3n,
    "gemma4": _gemma4,
}
# Only tests/batch runs them.
BATCHED: dict[str, Callable[[], torch.nn.Module]] = {"mamba": _mamba, "zamba": _zamba}
# It has a cache of its own.
OWN_CACHE: dict[str, Callable[[], torch.nn.Module]] = {"minimax": _minimax}


def make(name: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """A tiny model in evaluation mode; the same for the same arguments."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = (MODELS | PLACES | BATCHED | OWN_CACHE)[name]()
        remember(model, {"conv1d.weight": 0.5})
    # Texts of a fixed length, and no id that means padding.
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = None
    return model.to(dtype).eval()


def tokens(count: int, seed: int) -> torch.Tensor:
    """Random ids, ``[1, count]``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(FIRST_TOKEN, VOCAB, (1, count), generator=generator)
