"""Where the tokens of a page lie, against what kernels write, and for every layout of pages."""

from __future__ import annotations

import importlib.util
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from vllm import _custom_ops as ops
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, _get_attn_isa
from vllm.v1.kv_cache_interface import CircularBufferSpec, KVCacheSpec, KVQuantMode, MambaSpec

from hybrid_pages import GeometryError
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.layout.geometry import _LayerView, read_layout, whole_only
from hybrid_pages.vllm.layout.tokens import TokenPart, token_parts
from hybrid_pages.vllm.versions import pages
from simulation.config import PlainLayer, engine_config, plan_kv_caches
from simulation.engine import StartEngine
from simulation.memory import Memory
from simulation.shapes import SHAPES, attention, compressed, fp8, int8, nvfp4, nvfp4_latent

Owners = npt.NDArray[np.int64]
"""The token of each byte of an engine block, in payload order."""


def owners(parts: list[TokenPart]) -> Owners:
    """What the parts say, cell by cell."""
    found = []
    for first, dims, cell in parts:
        tokens = np.full([extent for extent, _ in dims], first)
        for axis, (extent, step) in enumerate(dims):
            shape = [extent if axis == other else 1 for other in range(len(dims))]
            tokens = tokens + (np.arange(extent) * step).reshape(shape)
        found.append(np.repeat(tokens.reshape(-1), cell))
    return np.concatenate(found)


# What the CPU's kernels write.


