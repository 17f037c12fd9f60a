"""Families with recurrent layers: the kind of each layer, and the sizes of its state.

Each reader restates one module of ``vllm/model_executor/models`` (or ``vllm/models``): the layers
that the module builds, and its ``get_mamba_state_shape_from_config`` and
``get_mamba_state_dtype_from_config``. Fields that a file leaves out have the defaults of the
family's configuration class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hybrid_pages.models import layers
from hybrid_pages.models.attention import full, latent
from hybrid_pages.models.choices import Choices
from hybrid_pages.models.config import Config
from hybrid_pages.models.layers import Layer, PerLayer, RecurrentState

Reader = Callable[[Config, Choices], PerLayer]

_RECURRENT = {"linear_attention", "mamba", "conv", "recurrent"}
_FULL = {"full_attention", "attention"}
_BOTH = {"hybrid"}
_NEITHER = {"mlp", "moe"}
_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def mixed(
    config: Config,
    kinds: list[str],
    state: Callable[[], RecurrentState],
    attention: Callable[[], Layer],
) -> PerLayer:
    """What each layer of a model keeps.

    kinds: the kind of each layer, from the configuration. state, attention: make a layer of that
    kind.

    Raises:
        ModelError: an unknown kind, or another number of layers than
            ``num_hidden_layers``.
    """
    count = config.get("num_hidden_layers")
    if count is not None and count != len(kinds):
        raise config.error(f"expected a kind for each of {count} layers, found {len(kinds)}")
    if unknown := sorted(set(kinds) - _RECURRENT - _FULL - _BOTH - _NEITHER):
        raise config.error(
            f"layers of an unknown kind: {', '.join(unknown)}; known are "
            f"{', '.join(sorted(_RECURRENT | _FULL | _BOTH | _NEITHER))}"
        )
    found: PerLayer = []
    for kind in kinds:
        found.append([state()] if kind in _RECURRENT | _BOTH else [])
        if kind in _FULL | _BOTH:
            found[-1].append(attention())
    return found


def kinds_of(config: Config, *fields: str) -> list[str]:
    """The kind of each layer, from the first of these fields that exists.

    Raises:
        ModelError: none of them exists.
    """
    found = config.names(*fields)
    if found is None:
        raise config.error(f"found none of {', '.join(fields)}, which say what each layer is")
    return found


def every(config: Config, interval: int) -> list[str]:
    """The kind of each layer if the last of every ``interval`` layers has full attention."""
    return [
        "linear_attention" if (layer + 1) % interval else "full_attention"
        for layer in range(config.number("num_hidden_layers"))
    ]


def _delta_net(ssm_field: str | None) -> Reader:
    """Gated DeltaNet with full attention. ssm_field: names the type of states, where vLLM looks
    (``models/config.py: Qwen3_5ForConditionalGenerationConfig``)."""

    def read(config: Config, choices: Choices) -> PerLayer:
        interval = config.number("full_attention_interval", 4)
        auto = None if ssm_field is None else config.get(ssm_field)
        return mixed(
            config,
            config.names("layer_types") or every(config, interval),
            lambda: layers.gated_delta_net(
                choices.ranks,
                key_heads=config.number("linear_num_key_heads"),
                value_heads=config.number("linear_num_value_heads"),
                key_width=config.number("linear_key_head_dim"),
                value_width=config.number("linear_value_head_dim"),
                kernel=config.number("linear_conv_kernel_dim") + choices.drafts,
                conv_bytes=choices.conv_bytes(config),
                state_bytes=choices.state_bytes(config, auto),
            ),
            lambda: full(config, choices),
        )

    return read


def _olmo_hybrid(config: Config, choices: Choices) -> PerLayer:
    """``olmo_hybrid.py``: Gated DeltaNet, whose sizes follow from the attention's by default."""
    heads = config.number("linear_num_key_heads", config.number("num_attention_heads"))
    width = config.number("linear_key_head_dim", config.number("hidden_size") * 3 // (4 * heads))
    return mixed(
        config,
        config.names("layer_types") or every(config, 4),
        lambda: layers.gated_delta_net(
            choices.ranks,
            key_heads=heads,
            value_heads=config.number("linear_num_value_heads", heads),
            key_width=width,
            value_width=config.number("linear_value_head_dim", 2 * width),
            kernel=config.number("linear_conv_kernel_dim") + choices.drafts,
            conv_bytes=choices.conv_bytes(config),
            state_bytes=choices.state_bytes(config),
        ),
        lambda: full(config, choices, width=None),
    )


def _alice_ai(config: Config, choices: Choices) -> PerLayer:
    """``alice_ai.py``: Kimi Delta Attention with full attention; states are float32 whatever
    ``--mamba-ssm-cache-dtype`` says."""
    return mixed(
        config,
        kinds_of(config, "layer_types"),
        lambda: layers.kimi_delta_attention(
            choices.ranks,
            heads=config.number("linear_num_key_heads"),
            width=config.number("linear_key_head_dim"),
            kernel=config.number("linear_conv_kernel_dim") + choices.drafts,
            conv_bytes=choices.conv_bytes(config),
            state_bytes=4,
        ),
        lambda: full(config, choices),
    )


def _kimi(config: Config, choices: Choices) -> PerLayer:
    """``kimi_k3/nvidia/model.py``: layers are counted from 1."""
    own = config.inner("linear_attn_config")
    recurrent = own.get("kda_layers")
    if not isinstance(recurrent, list):
        raise own.error(f"kda_layers: expected a list of layers, found {recurrent!r}")
    return mixed(
        config,
        [
            "linear_attention" if layer + 1 in recurrent else "full_attention"
            for layer in range(config.number("num_hidden_layers"))
        ],
        lambda: layers.kimi_delta_attention(
            choices.ranks,
            heads=own.number("num_heads"),
            width=own.number("head_dim"),
            kernel=own.number("short_conv_kernel_size") + choices.drafts,
            conv_bytes=choices.conv_bytes(config),
            state_bytes=choices.state_bytes(config, "float32"),
        ),
        lambda: latent(config, choices),
    )


def _bailing_v3(config: Config, choices: Choices) -> PerLayer:
    """``bailing_moe_v3.py``: Kimi Delta Attention with latent attention; float32 states."""
    size, count = config.number("layer_group_size"), config.number("num_hidden_layers")
    return mixed(
        config,
        [
            "full_attention"
            if (layer + 1) % size == 0 or layer >= count // size * size
            else "linear_attention"
            for layer in range(count)
        ],
        lambda: layers.kimi_delta_attention(
            choices.ranks,
            heads=config.number("num_attention_heads"),
            width=config.number("head_dim"),
            kernel=config.number("short_conv_kernel_size") + choices.drafts,
            conv_bytes=choices.conv_bytes(config),
            state_bytes=4,
        ),
        lambda: latent(config, choices),
    )


def _bailing_v25(config: Config, choices: Choices) -> PerLayer:
    """``bailing_moe_linear.py``: lightning attention with latent attention (Ring 2.5)."""
    heads = config.number("num_attention_heads")
    return mixed(
        config,
        every(config, config.number("layer_group_size")),
        lambda: layers.linear_attention(
            choices.ranks,
            heads=heads,
            width=config.number("head_dim", config.number("hidden_size") // heads),
            state_bytes=choices.conv_bytes(config),
        ),
        lambda: latent(config, choices),
    )


def _granite(config: Config, choices: Choices) -> PerLayer:
    """``granitemoehybrid.py``."""
    return mixed(
        config,
        kinds_of(config, "layer_types", "layers_block_type"),
        lambda: _mamba2(config, choices),
        lambda: full(config, choices, width=None),
    )


def _falcon_h1(config: Config, choices: Choices) -> PerLayer:
    """``falcon_h1.py``: Mamba-2 and full attention in each layer."""
    return mixed(
        config,
        ["hybrid"] * config.number("num_hidden_layers"),
        lambda: _mamba2(config, choices, inner=config.amount("mamba_d_ssm", least=1)),
        lambda: full(config, choices),
    )


def _mamba2(config: Config, choices: Choices, inner: int | None = None) -> RecurrentState:
    heads = config.number("mamba_n_heads")
    if inner is None:
        inner = config.number("mamba_expand") * config.number("hidden_size")
    width = config.get("mamba_d_head", "auto")
    return layers.mamba2(
        choices.ranks,
        inner=inner,
        groups=config.number("mamba_n_groups"),
        heads=heads,
        width=inner // heads if width == "auto" else config.number("mamba_d_head"),
        states=config.number("mamba_d_state"),
        kernel=config.number("mamba_d_conv") + choices.drafts,
        conv_bytes=choices.conv_bytes(config),
        state_bytes=choices.state_bytes(config),
    )


def _zamba2(config: Config, choices: Choices) -> PerLayer:
    """``zamba2.py``: hybrid layers share the weights of their attention, not its pages."""
    heads, hidden = config.number("n_mamba_heads"), config.number("hidden_size")
    inner = config.number("mamba_expand") * hidden
    return mixed(
        config,
        kinds_of(config, "layers_block_type", "layer_types"),
        lambda: layers.mamba2(
            choices.ranks,
            inner=inner,
            groups=config.number("mamba_ngroups"),
            heads=heads,
            width=inner // heads,
            states=config.number("mamba_d_state"),
            kernel=config.number("mamba_d_conv") + choices.drafts,
            conv_bytes=choices.conv_bytes(config),
            state_bytes=choices.state_bytes(config),
        ),
        lambda: full(
            config,
            choices,
            heads=config.number("num_attention_heads"),
            width=2 * hidden // config.number("num_attention_heads"),
        ),
    )


def _nemotron_h(config: Config, choices: Choices) -> PerLayer:
    """``nemotron_h.py``; states are float32 unless the configuration says otherwise
    (``models/config.py: NemotronHForCausalLMConfig``)."""
    return _nemotron(config, choices, config.get("mamba_ssm_cache_dtype", "float32"))


def _nemotron_omni(config: Config, choices: Choices) -> PerLayer:
    """``nano_nemotron_vl.py``, for whose names vLLM does not look up the type of states."""
    return _nemotron(config, choices, None)


def _nemotron(config: Config, choices: Choices, auto: str | None) -> PerLayer:
    pattern = config.text("hybrid_override_pattern", "")
    kinds = [_PATTERN.get(letter, letter) for letter in pattern] or kinds_of(
        config, "layers_block_type", "layer_types"
    )
    heads, width = config.number("mamba_num_heads"), config.number("mamba_head_dim")
    return mixed(
        config,
        kinds,
        lambda: layers.mamba2(
            choices.ranks,
            inner=heads * width,
            groups=config.number("n_groups"),
            heads=heads,
            width=width,
            states=config.number("ssm_state_size"),
            kernel=config.number("conv_kernel") + choices.drafts,
            conv_bytes=choices.conv_bytes(config),
            state_bytes=choices.state_bytes(config, auto),
        ),
        lambda: full(config, choices, window=config.amount("sliding_window", least=1)),
    )


def _jamba(config: Config, choices: Choices) -> PerLayer:
    """``jamba.py``: Mamba-1 with full attention."""
    period, offset = config.number("attn_layer_period"), config.amount("attn_layer_offset")
    return mixed(
        config,
        [
            "attention" if layer % period == offset else "mamba"
            for layer in range(config.number("num_hidden_layers"))
        ],
        lambda: layers.mamba1(
            choices.ranks,
            inner=config.number("mamba_expand") * config.number("hidden_size"),
            states=config.number("mamba_d_state"),
            kernel=config.number("mamba_d_conv"),
            conv_bytes=choices.conv_bytes(config),
            state_bytes=choices.state_bytes(config),
        ),
        lambda: full(config, choices, width=None),
    )


def _lfm2(width_field: str) -> Reader:
    """``lfm2.py``, ``lfm2_moe.py``, ``lfm2_vl.py``. width_field: names the width of the
    convolution."""

    def read(config: Config, choices: Choices) -> PerLayer:
        kinds = config.names("layer_types")
        if kinds is None:
            full_ones = config.get("full_attn_idxs")
            if not isinstance(full_ones, list):
                raise config.error("found neither layer_types nor full_attn_idxs")
            kinds = [
                "full_attention" if layer in full_ones else "conv"
                for layer in range(config.number("num_hidden_layers"))
            ]
        return mixed(
            config,
            kinds,
            lambda: layers.short_convolution(
                choices.ranks,
                width=config.number(width_field, config.number("hidden_size")),
                kernel=config.number("conv_L_cache") + choices.drafts,
                conv_bytes=choices.conv_bytes(config),
            ),
            lambda: full(config, choices, width=None),
        )

    return read


_QWEN35 = _delta_net("mamba_ssm_dtype")
_GATED = _delta_net(None)

RECURRENT: Mapping[str, Reader] = {
    "AliceAIForCausalLM": _alice_ai,
    "BailingMoeV2_5ForCausalLM": _bailing_v25,
    "BailingMoeV3ForCausalLM": _bailing_v3,
    "BailingMoeV3VLForConditionalGeneration": _bailing_v3,
    "ClefFlashForJointSchema": _GATED,
    "ColBERTLfm2Model": _lfm2("conv_dim"),
    "ColQwen3_5": _QWEN35,
    "D3ForSequenceClassification": _QWEN35,
    "FalconH1ForCausalLM": _falcon_h1,
    "GraniteMoeHybridForCausalLM": _granite,
    "InternS2MobiusForConditionalGeneration": _GATED,
    "InternS2PreviewForConditionalGeneration": _GATED,
    "JambaForCausalLM": _jamba,
    "JambaForSequenceClassification": _jamba,
    "KimiK3ForConditionalGeneration": _kimi,
    "KimiLinearForCausalLM": _kimi,
    "Lfm2ForCausalLM": _lfm2("conv_dim"),
    "Lfm2MoeForCausalLM": _lfm2("hidden_size"),
    "Lfm2VlForConditionalGeneration": _lfm2("hidden_size"),
    "MiniCPMOcrForConditionalGeneration": _GATED,
    "MiniCPMV4_6ForConditionalGeneration": _GATED,
    "MiniCPMV4_7ForConditionalGeneration": _GATED,
    "NemotronHForCausalLM": _nemotron_h,
    "NemotronHPuzzleForCausalLM": _nemotron_h,
    "NemotronH_Nano_Omni_Reasoning_V3": _nemotron_omni,
    "NemotronH_Nano_VL_V2": _nemotron_h,
    "NemotronH_Omni_Reasoning_V3": _nemotron_omni,
    "NemotronH_Super_Omni_Reasoning_V3": _nemotron_omni,
    "OlmoHybridForCausalLM": _olmo_hybrid,
    "Qwen3NextForCausalLM": _GATED,
    "Qwen3_5ForCausalLM": _QWEN35,
    "Qwen3_5ForConditionalGeneration": _QWEN35,
    "Qwen3_5MoeForCausalLM": _QWEN35,
    "Qwen3_5MoeForConditionalGeneration": _QWEN35,
    "Zamba2ForCausalLM": _zamba2,
}
"""Readers by vLLM's name of the model class (``vllm/model_executor/models/registry.py``)."""
