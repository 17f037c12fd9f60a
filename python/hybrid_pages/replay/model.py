"""Bytes of a model's pages and checkpoints, from its Hugging Face configuration.

Shapes are those of vLLM's ``MambaStateShapeCalculator``, types those that its ``auto`` chooses.
Sizes are for all tensor-parallel ranks together, without padding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybrid_pages import HybridPagesError

_TYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_ATTENTION = {"full_attention", "attention"}
_RECURRENT = {"linear_attention", "mamba", "conv"}
_NEITHER = {"mlp", "moe"}
_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_KNOWN = "Qwen3-Next, Qwen3.5, Qwen3.6, LFM2, Nemotron-H, Bamba, Granite 4 hybrid and Jamba"


class ModelError(HybridPagesError, ValueError):
    """A configuration that can't be read or whose layers aren't known."""


@dataclass(frozen=True)
class Model:
    """The layers and sizes of one model's cache."""

    name: str
    dtype: str
    attention_layers: int
    recurrent_layers: int
    token_bytes: int
    """Keys and values of a token, in all attention layers."""
    checkpoint_bytes: int
    """Recurrent states after a boundary, in all recurrent layers."""

    def page_bytes(self, block_tokens: int) -> int:
        """Bytes of a page of so many tokens: budgets are counted in pages."""
        return self.token_bytes * block_tokens

    def exact_ratio(self, block_tokens: int) -> float:
        """Pages that take as many bytes as a checkpoint."""
        return self.checkpoint_bytes / self.page_bytes(block_tokens)

    def ratio(self, block_tokens: int) -> int:
        """The nearest whole number of pages, at least 1: the lab counts in pages."""
        return max(1, round(self.exact_ratio(block_tokens)))


