"""The identity under which an engine's entries outlive it: what changes it, and what has none."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import VllmConfig
from vllm.lora.request import LoRARequest
from vllm.model_executor.custom_op import CustomOp

from hybrid_pages import Geometry
from hybrid_pages.adapter.errors import UnsupportedError
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.config import identity
from hybrid_pages.vllm.config.identity import ModelFacts, require_lasting
from hybrid_pages.vllm.layout import geometry
from hybrid_pages.vllm.scheduler.stale import lora
from hybrid_pages.vllm.scheduler.stale.lora import LastingNames
from simulation.config import SimulatedHybridForCausalLM, _base, plan_kv_caches, save_model
from simulation.shapes import GDN

WEIGHTS = "model.safetensors"


def safetensors(path: Path, data: bytes) -> None:
    header = json.dumps(
        {"t": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}
    )
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + data)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    save_model(folder, SimulatedHybridForCausalLM.__name__)
    safetensors(folder / WEIGHTS, bytes(1000))
    return folder


@pytest.fixture
def config(model: Path) -> VllmConfig:
    found = copy.deepcopy(_base())
    found.model_config.model = str(model)
    return found


GEOMETRY = Geometry.from_json(
    '{"block_tokens":16,"format_version":2,"groups":[{"kind":"attention","layers":[{"name":"a",'
    '"segments":[{"dtype":"uint8","name":"kv","shape":[4]}]}]}],"identity":{"model":"x"},"ranks":1}'
)


def of(config: VllmConfig, geometry: Geometry = GEOMETRY) -> bytes:
    return ModelFacts(config).identity(geometry)


def test_another_path_and_other_times_give_the_same(config: VllmConfig, tmp_path: Path) -> None:
    mine = of(config)
    moved = tmp_path / "other" / "place"
    shutil.copytree(config.model_config.model, moved)
    there = copy.deepcopy(config)
    there.model_config.model = there.model_config.hf_config._name_or_path = str(moved)
    elsewhere = Geometry.from_json(GEOMETRY.to_json().replace('"x"', '"y"'))
    assert of(there, elsewhere) == mine


def change(path: str, value: Any) -> Callable[[VllmConfig], None]:
    def act(config: VllmConfig) -> None:
        *owners, name = path.split(".")
        target: Any = config
        for owner in owners:
            target = getattr(target, owner)
        assert getattr(target, name) != value
        object.__setattr__(target, name, value)

    return act


def flip(config: VllmConfig) -> None:
    path = Path(config.model_config.model) / WEIGHTS
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)


CHANGES = {
    "a byte of the weights": flip,
    "config": change("model_config.hf_config.rope_parameters", {"rope_theta": 7.0}),
    "dtype": change("model_config.dtype", torch.float32),
    "quantisation": change("model_config.quantization", "fp8"),
    "quantisation's settings": change("model_config.quantization_config", {"a": 1}),
    "implementation": change("model_config.model_impl", "transformers"),
    "length": change("model_config.max_model_len", 999),
    "state dtype": change("cache_config.mamba_ssm_cache_dtype", "float16"),
    "conv dtype": change("cache_config.mamba_cache_dtype", "float16"),
    "layers not quantised": change("cache_config.kv_cache_dtype_skip_layers", ["0"]),
    "attention's settings": change("attention_config.flash_attn_version", 3),
    "states' settings": change("mamba_config.enable_stochastic_rounding", True),
    "more settings": change("additional_config", {"gdn_prefill_backend": "triton"}),
    "experts": change("parallel_config.enable_expert_parallel", True),
}


@pytest.mark.parametrize("what", CHANGES)
def test_every_ingredient_changes_it(config: VllmConfig, what: str) -> None:
    mine = of(config)
    CHANGES[what](config)
    assert of(config) != mine


@pytest.mark.parametrize("name", ["vLLM", "torch", "seed", "platform", "drafts", "adapters"])
def test_so_do_versions_seed_drafts_and_the_machine(
    config: VllmConfig, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    mine = of(config)
    if name == "vLLM":
        monkeypatch.setattr(versions, "installed", lambda: "0.33.9")
    elif name == "torch":
        monkeypatch.setattr(identity, "version", lambda package: f"{package} 9.9")
    elif name == "seed":
        monkeypatch.setenv("PYTHONHASHSEED", "3")
    elif name == "platform":
        monkeypatch.setattr(identity.platform, "machine", lambda: "riscv")
    elif name == "adapters":
        config.lora_config = SimpleNamespace(lora_dtype=torch.float16)
    else:
        config.speculative_config = SimpleNamespace(
            method="eagle", draft_model_config=config.model_config
        )
    assert of(config) != mine


def test_nothing_that_differs_between_processes_is_written() -> None:
    names = [f"layer{index}" for index in range(50)]
    assert identity._text({"a": set(names)}) == identity._text({"a": set(reversed(names))})
    assert identity._text([object()]) == identity._text([object()])
    assert identity._text([torch.float16]) != identity._text([torch.float32])


def test_drafts_from_the_text_change_nothing(config: VllmConfig) -> None:
    mine = of(config)
    config.speculative_config = SimpleNamespace(method="ngram")
    assert of(config) == mine


def test_the_setting_of_a_backend_does_not_count(config: VllmConfig) -> None:
    mine = of(config)
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    config.attention_config.backend = AttentionBackendEnum.CPU_ATTN
    assert of(config) == mine


class _Backend:
    pass


class _Other:
    pass


class _Operator(CustomOp):
    def __init__(self, method: Callable[..., Any]) -> None:
        torch.nn.Module.__init__(self)
        self._forward_method = method


class _Layer(torch.nn.Module):
    def __init__(self, backend: type, method: Callable[..., Any]) -> None:
        super().__init__()
        self.backend, self.operator = backend, _Operator(method)

    def get_attn_backend(self) -> type:
        return self.backend


def fast() -> None: ...


def slow() -> None: ...


def test_the_kernels_that_were_chosen_are_in_the_geometry(config: VllmConfig) -> None:
    _, plans, *_ = plan_kv_caches(_planned(config), GDN)
    names = plans[0].kv_cache_groups[0].layer_names
    found = set()
    for backend, method in [(_Backend, fast), (_Other, fast), (_Backend, slow)]:
        made = {name: _Layer(backend, method) for name in names}
        config.compilation_config.static_forward_context = made
        named = geometry._identity(config, plans[0], geometry.block_grid(plans[0]), [])["kernels"]
        assert backend.__name__ in named and method.__name__ in named
        found.add(named)
    assert len(found) == 3


def test_the_instructions_that_pages_depend_on_are_in_the_geometry(config: VllmConfig) -> None:
    """vLLM's pages for CPUs lie otherwise on a processor with AMX."""
    layer = _Layer(_Backend, fast)
    config.compilation_config.static_forward_context = {"layer": layer}
    plain = versions.kernels_of(config, ["layer"])
    layer.isa = "amx"
    assert versions.kernels_of(config, ["layer"]) != plain


