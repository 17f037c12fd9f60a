"""The families of models: those that can be read, and those that are refused, with the reason.

All families of vLLM 0.33 with more than one kind of layer are in one of the tables, and those that
it has dropped (``vllm/model_executor/models/registry.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybrid_pages.models.attention import ATTENTION
from hybrid_pages.models.choices import Choices
from hybrid_pages.models.config import Config, RanksError
from hybrid_pages.models.layers import Layer, PerLayer, divided
from hybrid_pages.models.recurrent import RECURRENT
from hybrid_pages.models.stages import split

READERS = {**RECURRENT, **ATTENTION}
"""The function that reads a configuration, by vLLM's name of the model class."""

_QWEN35 = {
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "num_hidden_layers": 32,
}
_QWEN35_MOE = _QWEN35 | {"num_key_value_heads": 2, "num_hidden_layers": 40}
_GEMMA3 = {
    "hidden_size": 2304,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
}
_GEMMA3N = {
    "hidden_size": 2048,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "sliding_window": 512,
    "num_kv_shared_layers": 15,
}
_GEMMA4 = {
    "hidden_size": 2304,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "sliding_window": 512,
}

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "Gemma3nForConditionalGeneration": _GEMMA3N,
    "Gemma4ForCausalLM": {"global_head_dim": 512},
    "Gemma4ForConditionalGeneration": _GEMMA4,
    "Gemma4UnifiedForConditionalGeneration": _GEMMA4,
    "MiniCPMOcrForConditionalGeneration": _QWEN35,
    "MiniCPMV4_6ForConditionalGeneration": _QWEN35,
    "MiniCPMV4_7ForConditionalGeneration": _QWEN35,
    "Qwen3_5ForConditionalGeneration": _QWEN35,
    "Qwen3_5MoeForConditionalGeneration": _QWEN35_MOE,
}
"""Defaults of fields that a nested ``text_config`` may leave out, from the configuration classes of
transformers (``models/*/configuration_*.py``)."""

_ALONE = "vLLM runs models of recurrent layers alone without prefix caching, so nothing is reused"
_OWN_CACHES = "its attention keeps caches of its own kinds, whose sizes are not restated here"
_DRAFTS = "it drafts for another model: name that one"
_OWN_WINDOWS = "it says where its windows are in fields of its own, which are not read here"
_DROPPED = "vLLM runs it no more, in none of the versions that hybrid-pages supports"

REFUSED: Mapping[str, str] = {
    "BambaForCausalLM": _DROPPED,
    "BeamForCausalLM": _OWN_CACHES,
    "CohereCompassForConditionalGeneration": _OWN_WINDOWS,
    "CohereForCausalLM": _OWN_WINDOWS,
    "ColUltraVBertForRetrieval": "it has no pages: it embeds",
    "DFlash2BeamDraftModel": _DRAFTS,
    "DFlashDraftModel": _DRAFTS,
    "DFlashMuseGlimmerAssistantModel": _DRAFTS,
    "DSparkDraftModel": _DRAFTS,
    "DeepSeekV4MTPModel": _DRAFTS,
    "DeepseekV4ForCausalLM": _OWN_CACHES,
    "DeepseekV4ForConditionalGeneration": _OWN_CACHES,
    "DomynEdgeForCausalLM": _OWN_WINDOWS,
    "DoryForCausalLM": _OWN_WINDOWS,
    "Dots3NoteForCausalLM": _OWN_CACHES,
    "Dots3NoteMTPModel": _DRAFTS,
    "Eagle3Qwen3ForCausalLM": _DRAFTS,
    "EmbeddingGemma2Model": "it embeds, and reuses no prefixes",
    "ExaoneMoEForCausalLM": _OWN_WINDOWS,
    "ExaoneMoeForCausalLM": _OWN_WINDOWS,
    "FalconMambaForCausalLM": _ALONE,
    "FlintForCausalLM": _OWN_CACHES,
    "Gemma2Model": "it embeds, and reuses no prefixes",
    "Gemma3TextModel": "it embeds, and reuses no prefixes",
    "Gemma4MTPModel": _DRAFTS,
    "Glm5NextForCausalLM": _OWN_CACHES,
    "Glm5NextForConditionalGeneration": _OWN_CACHES,
    "GraniteForCausalLM": _OWN_WINDOWS,
    "GraniteMoeForCausalLM": _OWN_WINDOWS,
    "IQuestCoderForCausalLM": _OWN_WINDOWS,
    "InklingForCausalLM": _OWN_CACHES,
    "InklingForConditionalGeneration": _OWN_CACHES,
    "InklingMTPModel": _DRAFTS,
    "InternLM3ForCausalLM": _OWN_WINDOWS,
    "LLaMAForCausalLM": _OWN_WINDOWS,
    "LlamaBidirectionalForSequenceClassification": "it has no pages: it classifies",
    "LlamaBidirectionalModel": "it has no pages: it embeds",
    "LlamaModel": "it embeds, and reuses no prefixes",
    "Mamba2ForCausalLM": _ALONE,
    "MambaForCausalLM": _ALONE,
    "MiMoV2FlashForCausalLM": _OWN_WINDOWS,
    "MiMoV2ForCausalLM": _OWN_WINDOWS,
    "MiniMaxForCausalLM": _DROPPED,
    "MiniMaxM1ForCausalLM": _DROPPED,
    "MiniMaxM2ForCausalLM": _OWN_WINDOWS,
    "MiniMaxText01ForCausalLM": _DROPPED,
    "MiniMaxVL01ForConditionalGeneration": _DROPPED,
    "MistralModel": "it embeds, and reuses no prefixes",
    "ModernBertForSequenceClassification": "it has no pages: it classifies",
    "ModernBertForTokenClassification": "it has no pages: it classifies",
    "ModernBertModel": "it has no pages: it embeds",
    "MuseGlimmerAssistantModel": _DRAFTS,
    "MuseGlimmerForCausalLM": _OWN_WINDOWS,
    "MuseGlimmerForConditionalGeneration": _OWN_WINDOWS,
    "MuseSparkForConditionalGeneration": _OWN_CACHES,
    "OpenAIPrivacyFilterForTokenClassification": "it has no pages: it classifies",
    "PanguEmbeddedForCausalLM": _OWN_WINDOWS,
    "PanguProMoEV2ForCausalLM": _OWN_WINDOWS,
    "PanguUltraMoEForCausalLM": _OWN_WINDOWS,
    "PeagleQwen3ForCausalLM": _DRAFTS,
    "Phi4FlashForCausalLM": _DROPPED,
    "Plamo2ForCausalLM": _DROPPED,
    "Plamo3ForCausalLM": _OWN_WINDOWS,
    "Qwen4ExpForCausalLM": _OWN_CACHES,
    "Qwen4ExpForConditionalGeneration": _OWN_CACHES,
    "Rnj1ForCausalLM": _OWN_WINDOWS,
    "Step3p5ForCausalLM": _OWN_WINDOWS,
    "Step5ForCausalLM": _OWN_CACHES,
    "Step5ForConditionalGeneration": _OWN_CACHES,
    "Step5MTP": _DRAFTS,
    "TeleChat3ForCausalLM": _OWN_WINDOWS,
    "WhisperForConditionalGeneration": "it is an encoder and a decoder, which are not supported",
}
"""Why a family is refused, by vLLM's name of the model class."""

