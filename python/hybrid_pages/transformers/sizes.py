"""The size of a cache: measured on a live one, or predicted from a config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from hybrid_pages import Geometry
from hybrid_pages.transformers import layers
from hybrid_pages.transformers.layout import KEYS, VALUES, CacheTensor, Layout, require_cache
from hybrid_pages.transformers.versions import UnsupportedError

KINDS = ("attention", "window", "conv", "recurrent")


def cache_bytes(cache: Any) -> dict[str, int]:
    """Measures a live ``DynamicCache`` or ``StaticCache``, all its rows together.

    Returns:
        Bytes by kind: ``attention`` (keys and values of full attention), ``window`` (those of
        sliding windows), ``conv`` and ``recurrent`` states. For a dynamic layer of the tokens that
        it holds, for a static one of all tokens that it has room for.

    Raises:
        UnsupportedError: an unknown kind of cache or layer.
    """
    require_cache(cache)
    total = dict.fromkeys(KINDS, 0)
    for layer in cache.layers:
        if layers.has_tokens(layer) and layer.is_initialized:
            kind = "window" if layers.is_window(layer) else "attention"
            total[kind] += layer.keys.nbytes + layer.values.nbytes
        if layers.has_states(layer):
            for (kind, _), state in layers.states(layer).items():
                total[kind] += state.nbytes
    return total


def geometry_of(
    config: Any,
    *,
    block_tokens: int = 64,
    dtype: torch.dtype | None = None,
    state_dtype: torch.dtype = torch.float32,
    identity: Mapping[str, str] | None = None,
) -> Geometry:
    """Predicts the geometry of a model's cache of one row from the config.

    Args:
        config: of a model whose layers are attention, sliding attention, Gated DeltaNet (Qwen3.5,
            Qwen3-Next), short convolutions (LFM2), Mamba (Jamba) or Mamba-2 (Bamba, Granite 4,
            Falcon-H1).
        block_tokens: tokens per block.
        dtype: of keys, values and conv states; by default the config's, or torch's default.
        state_dtype: of recurrent states; the implementations in transformers keep float32.
        identity: of the geometry, for its fingerprint.

    Raises:
        UnsupportedError: a recurrent layer of another kind. A live cache can be measured instead.
    """
    config = config.get_text_config(decoder=True)
    dtype = dtype or getattr(config, "dtype", None) or torch.get_default_dtype()
    cpu = torch.device("cpu")
    specs: list[CacheTensor] = []
    cache = DynamicCache(config=config)
    for index, layer in enumerate(cache.layers):
        layer_config = config.per_layer_config[index]
        if layers.has_tokens(layer):
            width = layers.kept(layer)
            shape = _heads(layer_config, block_tokens)
            window = None if width is None else width + 1
            specs += [
                CacheTensor(index, kind, 0, shape, dtype, cpu, window) for kind in (KEYS, VALUES)
            ]
        if layers.has_states(layer):
            for kind, shape in _states(index, layer_config, config.layer_types[index]):
                kept = dtype if kind == layers.CONV else state_dtype
                specs.append(CacheTensor(index, kind, 0, shape, kept, cpu))
    layout = Layout.of_tensors(
        specs, len(cache.layers), block_tokens=block_tokens, identity=identity or {}
    )
    return layout.geometry


def _heads(config: Any, block_tokens: int) -> tuple[int, ...]:
    if getattr(config, "kv_lora_rank", None) or getattr(config, "qk_head_dim", None):
        raise UnsupportedError(
            f"{config.model_type}: expected keys and values of one size, found latent attention"
        )
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return (int(heads), block_tokens, int(dim))


def _states(index: int, config: Any, layer_type: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The kind and the shape of each state of a recurrent layer."""
    if layer_type in ("moe", "mlp"):
        return
    if hasattr(config, "linear_num_value_heads"):
        heads, key_dim = config.linear_num_value_heads, config.linear_key_head_dim
        value_dim = config.linear_value_head_dim
        width = 2 * config.linear_num_key_heads * key_dim + heads * value_dim
        yield layers.CONV, (width, config.linear_conv_kernel_dim)
        yield layers.RECURRENT, (heads, key_dim, value_dim)
    elif hasattr(config, "conv_L_cache"):
        yield layers.CONV, (config.hidden_size, config.conv_L_cache)
    elif hasattr(config, "mamba_n_heads"):
        recurrent = (config.mamba_n_heads, config.mamba_d_head, config.mamba_d_state)
        width = prod(recurrent[:2]) + 2 * config.mamba_n_groups * config.mamba_d_state
        yield layers.CONV, (width, config.mamba_d_conv)
        yield layers.RECURRENT, recurrent
    elif hasattr(config, "mamba_dt_rank"):
        width = config.mamba_expand * config.hidden_size
        yield layers.CONV, (width, config.mamba_d_conv)
        yield layers.RECURRENT, (width, config.mamba_d_state)
    else:
        raise UnsupportedError(
            f"{config.model_type}, layer {index} ({layer_type}): its states cannot be told from "
            "the config: expected Gated DeltaNet, a short convolution, Mamba or Mamba-2"
        )
