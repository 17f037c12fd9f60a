"""The formulas of `hybrid_pages.models` against vLLM's own code, over its registry."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm
from vllm.distributed.utils import get_pp_indices
from vllm.model_executor.models import ModelRegistry, registry
from vllm.model_executor.models.config import MODELS_CONFIG_MAP
from vllm.model_executor.models.interfaces import supports_pp
from vllm.platforms.interface import Platform
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.core.kv_cache_utils import resolve_dcp_kv_block_size
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

from hybrid_pages import Layer, Segment
from hybrid_pages.models.blocks import LayerGroup, _of_one_page, _Spec, plan
from hybrid_pages.models.choices import Choices
from hybrid_pages.models.config import Config
from hybrid_pages.models.families import DEFAULTS, NO_STAGES, READERS, REFUSED, layers_of, stages_of
from hybrid_pages.models.layers import Attention, RecurrentState
from hybrid_pages.models.stages import split
from hybrid_pages.vllm.layout.stages import Stage, Stages
from model_configs import ATTENTION, QWEN35_08B, QWEN36_27B, RECURRENT, config_of

try:
    from vllm.v1.core import kv_cache_planning as planning
except ImportError:
    from vllm.v1.core import kv_cache_utils as planning

pytestmark = pytest.mark.every_version

ARCHITECTURES = registry._VLLM_MODELS
HERE = sorted(set(RECURRENT) & set(ARCHITECTURES))
# Whose hooks change other things than the type of states.
NO_TYPES = {
    "AliceAIForCausalLM",
    "JambaForSequenceClassification",
    "KimiK3ForConditionalGeneration",
}
# Needs a package that is not installed; it embeds pictures.
NO_CLASS = {"Terratorch"}
DTYPES = {2: torch.bfloat16, 4: torch.float32}


def model_class(architecture: str) -> Any:
    module, name = ARCHITECTURES[architecture]
    if not module.startswith("vllm."):
        module = f"vllm.model_executor.models.{module}"
    return getattr(importlib.import_module(module), name)


def sources(architecture: str) -> str:
    """The text of the module that an architecture is in."""
    module = ARCHITECTURES[architecture][0]
    root = Path(vllm.__file__).parent
    if module.startswith("vllm."):
        place = root.parent / module.replace(".", "/")
        files = [path for path in place.rglob("*.py") if "amd" not in path.parts]
    else:
        files = [root / "model_executor" / "models" / f"{module.replace('.', '/')}.py"]
    return "".join(path.read_text() for path in files if path.is_file())


def namespace(values: dict[str, Any], **more: Any) -> SimpleNamespace:
    """A configuration as vLLM's classes read it."""
    made = {"mamba_d_ssm": None, "speculative_config": None, **values, **more}
    return SimpleNamespace(**made)


