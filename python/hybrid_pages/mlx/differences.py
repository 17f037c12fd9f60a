"""What differs between the supported versions of mlx-lm. Nothing else asks which one there is."""

from __future__ import annotations

import inspect
from typing import Any

import mlx.core as mx
import mlx_lm
from mlx_lm.generate import generate_step, generation_stream, stream_generate
from mlx_lm.models.cache import KVCache

from hybrid_pages import InvalidArgumentError
from hybrid_pages.mlx.versions import MLX_LM, is_before

_BEFORE_032 = is_before(mlx_lm.__version__, (0, 32))

QUANTIZED_FROM = int(inspect.signature(generate_step).parameters["quantized_kv_start"].default)
"""From which token on ``kv_bits`` quantises a cache by default: 0 before mlx-lm 0.32, then 5000."""

PROCESSORS_SEE_PROMPTS = not _BEFORE_032
"""Whether ``stream_generate`` shows logits processors the whole prompt, or its last token alone."""

BATCHED = (
    "lfm2",
    "lfm2-vl",
    "lfm2_moe",
    *(
        ()
        if _BEFORE_032
        else (
            "bailing_hybrid",
            "bailing_moe_v3",
            "falcon_h1",
            "gear",
            "granitemoehybrid",
            "kimi_k3",
            "kimi_linear",
            "mamba2",
            "plamo2",
            "prism_hadamard_qwen35",
            "qwen3_5",
            "qwen3_5_moe",
            "qwen3_next",
        )
    ),
)
"""Hybrid models of which mlx-lm computes batches of rows of different lengths correctly."""

DECODED_TOGETHER = (
    *BATCHED,
    "baichuan_m1",
    "falcon_h1",
    "granitemoehybrid",
    "jamba",
    "kimi_linear",
    "longcat_flash_ngram",
    "mamba",
    "mamba2",
    "nemotron_h",
    "plamo2",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "recurrent_gemma",
    "rwkv7",
    *(() if _BEFORE_032 else ("bailing_moe_linear", "olmo_hybrid")),
)
"""Hybrid models of which rows are decoded correctly in a batch, if each prompt was computed alone.
"""


def fill(part: Any, keys: mx.array, values: mx.array, seen: int) -> None:
    """Fills a part with keys and values, which then has seen ``seen`` tokens.

    keys, values: ``[1, heads, room, dim]``, those of a window in the order of their tokens.
    """
    if not _BEFORE_032:
        more = () if type(part) is KVCache else (part.keep, part.max_size, keys.shape[2])
        part.state = (keys, values, seen, *more)
        return
    part.state = (keys, values)
    part.offset = seen
    if type(part) is not KVCache:
        part._idx = keys.shape[2]


def on_stream(stream: Any) -> dict[str, Any]:
    """The arguments that make ``stream_generate`` compute on a stream.

    Raises:
        InvalidArgumentError: this mlx-lm computes on its own stream alone.
    """
    if "stream" in inspect.signature(stream_generate).parameters:
        return {"stream": stream}
    if stream is not generation_stream:
        raise InvalidArgumentError(
            f"stream: expected mlx-lm's own, on which {mlx_lm.__version__} always computes, found "
            f"{stream}: leave it out, or install mlx-lm {MLX_LM.tested[-1]}"
        )
    return {}
