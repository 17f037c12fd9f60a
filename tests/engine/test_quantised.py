"""Quantised KV caches on real engines: pages carry all that reading them takes."""

import pytest
import torch
from vllm.v1.kv_cache_interface import KVQuantMode

from harness import Engine, tokens
from test_detects import zero


@pytest.fixture(
    scope="module", params=[("qwen3.5", "fp8"), ("llama", "fp8_e5m2"), ("granite4", "fp8_e4m3")]
)
def engine(request, start):
    if not (torch.cpu._is_avx512_supported() or torch.cpu._is_amx_tile_supported()):
        pytest.skip("vLLM's fp8 caches on x86 need AVX-512 or AMX: this CPU has neither")
    model, cache_dtype = request.param
    return start(model, kv_cache_dtype=cache_dtype)


def test_pages_are_quantised_and_the_identity_names_the_format(engine: Engine):
    specs = [group.kv_cache_spec for group in engine.scheduler.kv_cache_config.kv_cache_groups]
    modes = {getattr(spec, "kv_quant_mode", None) for spec in specs} - {None}
    assert modes == {KVQuantMode.FP8_PER_TENSOR}
    identity = engine.worker.geometry.identity
    assert set(identity["page_formats"].split(",")) == {"FP8_PER_TENSOR"}
    assert identity["cache_dtype"].startswith("fp8")


def test_the_first_resend_is_restored_bit_for_bit(engine: Engine):
    prompt = tokens("quantised", 4 * engine.N + 13)
    assert engine.restored([prompt], prompt, 8).host == 4 * engine.N


def test_a_fork_is_restored_bit_for_bit(engine: Engine):
    shared = tokens("quantised fork", 3 * engine.N + 5)
    prompts = [shared + tokens(("quantised", i), 2 * engine.N) for i in range(3)]
    assert engine.restored(prompts[:2], prompts[2], 8).host == 3 * engine.N


def test_a_zeroed_page_shows(engine: Engine):
    prompt = tokens("zeroed", 4 * engine.N + 3)
    reference = engine.restored([prompt], prompt, 8)
    engine.reset_all()
    for _ in range(2):
        engine.run(prompt)
        engine.reset_local()
    for slots in engine.slots_of_last("attention"):
        zero(engine.half.connection.arena, slots)
    wrong = engine.run(prompt, 8)
    assert wrong.host == reference.host
    assert wrong.distance(reference) > 0.05