def written_by(isa: str, dtype: torch.dtype, fp8: bool, sizes: tuple[int, ...]) -> Owners:
    """The token that the kernel of a set of instructions writes to each byte of a block."""
    heads, tokens, content = sizes
    cached = torch.uint8 if fp8 else dtype
    found = np.full(heads * tokens * content * cached.itemsize, -1)
    for token in range(tokens):
        key, value = torch.randn(2, 1, heads, content // 2).to(dtype)
        after = []
        for before in (0xA5, 0x5A):  # what stays differs, what is written is the same
            page = torch.full((len(found),), before, dtype=torch.uint8)
            cache = page.view(cached).view(1, heads, tokens * 2, content // 2)
            keys, values = cache.chunk(2, dim=2)
            slot = torch.tensor([token])
            kind = "fp8" if fp8 else "auto"
            ops.cpu_attn_reshape_and_cache(key, value, keys, values, slot, isa, 1.0, 1.0, kind)
            after.append(page.numpy())
        mine = after[0] == after[1]
        assert (found[mine] == -1).all(), "two tokens share a byte"
        found[mine] = token
    assert (found >= 0).all(), "some bytes belong to no token"
    return found


@pytest.mark.parametrize("isa", pages.BY_INSTRUCTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("fp8", [False, True])
def test_the_cpus_kernels_place_tokens_as_the_parts_say(
    isa: str, dtype: torch.dtype, fp8: bool
) -> None:
    if fp8 and isa == "vec16":
        pytest.skip("vLLM has no such kernel")
    if not hasattr(torch.ops._C, "cpu_attn_reshape_and_cache"):
        pytest.skip("only the installed vLLM has its kernels")
    sizes = (2, 64, 2 * 64)
    item = 1 if fp8 else dtype.itemsize
    parts = token_parts(pages.BY_INSTRUCTIONS[isa], [1, *sizes], range(4), item)
    assert parts is not None
    found = written_by(isa, dtype, fp8, sizes)
    np.testing.assert_array_equal(owners(parts), found)
    wrong = token_parts("strides", [1, *sizes], range(4), item)
    assert wrong is not None
    assert (owners(wrong) != found).any(), "strides alone do not say it"


def test_kernel_blocks_follow_each_other() -> None:
    whole = token_parts("columns", [1, 2, 32, 64], range(4), 2)
    split = token_parts("columns", [3, 2, 32, 64], range(4), 2)
    assert whole is not None and split is not None
    expected = [owners(whole) + kernel * 32 for kernel in range(3)]
    np.testing.assert_array_equal(owners(split), np.concatenate(expected))


@pytest.mark.parametrize("placement", ["columns", "tiles"])
def test_a_page_that_no_kernel_of_the_cpu_could_use_has_no_parts(
    placement: versions.Placement,
) -> None:
    assert token_parts(placement, [1, 2, 32, 64], [0, 2, 1, 3], 2) is None
    assert token_parts(placement, [1, 2, 32, 63], range(4), 2) is None
    assert token_parts("tiles", [1, 2, 24, 64], range(4), 2) is None


def test_this_machines_instructions_are_known() -> None:
    assert _get_attn_isa(torch.bfloat16, 32, 64) in pages.BY_INSTRUCTIONS


# What strides say.


@pytest.mark.every_version
@pytest.mark.parametrize("name", SHAPES)
def test_strides_say_where_the_tokens_of_every_layout_lie(name: str) -> None:
    shape = SHAPES[name]
    config = engine_config(
        shape,
        blocks=96,
        batched_tokens=64,
        requests=2,
        ranks=1,
        async_scheduling=False,
        connector=None,
    )
    _, (plan,), *_ = plan_kv_caches(config, shape)
    specs = [group.kv_cache_spec for group in plan.kv_cache_groups]
    kernels = [
        spec.block_size
        if shape.kernel_tokens is None or isinstance(spec, MambaSpec | CircularBufferSpec)
        else shape.kernel_tokens
        for spec in specs
    ]
    memory = Memory(plan, shape.layout, kernels, 0)
    geometry, maps = read_layout(config, plan, memory.tensors)
    rng = random.Random(name)
    cut = [each for each in maps if each.tokens is not None]
    for each in cut:
        layer_name = geometry.groups[each.group].layers[each.layer].name
        layer = next(one for group in memory.groups for one in group if one.name == layer_name)
        tokens = layer.live.shape[1] * layer.live.shape[2]
        token = rng.randrange(tokens)
        memory.forget()
        row = np.full((1, layer.token_bytes), 0x11, np.uint8)
        layer.write_tokens([3], np.array([token]), row)
        start = each.address - memory.tensors[layer_name].untyped_storage().data_ptr()
        start += 3 * each.block_stride
        page = np.concatenate(
            [memory._raw[start + offset :][:length] for offset, length in each.runs]
        )
        np.testing.assert_array_equal(page == 0x11, owners(list(each.tokens or ())) == token)
    assert len(cut) or "nvfp4" in name or "compressed" in name
    uncut = {geometry.groups[each.group].kind for each in maps if each.tokens is None}
    assert (whole_only(geometry, maps) is None) == (uncut <= {"recurrent"})


# What is stored of a page.


# Known report: LMCache#4870.
@pytest.mark.parametrize("name", ["kda-latent-kernel-blocks", "padded-attention"])
def test_all_kernel_blocks_of_a_page_are_restored_and_none_of_its_padding(
    name: str, start: StartEngine
) -> None:
    """The engine compares every byte, and whatever else was written is an `UnexpectedWrite`."""
    engine, prompt = start(SHAPES[name], extra={"verify_on_load": True}), list(range(200))
    engine.generate(prompt)
    engine.forget_local()
    assert engine.generate(prompt).restored_tokens >= 6 * 32
    engine.check_idle()


def test_a_page_of_which_one_kernel_block_is_stored_is_refused(
    start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = _LayerView.runs

    def of_the_first(view: _LayerView) -> list[tuple[int, int]]:
        return [(offset, size // view.kernel_blocks) for offset, size in runs(view)]

    monkeypatch.setattr(_LayerView, "runs", of_the_first)
    with pytest.raises(GeometryError, match="expected runs of 1024 bytes in all, found 256"):
        start(SHAPES["kda-latent-kernel-blocks"])


# Which kernels are known.


def config_of(**layers: Any) -> Any:
    made = SimpleNamespace(static_forward_context=layers)
    return SimpleNamespace(compilation_config=made)


class CpuLayer:
    isa = "vec"

    def get_attn_backend(self) -> type[CPUAttentionBackend]:
        return CPUAttentionBackend


class OtherLayer:
    def get_attn_backend(self) -> type[OtherLayer]:
        return OtherLayer


@pytest.mark.every_version
def test_pages_of_unknown_kernels_and_formats_are_stored_whole() -> None:
    made = config_of(plain=PlainLayer(), cpu=CpuLayer(), other=OtherLayer())

    def placed(layer: str, spec: KVCacheSpec) -> versions.Placement | None:
        return versions.placement(made, layer, spec)

    assert placed("plain", attention()) == placed("plain", fp8()) == "strides"
    assert placed("plain", int8()) == "strides"
    assert placed("cpu", attention()) == "columns"
    assert placed("cpu", fp8()) == "columns"
    for layer, spec in [
        ("other", attention()),
        ("not there", attention()),
        ("plain", nvfp4()),
        ("plain", nvfp4_latent()),
        ("plain", compressed()),
    ]:
        assert placed(layer, spec) is None
    made = config_of(cpu=SimpleNamespace(get_attn_backend=CpuLayer().get_attn_backend, isa="new"))
    assert placed("cpu", attention()) is None
    del made.compilation_config.static_forward_context["cpu"].isa
    assert placed("cpu", attention()) is None


@pytest.mark.every_version
def test_every_format_was_looked_at() -> None:
    assert set(pages._IN_CELLS) < set(versions.PAGE_FORMATS) <= set(KVQuantMode.__members__)


@pytest.mark.every_version
@pytest.mark.parametrize("name", sorted(pages.BY_STRIDES | {pages.CPU}))
def test_every_known_backend_is_there(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    with open(spec.origin) as file:
        text = file.read()
    assert f"class {attribute}(" in text or f"\n{attribute} = " in text
