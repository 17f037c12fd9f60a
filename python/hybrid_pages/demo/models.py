"""Tiny hybrid models with random weights, made on this machine.

Stock random weights forget within a few tokens, so a wrong recurrent state would change nothing
that a test can see. These models remember: slow decay, small embeddings and strong mixing layers,
so that a zeroed or swapped page or checkpoint moves the log-probabilities.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hybrid_pages import InvalidArgumentError

if TYPE_CHECKING:
    import torch

VOCAB = 512
# Token ids below this one are special (padding, begin, end): prompts avoid them.
FIRST_TOKEN = 3

# Makes a model, and the fields of its config.json that transformers does not write.
Maker = Callable[[], "tuple[torch.nn.Module, dict[str, object]]"]

COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=128,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=8192,
    tie_word_embeddings=False,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
    dtype="bfloat16",
)
_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}


def _delta_net_sizes(heads: int) -> dict[str, int]:
    return dict(
        linear_conv_kernel_dim=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_num_key_heads=heads,
        linear_num_value_heads=heads,
    )


# Standard deviations of the weights that decide what a test can see.
_STRONG_MIXING = {
    "embed_tokens.weight": 0.3,
    "embeddings.weight": 0.3,
    "lm_head.weight": 0.3,
    "linear_attn.out_proj.weight": 0.3,
    "mamba.out_proj.weight": 0.3,
    "mixer.o_proj.weight": 0.3,
    "mixer.out_proj.weight": 0.3,
    "self_attn.o_proj.weight": 0.3,
    "self_attn.out_proj.weight": 0.3,
    "conv.out_proj.weight": 0.3,
    # Past taps are as heavy as the present one, so that a short state matters for the next tokens.
    "conv.conv.weight": 1.0,
}


def remember(model: torch.nn.Module, more: Mapping[str, float] | None = None) -> None:
    """Gives a model strong mixing, and recurrent states that last for hundreds of tokens.

    ``more`` names further weights and their standard deviations.
    """
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):
            parameter.uniform_(0.0005, 0.004).log_()
        elif name.endswith(("dt_bias", "dt_proj.bias")):
            parameter.zero_()
        else:
            for suffix, deviation in {**_STRONG_MIXING, **(more or {})}.items():
                if name.endswith(suffix):
                    parameter.normal_(0, deviation)


def _qwen35(heads: int, kv_heads: int = 2) -> tuple[torch.nn.Module, dict[str, object]]:
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        **(COMMON | {"num_key_value_heads": kv_heads}),
        **_delta_net_sizes(heads),
        intermediate_size=256,
        num_hidden_layers=8,
        full_attention_interval=4,
        head_dim=64,
        initializer_range=0.1,
        rope_parameters=_ROPE,
    )
    model = Qwen3_5ForCausalLM(config)
    remember(model)
    return model, {"architectures": ["Qwen3_5ForCausalLM"], "mamba_ssm_dtype": "float32"}


def _qwen3_next() -> tuple[torch.nn.Module, dict[str, object]]:
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    config = Qwen3NextConfig(
        **COMMON,
        **_delta_net_sizes(1),
        intermediate_size=256,
        num_hidden_layers=4,
        head_dim=64,
        initializer_range=0.1,
        rope_parameters=_ROPE,
        # Every expert takes part: a routing that flips on a rounding error would drown the rest.
        num_experts=4,
        num_experts_per_tok=4,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
    )
    model = Qwen3NextForCausalLM(config)
    remember(model)
    return model, {"architectures": ["Qwen3NextForCausalLM"], "mamba_ssm_dtype": "float32"}


def _lfm2() -> tuple[torch.nn.Module, dict[str, object]]:
    from transformers import Lfm2Config, Lfm2ForCausalLM

    config = Lfm2Config(
        **COMMON,
        intermediate_size=256,
        block_auto_adjust_ff_dim=False,
        num_hidden_layers=8,
        full_attn_idxs=[3, 7],
        conv_L_cache=3,
        initializer_range=0.1,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    model = Lfm2ForCausalLM(config)
    remember(model)
    width = config.hidden_size
    return model, {"architectures": ["Lfm2ForCausalLM"], "conv_dim": width, "block_dim": width}


def _gemma3() -> tuple[torch.nn.Module, dict[str, object]]:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        **COMMON,
        intermediate_size=256,
        num_hidden_layers=4,
        head_dim=64,
        initializer_range=0.1,
        sliding_window=100,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )
    model = Gemma3ForCausalLM(config)
    remember(model)
    return model, {"architectures": ["Gemma3ForCausalLM"]}


MODELS: dict[str, Maker] = {
    "qwen3.5": lambda: _qwen35(heads=1),
    # Two heads of each kind: can be split over two tensor-parallel ranks.
    "qwen3.5-tp2": lambda: _qwen35(heads=2),
    # A state as large as the pages of 384 tokens: blocks of another size than vLLM's default.
    "qwen3.5-n384": lambda: _qwen35(heads=4, kv_heads=1),
    "qwen3-next": _qwen3_next,
    "lfm2": _lfm2,
    # No recurrent layers: sliding windows beside full attention.
    "gemma3": _gemma3,
}


def default_cache_dir() -> Path:
    """The user's cache folder, where models are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "hybrid-pages"


def ensure(
    name: str,
    cache_dir: Path | None = None,
    models: Mapping[str, Maker] = MODELS,
    also: Callable[[Path], None] | None = None,
) -> Path:
    """The folder of a tiny model, made now unless this version of it is there already.

    ``also`` writes more files into the folder. A change of the file that defines the model's maker
    makes a new version, so ``also`` belongs there, too.
    """
    if name not in models:
        raise InvalidArgumentError(
            f"no tiny model is called {name!r}; expected one of {sorted(models)}"
        )
    sources = {__file__, inspect.getfile(models[name])}
    text = b"".join(Path(source).read_bytes() for source in sorted(sources))
    version = hashlib.sha256(text).hexdigest()[:12]
    folder = (cache_dir or default_cache_dir()) / "models" / f"{name}-{version}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _write(models[name], folder, also)
    return folder


def _write(make: Maker, folder: Path, also: Callable[[Path], None] | None) -> None:
    import torch

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model, extra = make()
        model = model.to(torch.bfloat16)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        model.save_pretrained(draft)
        config_file = draft / "config.json"
        config = json.loads(config_file.read_text()) | extra
        config_file.write_text(json.dumps(config, indent=1))
        if also is not None:
            also(draft)
        try:
            draft.rename(folder)
        except OSError:
            # Another process has made the same model meanwhile, which is as good.
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