def vllm_config(architecture: str, ranks: int, ssm: str, drafts: int) -> SimpleNamespace:
    values = config_of(architecture)
    inner = values.get("text_config") or values.get("llm_config")
    text = namespace(DEFAULTS.get(architecture, {}) | (inner or values))
    outer = namespace({k: v for k, v in values.items() if not isinstance(v, dict)})
    outer.text_config = text
    cache = SimpleNamespace(
        mamba_cache_dtype="auto",
        mamba_ssm_cache_dtype=ssm,
        use_replayssm=False,
        use_kda_recoverssm=False,
    )

    def of(model: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(
            model_config=SimpleNamespace(
                hf_config=model, hf_text_config=text, dtype=torch.bfloat16
            ),
            parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
            cache_config=cache,
            speculative_config=SimpleNamespace(num_speculative_tokens=drafts) if drafts else None,
            num_speculative_tokens=drafts,
            with_hf_config=lambda given: of(given),
        )

    return of(outer if inner else text)


@pytest.mark.parametrize("architecture", HERE)
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("ssm", ["auto", "float32", "bfloat16"])
@pytest.mark.parametrize("drafts", [0, 3])
def test_states_are_those_of_the_model_class(architecture, ranks, ssm, drafts):
    if drafts and "Lfm2" in architecture:
        pytest.skip("the class leaves out what drafts add; its layers do not: test_real_models.py")
    found = vllm_config(architecture, ranks, ssm, drafts)
    hook = MODELS_CONFIG_MAP.get(architecture)
    if hook is not None and architecture not in NO_TYPES:
        hook.verify_and_update_config(found)
    cls = model_class(architecture)
    shapes = cls.get_mamba_state_shape_from_config(found)
    dtypes = cls.get_mamba_state_dtype_from_config(found)
    layers = layers_of(
        Config("config.json", config_of(architecture)),
        Choices(ranks=ranks, ssm_dtype=ssm, drafts=drafts),
    )
    (state,) = {layer for layer in layers if isinstance(layer, RecurrentState)}
    assert state.shapes == tuple(map(tuple, shapes))
    assert tuple(DTYPES[it] for it in state.element_bytes) == tuple(dtypes)
    assert (
        state.nbytes
        == MambaSpec(block_size=-1, shapes=tuple(shapes), dtypes=tuple(dtypes)).page_size_bytes
    )


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_every_hybrid_architecture_is_known_or_refused_by_name(architecture):
    """Hybrid by its class, or with windows in some of its layers by its source."""
    text = sources(architecture)
    hybrid = False
    if "IsHybrid" in text or "IsAttentionFree" in text or "get_mamba_state_shape" in text:
        cls = SimpleNamespace() if architecture in NO_CLASS else model_class(architecture)
        hybrid = getattr(cls, "is_hybrid", False) or getattr(cls, "is_attention_free", False)
    if hybrid or re.search(r"per_layer_sliding_window=|SlidingWindow\w*Spec\(", text):
        assert architecture in READERS or architecture in REFUSED


def test_hybrid_architectures_that_inherit_are_found():
    assert {"ClefFlashForJointSchema", "Qwen3_5ForCausalLM"} <= set(READERS)


def test_families_of_the_newest_version_are_all_real():
    if "AliceAIForCausalLM" not in ARCHITECTURES:
        pytest.skip("an older version")
    assert set(RECURRENT) <= set(ARCHITECTURES)
    assert set(REFUSED) <= set(ARCHITECTURES) | set(registry._PREVIOUSLY_SUPPORTED_MODELS)
    assert {name for name in ATTENTION if name not in ARCHITECTURES} == set()


# ---- blocks and groups


def spec_of(layer: Any, block: int, padded: int | None = None) -> Any:
    if isinstance(layer, RecurrentState):
        return MambaSpec(
            block_size=block,
            shapes=layer.shapes,
            dtypes=tuple(DTYPES[it] for it in layer.element_bytes),
            page_size_padded=padded,
            mamba_cache_mode="align",
        )
    common = dict(block_size=block, num_kv_heads=layer.heads, dtype=torch.bfloat16)
    if layer.latent:
        return MLAAttentionSpec(head_size=layer.elements, **common)
    common["head_size"] = layer.elements // 2
    if layer.window is not None:
        return SlidingWindowSpec(sliding_window=layer.window, **common)
    return FullAttentionSpec(**common)


@pytest.mark.parametrize("architecture", sorted(READERS))
@pytest.mark.parametrize("ranks", [1, 4])
def test_groups_are_those_that_vllm_makes(architecture, ranks):
    config = Config("config.json", config_of(architecture))
    layers = layers_of(config, Choices(ranks=ranks))
    found = plan(layers, ranks=ranks)
    states = [group for group in found.groups if group.is_recurrent]
    block, padded = 16, None
    if states:
        block, padded = states[0].block_tokens, states[0].block_bytes
    specs = {str(at): spec_of(layer, block, padded) for at, layer in enumerate(layers)}
    stub = SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        attention_config=SimpleNamespace(hisparse_config=None),
        cache_config=SimpleNamespace(
            get_resolved_kv_cache_layout=lambda: SimpleNamespace(is_block_outermost=False)
        ),
        speculative_config=None,
    )
    made = planning.get_kv_cache_groups(stub, specs)
    assert sorted((group.block_tokens, len(group.layers)) for group in found.groups) == sorted(
        (group.kv_cache_spec.block_size, len(group.layer_names)) for group in made
    )
    if not any(group.window for group in found.groups):
        divided = plan(layers, ranks=ranks, context=2)
        assert sorted(group.block_tokens for group in divided.groups) == sorted(
            resolve_dcp_kv_block_size(group.kv_cache_spec, 2) for group in made
        )
    if architecture not in NO_STAGES and len(set(layers)) > 1:
        # Stages as the connector joins them, over the groups that vLLM makes.
        staged = stages_of(config, Choices(ranks=ranks, stages=3))
        of_layer = [stage for stage, count in enumerate(staged) for _ in range(count)]
        n = found.block_tokens

        def bytes_of(at: int, group: Any) -> int:
            layer = layers[at]
            if isinstance(layer, RecurrentState):
                return layer.nbytes
            count = LayerGroup((layer,), group.kv_cache_spec.block_size, 0, ()).entry_blocks(n)
            return count * group.kv_cache_spec.block_size * layer.token_bytes

        joined = Stages(
            [
                Stage(
                    [
                        [
                            Layer(name, [Segment("all", "uint8", [bytes_of(int(name), group)])])
                            for name in group.layer_names
                            if of_layer[int(name)] == stage
                        ]
                        for group in made
                    ],
                    {},
                )
                for stage in range(3)
            ]
        )
        planned = plan(layers, ranks=ranks, stages=staged)
        expected = sum(layer.bytes for group in joined.layers for layer in group)
        assert planned.page_bytes + planned.checkpoint_bytes == 3 * ranks * expected