def read_model(path: Path) -> Model:
    """Reads a model's folder, or its config.json under any name.

    Raises:
        ModelError: it can't be read, or is not one of the families that are known.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_bytes())
    except OSError as error:
        raise ModelError(
            f"{path}: expected a model's folder or its config.json on this machine, "
            f"found {error.strerror or error}"
        ) from error
    except ValueError as error:
        raise ModelError(f"{file}: expected JSON: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{file}: expected a JSON object, found {type(config).__name__}")
    text = config.get("text_config", config)
    if not isinstance(text, dict):
        raise ModelError(f"{file}: text_config: expected a JSON object")
    return _Reader(str(file), str(config.get("model_type", "unnamed")), {**config, **text}).model()


class _Reader:
    """One configuration, with messages that name the file."""

    def __init__(self, file: str, name: str, config: Mapping[str, Any]) -> None:
        self._file = file
        self._name = name
        self._config = config

    def model(self) -> Model:
        layers = self._layers()
        unknown = sorted(set(layers) - _ATTENTION - _RECURRENT - _NEITHER)
        attention = sum(layer in _ATTENTION for layer in layers)
        recurrent = sum(layer in _RECURRENT for layer in layers)
        if unknown or not attention or not recurrent:
            raise self._error(
                "expected layers of full attention and recurrent ones, found "
                f"{', '.join(unknown) or ', '.join(sorted(set(layers))) or 'none'}"
            )
        dtype = self._dtype("dtype", "torch_dtype", default="bfloat16")
        return Model(
            name=self._name,
            dtype=dtype,
            attention_layers=attention,
            recurrent_layers=recurrent,
            token_bytes=attention * self._attention_bytes(_TYPE_BYTES[dtype]),
            checkpoint_bytes=recurrent * self._state_bytes(dtype),
        )

    def _attention_bytes(self, element: int) -> int:
        """Keys and values of one token in one layer."""
        heads = self._number("num_attention_heads")
        width = self._config.get("head_dim") or self._config.get("attention_head_dim")
        if width is None:
            width = self._number("hidden_size") // heads
        else:
            width = self._whole("head_dim", width)
        kv_heads = self._config.get("num_key_value_heads")
        kv_heads = heads if kv_heads is None else self._whole("num_key_value_heads", kv_heads)
        return 2 * kv_heads * width * element

    def _state_bytes(self, dtype: str) -> int:
        """The recurrent states of one layer after a boundary."""
        number, has = self._number, self._config.__contains__
        element = _TYPE_BYTES[dtype]
        if has("linear_num_value_heads"):  # Gated DeltaNet
            values = number("linear_num_value_heads") * number("linear_value_head_dim")
            keys = number("linear_num_key_heads") * number("linear_key_head_dim")
            conv = (2 * keys + values) * (number("linear_conv_kernel_dim") - 1)
            state = values * number("linear_key_head_dim")
            return conv * element + state * self._state_element("mamba_ssm_dtype", dtype)
        if has("conv_L_cache"):  # short convolutions
            width = number("conv_dim") if has("conv_dim") else number("hidden_size")
            return width * (number("conv_L_cache") - 1) * element
        if has("mamba_num_heads"):  # Mamba 2, as Nemotron-H names it
            inner = number("mamba_num_heads") * number("mamba_head_dim")
            groups = number("n_groups") * number("ssm_state_size")
            conv = (inner + 2 * groups) * (number("conv_kernel") - 1)
            state = inner * number("ssm_state_size")
            kept = self._state_element("mamba_ssm_cache_dtype", "float32")
            return conv * element + state * kept
        if has("mamba_n_heads"):  # Mamba 2, as Bamba and Granite name it
            inner = number("mamba_expand") * number("hidden_size")
            head = self._config.get("mamba_d_head")
            heads = number("mamba_n_heads")
            head = inner // heads if head in (None, "auto") else self._whole("mamba_d_head", head)
            groups = number("mamba_n_groups") * number("mamba_d_state")
            conv = (inner + 2 * groups) * (number("mamba_d_conv") - 1)
            return (conv + heads * head * number("mamba_d_state")) * element
        if has("mamba_d_state"):  # Mamba 1
            inner = number("mamba_expand") * number("hidden_size")
            return inner * (number("mamba_d_conv") - 1 + number("mamba_d_state")) * element
        raise self._error("found recurrent layers, but no sizes of their states")

    def _layers(self) -> list[str]:
        """The kind of each layer."""
        config = self._config
        pattern = config.get("hybrid_override_pattern")
        if isinstance(pattern, str):
            return [_PATTERN.get(letter, letter) for letter in pattern]
        for field in ("layer_types", "layers_block_type"):
            kinds = config.get(field)
            if isinstance(kinds, list):
                return [str(kind) for kind in kinds]
        if "full_attn_idxs" in config or "attn_layer_indices" in config:
            indices = config.get("full_attn_idxs") or config.get("attn_layer_indices")
            if not isinstance(indices, list):
                raise self._error("expected a list of the attention layers' numbers")
            return self._attention_at(lambda layer: layer in indices)
        if "full_attention_interval" in config:
            interval = self._number("full_attention_interval")
            return self._attention_at(lambda layer: (layer + 1) % interval == 0)
        if "attn_layer_period" in config:
            period, offset = self._number("attn_layer_period"), config.get("attn_layer_offset", 0)
            return self._attention_at(lambda layer: layer % period == offset)
        raise self._error("found nothing that says which layers are recurrent")

    def _attention_at(self, is_attention: Callable[[int], bool]) -> list[str]:
        count = self._number("num_hidden_layers")
        return ["attention" if is_attention(layer) else "mamba" for layer in range(count)]

    def _state_element(self, field: str, default: str) -> int:
        return _TYPE_BYTES[self._dtype(field, default=default)]

    def _dtype(self, *fields: str, default: str) -> str:
        for field in fields:
            found = self._config.get(field)
            if found is not None:
                if found not in _TYPE_BYTES:
                    raise self._error(
                        f"{field}: expected {', '.join(_TYPE_BYTES)}, found {found!r}"
                    )
                return str(found)
        return default

    def _number(self, field: str) -> int:
        return self._whole(field, self._config.get(field))

    def _whole(self, field: str, found: Any) -> int:
        if type(found) is not int or not 0 < found < 1 << 32:
            raise self._error(f"{field}: expected a positive integer, found {found!r}")
        return found

    def _error(self, found: str) -> ModelError:
        return ModelError(
            f"{self._file} ({self._name}): {found}; the families known here are {_KNOWN}; "
            "for another model give --ratio"
        )