_BY_TYPE = {
    "falcon_h1": "FalconH1ForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "jamba": "JambaForCausalLM",
    "kimi_linear": "KimiLinearForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "lfm2_moe": "Lfm2MoeForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "olmo_hybrid": "OlmoHybridForCausalLM",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "zamba2": "Zamba2ForCausalLM",
}
"""vLLM's name of the model class by ``model_type``, for files that name no architecture."""

NO_STAGES = frozenset(
    {
        "AliceAIForCausalLM",
        "ColBERTLfm2Model",
        "Gemma3nForCausalLM",
        "Gemma3nForConditionalGeneration",
        "NemotronH_Nano_Omni_Reasoning_V3",
        "NemotronH_Nano_VL_V2",
        "NemotronH_Omni_Reasoning_V3",
        "NemotronH_Super_Omni_Reasoning_V3",
        "Zamba2ForCausalLM",
    }
)
"""The families that vLLM runs without pipeline stages only, by its name of the model class
(``supports_pp`` of ``vllm/model_executor/models/interfaces.py``)."""

_MOST_LAYERS = 10_000


def layers_of(config: Config, choices: Choices) -> list[Layer]:
    """The layers of a model with what they keep on one rank, in the model's order.

    Layers that keep nothing, or share another layer's pages, are left out.

    Raises:
        RanksError: heads that cannot be divided among the ranks
            (``config/model.py: verify_with_parallel_config``).
        ModelError: an unknown family, or a configuration that lacks a value.
    """
    return [layer for kept in _per_layer(config, choices) for layer in kept]


def stages_of(config: Config, choices: Choices) -> list[int]:
    """How many of the layers of :func:`layers_of` are in each pipeline stage.

    Raises:
        RanksError: layers that cannot be divided among the stages, or a family that vLLM runs
            without stages only.
        ModelError: as :func:`layers_of` does.
    """
    if choices.stages > 1 and _class_of(config) in NO_STAGES:
        raise config.error(
            f"--pipeline-parallel-size: expected 1, found {choices.stages}: vLLM runs this family "
            "without pipeline stages only",
            RanksError,
        )
    kept = [len(each) for each in _per_layer(config, choices)]
    found, first = [], 0
    for count in split(len(kept), choices.stages, choices.partition):
        found.append(sum(kept[first : first + count]))
        first += count
    return found


def _class_of(config: Config) -> str:
    return config.architecture or _BY_TYPE.get(config.text("model_type", ""), "")


def _per_layer(config: Config, choices: Choices) -> PerLayer:
    name = _class_of(config)
    if name in REFUSED:
        raise config.error(f"{name}: {REFUSED[name]}")
    reader = READERS.get(name)
    if reader is None:
        raise config.error(
            f"expected a model class that is known here, found {name or 'none'}: known are "
            f"{', '.join(sorted(READERS))}. Sizes of another one are in the line that vLLM logs at "
            "start with the connector"
        )
    config = config.over(DEFAULTS.get(name, {}))
    count = config.get("num_hidden_layers")
    if isinstance(count, int) and count > _MOST_LAYERS:
        raise config.error(f"num_hidden_layers: expected at most {_MOST_LAYERS}, found {count}")
    heads = config.amount("num_attention_heads", least=1)
    if heads is not None:
        divided("num_attention_heads", heads, choices.ranks)
    return reader(config, choices)
