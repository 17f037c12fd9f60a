"""Tiny hybrid models of mlx-lm with random weights. Their states last: a wrong one shows."""

import importlib
import importlib.util
import json

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map_with_path
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

VOCAB = 256
WINDOW = 24

_COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    rms_norm_eps=1e-5,
    max_position_embeddings=8192,
    rope_theta=10000.0,
    tie_word_embeddings=False,
)
_DELTA_NET = dict(
    head_dim=32,
    linear_num_value_heads=4,
    linear_num_key_heads=2,
    linear_key_head_dim=32,
    linear_value_head_dim=32,
    linear_conv_kernel_dim=4,
)
_MOE = dict(
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    norm_topk_prob=True,
)
_MAMBA = dict(conv_kernel=4, use_bias=False, use_conv_bias=True, state_size=16)
_MIXED = ["mamba", "attention", "mamba", "attention"]

_LFM2 = dict(
    norm_eps=1e-5,
    conv_bias=False,
    conv_L_cache=3,
    block_dim=64,
    block_ff_dim=96,
    block_multiple_of=8,
    block_ffn_dim_multiplier=1.0,
    block_auto_adjust_ff_dim=False,
    layer_types=["conv", "full_attention", "conv", "full_attention"],
)

CONFIGS = {
    "qwen3_next": dict(
        **_DELTA_NET,
        **_MOE,
        decoder_sparse_step=1,
        shared_expert_intermediate_size=32,
        mlp_only_layers=[],
        partial_rotary_factor=0.5,
        full_attention_interval=2,
    ),
    "qwen3_5": dict(
        text_config=dict(model_type="qwen3_5_text", **_COMMON, **_DELTA_NET)
        | dict(
            full_attention_interval=2,
            rope_parameters=dict(type="default", rope_theta=10000, partial_rotary_factor=0.5),
        ),
    ),
    "qwen3_5_moe": dict(
        text_config=dict(model_type="qwen3_5_moe_text", **_COMMON, **_DELTA_NET, **_MOE)
        | dict(
            full_attention_interval=2,
            shared_expert_intermediate_size=32,
            rope_parameters=dict(type="default", rope_theta=10000, partial_rotary_factor=0.5),
        ),
    ),
    "lfm2": _LFM2,
    "lfm2_moe": dict(
        **_MOE,
        use_expert_bias=False,
        num_dense_layers=1,
        norm_eps=1e-5,
        conv_bias=False,
        conv_L_cache=3,
        layer_types=["conv", "full_attention", "conv", "full_attention"],
    ),
    "jamba": dict(
        attn_layer_offset=1,
        attn_layer_period=2,
        expert_layer_offset=1,
        expert_layer_period=2,
        mamba_d_conv=4,
        mamba_d_state=16,
        mamba_expand=2,
        num_experts=2,
        num_experts_per_tok=1,
    ),
    "granitemoehybrid": dict(
        attention_bias=False,
        embedding_multiplier=1.0,
        attention_multiplier=0.25,
        logits_scaling=1.0,
        residual_multiplier=1.0,
        layer_types=_MIXED,
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_intermediate_size=32,
        mamba_n_heads=4,
        mamba_d_head=32,
        mamba_proj_bias=False,
        mamba_d_state=16,
        mamba_d_conv=4,
        mamba_n_groups=1,
        mamba_conv_bias=True,
    ),
    "nemotron_h": dict(
        attention_bias=False,
        mamba_num_heads=4,
        mamba_head_dim=32,
        mamba_proj_bias=False,
        ssm_state_size=16,
        conv_kernel=4,
        n_groups=1,
        mlp_bias=False,
        layer_norm_epsilon=1e-5,
        use_bias=False,
        use_conv_bias=True,
        hybrid_override_pattern=["M", "*", "-", "M", "*"],
    ),
    "falcon_h1": dict(
        head_dim=16,
        mamba_d_head=32,
        mamba_d_ssm=128,
        mamba_d_state=16,
        mamba_n_heads=4,
        mamba_chunk_size=16,
        lm_head_multiplier=1.0,
        key_multiplier=1.0,
        ssm_out_multiplier=1.0,
        ssm_multipliers=[1.0] * 5,
    ),
    "kimi_linear": dict(
        head_dim=16,
        linear_attn_config=dict(
            kda_layers=[1, 3],
            full_attn_layers=[2, 4],
            head_dim=16,
            num_heads=4,
            short_conv_kernel_size=4,
        ),
        model_max_length=8192,
        num_experts=2,
        num_experts_per_token=1,
        moe_intermediate_size=32,
        kv_lora_rank=32,
        qk_nope_head_dim=16,
        qk_rope_head_dim=16,
        v_head_dim=16,
        first_k_dense_replace=1,
    ),
    "plamo2": dict(
        hidden_size_per_head=16,
        mamba_d_state=16,
        mamba_num_heads=4,
        mamba_step=2,
        attention_window_size=8192,
    ),
    "mamba2": dict(
        _MAMBA,
        num_heads=4,
        head_dim=32,
        n_groups=1,
        layer_norm_epsilon=1e-5,
        time_step_limit=(0.0, float("inf")),
        time_step_rank="auto",
        intermediate_size=128,
    ),
    "mamba": dict(_MAMBA, time_step_rank=4, intermediate_size=128),
    "olmo_hybrid": dict(
        _DELTA_NET,
        linear_num_key_heads=4,
        linear_allow_neg_eigval=False,
        attention_bias=False,
        layer_types=["linear_attention", "full_attention"] * 2,
    ),
    "recurrent_gemma": dict(
        attention_bias=False,
        conv1d_width=4,
        logits_soft_cap=30.0,
        num_key_value_heads=1,
        attention_window_size=WINDOW,
        block_types=["recurrent", "attention"],
    ),
    "baichuan_m1": dict(sliding_window=WINDOW, sliding_window_layers=[1, 3], conv_window=2),
    "bailing_moe_linear": dict(
        **_MOE,
        num_shared_experts=1,
        first_k_dense_replace=1,
        layer_group_size=2,
        group_norm_size=4,
        n_group=1,
        topk_group=1,
        num_key_value_heads=4,
    ),
    "bailing_hybrid": dict(
        **_MOE,
        num_shared_experts=1,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        layer_group_size=2,
        group_norm_size=4,
        routed_scaling_factor=1.0,
        head_dim=16,
        kv_lora_rank=32,
        qk_rope_head_dim=16,
        qk_nope_head_dim=16,
        v_head_dim=16,
        num_key_value_heads=4,
    ),
    "bailing_moe_v3": dict(
        **{k: v for k, v in _MOE.items() if k != "norm_topk_prob"},
        moe_shared_expert_intermediate_size=32,
        n_group=1,
        topk_group=1,
        layer_group_size=2,
        head_dim=16,
        q_lora_rank=None,
        kv_lora_rank=32,
        qk_nope_head_dim=16,
        qk_rope_head_dim=16,
        v_head_dim=16,
    ),
    "rwkv7": dict(
        norm_eps=1e-5,
        head_dim=16,
        a_low_rank_dim=16,
        v_low_rank_dim=16,
        gate_low_rank_dim=16,
        decay_low_rank_dim=16,
    ),
    "gear": dict(
        head_dim=16,
        layer_types=["conv_mixer", "sliding_attention", "conv_mixer", "full_attention"],
        sliding_window=WINDOW,
    ),
    "kimi_k3": dict(
        text_config=dict(
            **_COMMON,
            linear_attn_config=dict(
                kda_layers=[1, 3], head_dim=32, num_heads=4, short_conv_kernel_size=4
            ),
            attn_res_block_size=2,
            kv_lora_rank=32,
            qk_nope_head_dim=16,
            qk_rope_head_dim=16,
            v_head_dim=16,
            num_experts=4,
            num_experts_per_token=2,
            moe_intermediate_size=32,
            first_k_dense_replace=1,
        ),
    ),
    "longcat_flash_ngram": dict(
        ffn_hidden_size=96,
        moe_topk=2,
        expert_ffn_hidden_size=32,
        n_routed_experts=4,
        zero_expert_num=1,
        num_layers=2,
        kv_lora_rank=32,
        q_lora_rank=32,
        qk_rope_head_dim=16,
        qk_nope_head_dim=16,
        v_head_dim=16,
        routed_scaling_factor=1.0,
        mla_scale_q_lora=True,
        mla_scale_kv_lora=True,
        ngram_vocab_size_ratio=2,
        emb_neighbor_num=3,
        emb_split_num=2,
    ),
    # A wrapper of models that take images elsewhere.
    "lfm2-vl": dict(text_config=_COMMON | _LFM2 | dict(model_type="lfm2")),
    "prism_hadamard_qwen35": dict(
        schema_version=1,
        tensor_namespace="mlx-lm-text",
        quantization=dict(bits=2, group_size=128, mode="affine"),
        modules=[
            dict(path="model.layers.0.mlp.up_proj", embedding=False, dtype="float16", block=0)
        ],
        text_config=dict(model_type="qwen3_5_text", **_COMMON | dict(hidden_size=128), **_DELTA_NET)
        | dict(
            full_attention_interval=2,
            rope_parameters=dict(type="default", rope_theta=10000, partial_rotary_factor=0.5),
        ),
    ),
    # Without recurrent layers.
    "llama": dict(head_dim=16),
    "plamo3": dict(head_dim=16, window_size=WINDOW, sliding_window_pattern=2),
    # Lets mlx-lm make its caches.
    "qwen3": dict(head_dim=16),
}


