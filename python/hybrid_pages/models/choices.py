"""The options of vLLM's command line that sizes depend on."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid_pages.models.config import TYPE_BYTES, Config

KV_DTYPES = {"auto": 0, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""The size of an element of a page by ``--kv-cache-dtype``; 0 for ``auto``
(``vllm/utils/torch_utils.py: STR_DTYPE_TO_TORCH_DTYPE``). Formats whose scales are stored beside
the elements are left out."""
SSM_DTYPES = ("auto", *TYPE_BYTES)
"""The values of ``--mamba-ssm-cache-dtype``."""
CONV_DTYPES = SSM_DTYPES
"""The values of ``--mamba-cache-dtype``."""

_MODELOPT = {"fp8": "fp8_e4m3"}


@dataclass(frozen=True)
class Choices:
    """Options of ``vllm serve``, by vLLM's names and with its defaults."""

    ranks: int = 1
    """The number of tensor-parallel ranks."""
    dtype: str = "auto"
    kv_dtype: str = "auto"
    conv_dtype: str = "auto"
    ssm_dtype: str = "auto"
    state_dtype: str | None = None
    """The type of recurrent states where neither ``ssm_dtype`` nor the family gives one. None: the
    type of the convolution's state."""
    drafts: int = 0
    """Draft tokens per step. The state of a convolution has one more column for each."""
    stages: int = 1
    """The number of pipeline stages."""
    partition: str | None = None
    """The layers of each stage, as ``VLLM_PP_LAYER_PARTITION`` names them; None if it does not."""

    def model_dtype(self, config: Config) -> str:
        """The dtype that the model is computed in.

        Raises:
            ModelError: neither the options nor the configuration tell.
        """
        return config.dtype() if self.dtype == "auto" else self.dtype

    def kv_bytes(self, config: Config, *, latent: bool = False) -> int:
        """The size of an element of a page.

        ``auto`` is the model's type, or what a ModelOpt checkpoint asks for
        (``vllm/utils/torch_utils.py: resolve_kv_cache_dtype_string``), or fp8 where a checkpoint of
        llm-compressor has a scheme for it (``layers/attention/attention.py``; not for latents).

        Raises:
            ModelError: the checkpoint asks for a format that is not known here.
        """
        found = self.kv_dtype
        if found == "auto":
            found = _quantised(config, latent) or self.model_dtype(config)
        return KV_DTYPES.get(found) or TYPE_BYTES[found]

    def conv_bytes(self, config: Config) -> int:
        """The size of an element of a convolution's state, and of states without an option."""
        if self.conv_dtype != "auto":
            return TYPE_BYTES[self.conv_dtype]
        return TYPE_BYTES[self.model_dtype(config)]

    def state_bytes(self, config: Config, auto: str | None = None) -> int:
        """The size of an element of a recurrent state.

        auto: the type that the family uses for ``auto``; None for that of its convolution's state.

        Raises:
            ModelError: the type is not known.
        """
        found = self.state_dtype if auto is None else auto
        if self.ssm_dtype != "auto":
            found = self.ssm_dtype
        if found is None:
            return self.conv_bytes(config)
        if not isinstance(found, str) or found not in TYPE_BYTES:
            raise config.error(
                f"type of the recurrent states: expected {', '.join(TYPE_BYTES)}, found {found!r}"
            )
        return TYPE_BYTES[found]


def _quantised(config: Config, latent: bool) -> str | None:
    quantised = config.outer.get("quantization_config") or config.get("quantization_config")
    if not isinstance(quantised, dict):
        return None
    if quantised.get("quant_method") == "compressed-tensors":
        return "fp8" if quantised.get("kv_cache_scheme") and not latent else None
    producer = quantised.get("producer")
    old = isinstance(producer, dict) and producer.get("name") == "modelopt"
    if not old and not str(quantised.get("quant_method", "")).startswith("modelopt"):
        return None
    inner = quantised.get("quantization", quantised)
    for values in (inner, quantised):
        for field in ("kv_cache_scheme", "kv_cache_quant_algo"):
            found = values.get(field) if isinstance(values, dict) else None
            if isinstance(found, dict):
                eight = found.get("num_bits") == 8 and found.get("type") == "float"
                found = "fp8" if eight and found.get("dynamic") is False else "a scheme of its own"
            if found:
                if str(found).lower() in _MODELOPT:
                    return _MODELOPT[str(found).lower()]
                raise config.error(
                    f"the checkpoint wants its KV cache in {found!r}, of which nothing is known "
                    f"here: say one of {', '.join(KV_DTYPES)} with --kv-dtype"
                )
    return None