@pytest.mark.parametrize("partition", [None, "1,5,1"])
def test_layers_are_divided_as_vllm_divides_them(monkeypatch, partition):
    if partition is not None:
        monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", partition)
    counts = range(1, 40) if partition is None else [7]
    for count in counts:
        for stages in range(1, count + 1) if partition is None else [3]:
            ends = [get_pp_indices(count, stage, stages) for stage in range(stages)]
            assert split(count, stages, partition) == [end - start for start, end in ends]


def test_families_without_stages_are_those_of_vllm():
    here = {name for name in READERS if name in ARCHITECTURES}
    found = {name for name in here if not supports_pp(model_class(name))}
    assert found == NO_STAGES & here


class Backend:
    """An attention backend of CUDA, as far as block sizes go."""

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[Any]:
        return [MultipleOf(16)]

    @staticmethod
    def customize_spec(spec: Any) -> Any:
        return spec


@pytest.mark.parametrize("alignment", [None, 64])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("config", [QWEN36_27B, QWEN35_08B, *map(config_of, HERE)])
def test_blocks_are_as_long_as_vllm_makes_them(monkeypatch, config, ranks, alignment):
    own = Config("config.json", config)
    layers = layers_of(own, Choices(ranks=ranks))
    states = [layer for layer in layers if isinstance(layer, RecurrentState)]
    (attention,) = {layer for layer in layers if isinstance(layer, Attention)}
    exports = states[0].export
    if alignment and exports != "flashinfer":
        pytest.skip("these kernels have no choice of 64 tokens")
    cache = SimpleNamespace(
        cache_dtype="auto",
        block_size=16,
        mamba_cache_mode="align",
        mamba_block_size=None,
        mamba_page_size_padded=None,
        kv_cache_dtype_skip_layers=[],
    )
    stub = SimpleNamespace(
        cache_config=cache,
        parallel_config=None,
        model_config=SimpleNamespace(
            dtype=torch.bfloat16,
            use_mla=attention.latent,
            architecture="",
            get_num_kv_heads=lambda _: attention.heads,
            get_head_size=lambda: attention.elements // (1 if attention.latent else 2),
        ),
    )
    cls = SimpleNamespace(
        get_mamba_state_shape_from_config=lambda _: states[0].shapes,
        get_mamba_state_dtype_from_config=lambda _: tuple(
            DTYPES[it] for it in states[0].element_bytes
        ),
    )
    monkeypatch.setattr(ModelRegistry, "resolve_model_cls", lambda *_, **__: (cls, ""))
    monkeypatch.setattr(Platform, "_find_non_ssm_backends", lambda _: [Backend])
    monkeypatch.setattr("vllm.config.vllm.set_current_vllm_config", Nothing)
    name = "vllm.model_executor.layers.mamba.abstract.get_mamba_prefill_checkpoint_alignment"
    has_alignment = True
    try:
        monkeypatch.setattr(name, lambda _: alignment)
    except AttributeError:
        has_alignment = False
    if alignment and not has_alignment:
        pytest.skip("this version aligns nothing to exported states")
    Platform._align_hybrid_block_size(stub, Backend)
    found = plan(layers, ranks=ranks, exports=bool(alignment))
    assert found.block_tokens == cache.block_size
    for group in found.groups:
        if group.is_recurrent:
            assert group.block_bytes == (cache.mamba_page_size_padded or states[0].nbytes)


class Nothing:
    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass


def test_pages_that_do_not_fit_are_padded_as_vllm_pads_them():
    wide = Attention(heads=3, elements=64, element_bytes=2)
    narrow = Attention(heads=2, elements=64, element_bytes=2, window=64)
    ours = _of_one_page([_Spec(it, 16, 16 * it.token_bytes) for it in (wide, narrow)])
    theirs = planning.unify_kv_cache_spec_page_size(
        {str(at): spec_of(it, 16) for at, it in enumerate((wide, narrow))}
    )
    assert [(it.block_tokens, it.page_bytes) for it in ours] == [
        (it.block_size, it.page_size_bytes) for it in theirs.values()
    ]