def made(*names):
    """Those that this mlx-lm has: older versions have fewer."""
    return [name for name in names if importlib.util.find_spec(f"mlx_lm.models.{name}")]


HYBRIDS = made(*(name for name in CONFIGS if name not in ("llama", "plamo3", "qwen3")))
WINDOWS = made("recurrent_gemma", "baichuan_m1", "gear")


def config(name):
    """What a config.json says."""
    return _COMMON | CONFIGS[name] | dict(model_type=name)


def make(name, *, seed=0, dtype=mx.float32, **changes):
    """A model in evaluation mode."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    mx.random.seed(seed)
    model = module.Model(module.ModelArgs.from_dict(config(name) | changes))
    model.update(tree_map_with_path(_lasting, model.parameters()))
    model.set_dtype(dtype)
    model.eval()
    mx.eval(model.parameters())
    return model


def _lasting(path, array):
    """Slow decay, and mixing layers that are strong beside the embeddings."""
    if path.endswith("A_log"):
        return mx.full(array.shape, -3.0)
    if path.endswith(("dt_bias", "recurrent_param")):
        return mx.zeros(array.shape)
    if path.endswith("scales"):
        return mx.ones(array.shape, array.dtype) * 0.1
    if array.dtype == mx.uint32:
        return mx.random.randint(0, 1 << 31, array.shape).astype(mx.uint32)
    if not path.endswith("bias") and array.ndim > 1:
        return mx.random.normal(array.shape) * (0.3 if "embed" in path else 0.15)
    return array


def tokens(count, seed=0):
    """Ids of a prompt, without special ones."""
    mx.random.seed(1000 + seed)
    return mx.random.randint(10, VOCAB, (count,)).tolist()


TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m.role + '|> ' + (m.content or '') + ' <|end|> ' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|> ' }}{% endif %}"
)
# Reasoning begins in the prompt, and earlier turns come without theirs.
THINKING = (
    "{% for m in messages %}{{ '<|' + m.role + '|> ' + (m.content or '').split('</think>')[-1] }}"
    "{{ ' <|end|> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|> <think> w10 ' }}{% endif %}"
)


def tokenizer(template=TEMPLATE):
    """A tokenizer whose words are ``w10`` to ``w255``: texts give the ids that they came from."""
    special = ["<unk>", "<bos>", "<eos>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
    special += ["<think>", "</think>", "<|tool|>"]
    words = special + [f"w{index}" for index in range(len(special), VOCAB)]
    base = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, "<unk>"))
    base.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    found = PreTrainedTokenizerFast(
        tokenizer_object=base, unk_token="<unk>", bos_token="<bos>", eos_token="<eos>"
    )
    found.chat_template = template
    return found


def text(ids):
    """The words of ids."""
    return " ".join(f"w{token}" for token in ids)


def save(name, folder, template=TEMPLATE, *, seed=0, **changes):
    """A model's folder, as ``mlx_lm.load`` takes it."""
    folder.mkdir(parents=True, exist_ok=True)
    model = make(name, seed=seed, **changes)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())))
    said = config(name) | changes
    (folder / "config.json").write_text(json.dumps(said, default=str).replace("Infinity", "1e30"))
    tokenizer(template).save_pretrained(folder)
    return folder