def _planned(config: VllmConfig) -> VllmConfig:
    config.cache_config.block_size = config.cache_config.mamba_block_size = GDN.block_tokens
    config.cache_config.mamba_cache_mode = "align"
    config.cache_config.kv_cache_layout = GDN.layout
    config.cache_config.num_gpu_blocks = 96
    return config


# What has none.


@pytest.mark.parametrize(
    "load_format", ["dummy", "tensorizer", "ipc_cache", "modelexpress", "my_plugin"]
)
def test_weights_that_are_in_no_file_are_refused(config: VllmConfig, load_format: str) -> None:
    config.load_config.load_format = load_format
    with pytest.raises(UnsupportedError, match=f"disk_path: load_format: .*{load_format}.*files"):
        require_lasting(config)


def test_an_object_store_is_refused(config: VllmConfig) -> None:
    config.model_config.model_weights = "s3://bucket/model"
    with pytest.raises(UnsupportedError, match=r"disk_path: model: .*s3://bucket/model.*copy it"):
        require_lasting(config)


def test_classes_of_the_users_are_refused(config: VllmConfig) -> None:
    config.model_config.model_class_overrides = {"A": "b:C"}
    with pytest.raises(UnsupportedError, match="disk_path: model_class_overrides"):
        require_lasting(config)


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor"])
def test_hashes_with_a_random_seed_are_refused(
    config: VllmConfig, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    config.cache_config.prefix_caching_hash_algo = algorithm
    with pytest.raises(UnsupportedError, match=r"disk_path: .*random seed: set PYTHONHASHSEED"):
        require_lasting(config)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    require_lasting(config)


@pytest.mark.parametrize("left", ["nothing", "a config", "an unknown name"])
def test_files_that_are_not_there_are_refused(config: VllmConfig, left: str) -> None:
    folder = Path(config.model_config.model)
    if left == "an unknown name":
        config.model_config.model = "nobody/no-such-model"
    elif left == "nothing":
        shutil.rmtree(folder)
        folder.mkdir()
    else:
        (folder / WEIGHTS).unlink()
    with pytest.raises(UnsupportedError, match="disk_path: model"):
        of(config)


def test_a_model_of_the_hub_is_found_in_the_local_cache(
    config: VllmConfig, model: Path, tmp_path: Path
) -> None:
    mine = of(config)
    cached = tmp_path / "hub" / "models--some--model"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0" * 40)
    shutil.copytree(model, cached / "snapshots" / ("0" * 40))
    config.model_config.model = "some/model"
    config.load_config.download_dir = str(tmp_path / "hub")
    assert of(config) == mine


def test_weights_that_may_change_in_the_engine_give_a_new_one_each_time(config: VllmConfig) -> None:
    config.weight_transfer_config = SimpleNamespace(backend="nccl")
    assert of(config) != of(config)


# Adapters.


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"r": 8}')
    safetensors(folder / "adapter_model.safetensors", b"12345678")
    return folder


