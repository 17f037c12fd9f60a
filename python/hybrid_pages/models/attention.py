"""Attention layers, and the families of models that have no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hybrid_pages.models.choices import Choices
from hybrid_pages.models.config import Config, RanksError
from hybrid_pages.models.layers import Attention, PerLayer

_HEAD_DIM = -1
_SLIDING, _FULL = "sliding_attention", "full_attention"


def full(
    config: Config,
    choices: Choices,
    *,
    heads: int | None = None,
    width: int | None = _HEAD_DIM,
    window: int | None = None,
) -> Attention:
    """Grouped-query attention of one layer on one rank.

    Args:
        config: of the model.
        choices: of vLLM's command line.
        heads: number of heads of keys and values; by default ``num_key_value_heads``.
        width: of a head; by default ``head_dim``. None, or a missing ``head_dim``: the hidden size
            divided by the number of heads.
        window: how many tokens a position sees; None for all.

    Raises:
        RanksError: the heads cannot be divided among the ranks.
        ModelError: a value is missing.
    """
    if heads is None:
        heads = config.number("num_key_value_heads", config.number("num_attention_heads"))
    if width == _HEAD_DIM:
        width = config.amount("head_dim", least=1)
    if width is None:
        width = config.number("hidden_size") // config.number("num_attention_heads")
    for found in (heads, width):
        if type(found) is not int or found < 1:
            raise config.error(
                f"expected heads that have a positive width, found {heads!r} of {width!r} values"
            )
    ranks = choices.ranks
    if heads % ranks and ranks % heads:
        raise config.error(
            f"--tp: expected a divisor or a multiple of {heads} heads, found {ranks}", RanksError
        )
    return Attention(
        heads=max(1, heads // ranks),
        elements=2 * width,
        element_bytes=choices.kv_bytes(config),
        window=window,
    )


def latent(config: Config, choices: Choices) -> Attention:
    """Latent attention (MLA): ``kv_lora_rank + qk_rope_head_dim`` values for all heads together
    (``model_arch_config_convertor.py: get_head_size``).

    Raises:
        ModelError: a value is missing.
    """
    rope = config.amount("qk_rope_head_dim", 0)
    return Attention(
        heads=1,
        elements=config.number("kv_lora_rank") + rope,
        element_bytes=choices.kv_bytes(config, latent=True),
        latent=True,
    )


def _plain(config: Config, choices: Choices) -> PerLayer:
    """Models of full attention only."""
    windowed = config.get("sliding_window") and config.get("use_sliding_window", True)
    if windowed or _SLIDING in (config.names("layer_types") or ()):
        raise config.error(
            "found sliding windows, whose layers are not known here for this family; take them "
            "from vLLM's log"
        )
    return [[full(config, choices)]] * config.number("num_hidden_layers")


def _deepseek(config: Config, choices: Choices) -> PerLayer:
    """``deepseek_v2.py``, without a sparse indexer."""
    if config.get("index_topk"):
        raise config.error(
            "found a sparse indexer (index_topk), whose cache is not known here; take sizes from "
            "vLLM's log"
        )
    return [[latent(config, choices)]] * config.number("num_hidden_layers")


def _windows(
    pattern: int | None = None, *, more: int = 0, head_dim: bool = True
) -> Callable[[Config, Choices], PerLayer]:
    """Sliding windows beside full attention, by ``layer_types``.

    Args:
        pattern: where ``layer_types`` is missing, one in this many layers has full attention; None
            if the configuration must have ``layer_types``.
        more: how many tokens the family's kernels see beyond ``sliding_window``.
        head_dim: whether the configuration may set the width of a head.
    """

    def read(config: Config, choices: Choices) -> PerLayer:
        kinds = config.names("layer_types")
        count = config.number("num_hidden_layers")
        if kinds is None:
            if pattern is None:
                raise config.error("found no layer_types, which say what each layer is")
            every = config.number("sliding_window_pattern", pattern)
            kinds = [_SLIDING if (layer + 1) % every else _FULL for layer in range(count)]
        if len(kinds) != count or set(kinds) - {_SLIDING, _FULL}:
            raise config.error(
                f"layer_types: expected {_SLIDING} or {_FULL} for each of {count} layers, found "
                f"{len(kinds)} of {', '.join(sorted(set(kinds)))}"
            )
        width = _HEAD_DIM if head_dim else None
        wide = full(config, choices, width=width)
        if _SLIDING not in kinds:
            return [[wide]] * count
        window = config.number("sliding_window")
        narrow = full(config, choices, width=width, window=window + more)
        shared = min(count, config.amount("num_kv_shared_layers", 0))
        own: PerLayer = [[narrow if kind == _SLIDING else wide] for kind in kinds[: count - shared]]
        return [*own, *([] for _ in range(shared))]

    return read


def _gpt_oss(config: Config, choices: Choices) -> PerLayer:
    """``gpt_oss.py``: a window in every other layer, whatever ``layer_types`` says."""
    wide = full(config, choices)
    narrow = full(config, choices, window=config.number("sliding_window"))
    return [[wide if layer % 2 else narrow] for layer in range(config.number("num_hidden_layers"))]


def _gemma4(config: Config, choices: Choices) -> PerLayer:
    """``gemma4.py``: full attention with heads of another width, and pages that several layers
    share (the last ``num_kv_shared_layers`` have none)."""
    count = config.number("num_hidden_layers")
    kinds = config.names("layer_types") or [
        _SLIDING if (layer + 1) % 6 else _FULL for layer in range(count)
    ]
    kinds = [*kinds[:-1], _FULL]
    if len(kinds) != count or set(kinds) - {_SLIDING, _FULL}:
        raise config.error(f"layer_types: expected one for each of {count} layers, found {kinds}")
    own = config.get("per_layer_config")
    own = own if isinstance(own, dict) else None
    if own and not all(isinstance(it, dict) for it in own.values()):
        raise config.error("per_layer_config: expected an object for each layer")
    heads, width = config.number("num_key_value_heads"), config.number("head_dim")
    wide = {"head_dim": config.number("global_head_dim")}
    if config.get("attention_k_eq_v", False) and config.get("num_global_key_value_heads"):
        wide["num_key_value_heads"] = config.number("num_global_key_value_heads")
    found: PerLayer = []
    shared = min(count, config.amount("num_kv_shared_layers", 0))
    for layer, kind in enumerate(kinds[: count - shared]):
        by_kind = wide if kind == _FULL else {}
        here = by_kind if own is None else own.get(str(layer), {})
        own_pages = full(
            config,
            choices,
            heads=here.get("num_key_value_heads", heads),
            width=here.get("head_dim", width),
            window=config.number("sliding_window") if kind == _SLIDING else None,
        )
        found.append([own_pages])
    return [*found, *([] for _ in range(shared))]


_gemma3, _gemma3n, _listed = _windows(6), _windows(5), _windows()

ATTENTION: Mapping[str, Callable[[Config, Choices], PerLayer]] = {
    "AfmoeForCausalLM": _listed,
    "ApertusForCausalLM": _listed,
    "Cohere2ForCausalLM": _windows(4, more=1, head_dim=False),
    "Cohere2MoeForCausalLM": _windows(more=1),
    "DeepseekV2ForCausalLM": _deepseek,
    "DeepseekV3ForCausalLM": _deepseek,
    "Exaone4ForCausalLM": _windows(4),
    "Gemma2ForCausalLM": _windows(2),
    "Gemma3ForCausalLM": _gemma3,
    "Gemma3ForConditionalGeneration": _gemma3,
    "Gemma3nForCausalLM": _gemma3n,
    "Gemma3nForConditionalGeneration": _gemma3n,
    "Gemma4ForCausalLM": _gemma4,
    "Gemma4ForConditionalGeneration": _gemma4,
    "Gemma4UnifiedForConditionalGeneration": _gemma4,
    "GptOssForCausalLM": _gpt_oss,
    "GraniteSWAForCausalLM": _listed,
    "LagunaForCausalLM": _listed,
    "LlamaForCausalLM": _plain,
    "MistralForCausalLM": _plain,
    "Olmo3ForCausalLM": _windows(4, head_dim=False),
    "Qwen2ForCausalLM": _plain,
    "Qwen3ForCausalLM": _plain,
    "Qwen3MoeForCausalLM": _plain,
}
"""The function that reads a configuration, by vLLM's name of the model class."""