def test_an_adapter_is_named_by_its_files(adapter: Path, tmp_path: Path) -> None:
    name = LastingNames().name(LoRARequest("a", 1, str(adapter)))
    names = LastingNames()
    for _ in range(2):
        assert names.name(LoRARequest("a", 7, str(adapter))) == name
    shutil.copytree(adapter, tmp_path / "b")
    assert LastingNames().name(LoRARequest("a", 1, str(tmp_path / "b"))) == name
    safetensors(tmp_path / "b" / "adapter_model.safetensors", b"12345679")
    assert LastingNames().name(LoRARequest("a", 1, str(tmp_path / "b"))) != name
    fused = LoRARequest("a", 1, str(adapter), is_3d_lora_weight=True)
    assert LastingNames().name(fused) != name


@pytest.mark.parametrize("how", ["missing", "no weights", "unknown"])
def test_an_adapter_without_files_has_a_name_in_this_process_alone(adapter: Path, how: str) -> None:
    path = str(adapter)
    if how == "missing":
        path += "/nowhere"
    elif how == "unknown":
        path = "nobody/no-such-adapter"
    else:
        (adapter / "adapter_model.safetensors").unlink()
    here, later = LastingNames(), LastingNames()
    request = LoRARequest("a", 1, path)
    assert here.name(request) == here.name(request) != later.name(request)
    assert here.name(LoRARequest("b", 2, path)) != here.name(request)


def test_files_that_are_newer_than_the_engine_name_nothing(adapter: Path) -> None:
    """They may have been written between their load and their first request."""
    names, request = LastingNames(), LoRARequest("a", 1, str(adapter))
    names._started -= 60 * 10**9
    assert names.name(request) != LastingNames().name(request)


def test_files_that_change_after_they_were_read_name_nothing(adapter: Path) -> None:
    names, request = LastingNames(), LoRARequest("a", 1, str(adapter))
    before = names.name(request)
    (adapter / "adapter_config.json").write_text('{"r": 16}')
    after = names.name(request)
    assert after == names.name(request) != before
    assert after != LastingNames().name(request)


def test_an_adapter_that_is_forgotten_is_read_again(
    adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lora, "_MOST", 1)
    names = LastingNames()
    first = names.name(LoRARequest("a", 1, str(adapter)))
    names.name(LoRARequest("b", 2, str(adapter)))
    assert len(names._known) == 1
    assert names.name(LoRARequest("a", 1, str(adapter))) == first
