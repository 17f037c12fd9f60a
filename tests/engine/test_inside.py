"""Engines configured otherwise go on from the ends of answers, bit for bit, from the host or from
vLLM's own pool."""

import pytest
import torch
from vllm.lora.request import LoRARequest

from harness import Engine, tokens
from test_detects import zero
from test_lora import folders  # noqa: F401 (a fixture)

FP8 = {"kv_cache_dtype": "fp8_e4m3"}
"""vLLM's fp8 caches on x86 need AVX-512 or AMX."""
ENGINES = {
    "adapters, quantised, synchronous": (
        "qwen3.5",
        FP8 | {"enable_lora": True, "max_lora_rank": 8, "async_scheduling": False},
    ),
    "states that are exported, steps shorter than a block": (
        "granite4",
        FP8 | {"max_num_batched_tokens": 24, "max_num_seqs": 8},
    ),
    "larger blocks, a state kept at every boundary": (
        "qwen3.5",
        {"block_size": 96, "prefix_cache_retention_interval": 96},
    ),
}


@pytest.fixture(scope="module", params=ENGINES)
def engine(request, start):
    model, options = ENGINES[request.param]
    if not (torch.cpu._is_avx512_supported() or torch.cpu._is_amx_tile_supported()):
        options = {key: value for key, value in options.items() if key not in FP8}
    return start(model, inside=True, **options)


@pytest.mark.parametrize("length", [20, 133])
def test_the_end_of_an_answer_is_gone_on_from(engine: Engine, length, folders):  # noqa: F811
    """One token is computed, as in the answer that went on by itself; a zeroed state shows."""
    adapters = engine.vllm.vllm_config.lora_config is not None
    lora = LoRARequest("one", 1, folders[0]) if adapters else None
    prompt, said = tokens(("inside", length), length), 5
    engine.reset_all()
    whole = engine.run(prompt, 9, lora=lora)
    engine.reset_all()
    longer = (*prompt, *engine.run(prompt, said, lora=lora).tokens)
    for spoil in (False, True):
        engine.reset_local()
        if spoil and not adapters:
            (state,) = engine.slots_of_last("recurrent")
            zero(engine.half.connection.arena, [state[0]])
        rest = engine.run(longer, 9 - said, lora=lora)
        assert rest.host == len(longer) - 1
        equal = (rest.tokens, rest.logprobs) == (whole.tokens[said:], whole.logprobs[said:])
        assert equal is not (spoil and not adapters)
    if adapters:
        engine.reset_local()
        assert engine.run(longer, 2).resumed == 0, "another adapter's"
    assert not any(key.startswith("failures") for key in engine.stats())


def kept(engine: Engine) -> list[int]:
    """The blocks of the one tail in vLLM's pool."""
    (tail,) = (
        tail
        for of_depth in engine.half.engine_tails._kept.values()
        for of_stem in of_depth.values()
        for tail in of_stem.values()
    )
    return [block.block_id for block in tail.blocks]


@pytest.mark.parametrize("length", [20, 133])
def test_once_the_host_is_full_the_engine_keeps_the_end(
    engine: Engine,
    length,
    monkeypatch,
    folders: list[str],  # noqa: F811
):
    """The host has lost all by the next turn; a zeroed state shows."""
    adapters = engine.vllm.vllm_config.lora_config is not None
    lora = LoRARequest("one", 1, folders[0]) if adapters else None
    prompt, said = tokens(("kept", length), length), 5
    engine.reset_all()
    whole = engine.run(prompt, 9, lora=lora)
    monkeypatch.setattr(engine.half.connection.checkpoints, "_has_evicted", True)
    for spoil in (False, True):
        engine.reset_all()
        longer = (*prompt, *engine.run(prompt, said, lora=lora).tokens)
        engine.half.connection.cache.clear()
        if spoil:
            for group, block in zip(engine.worker._tensors, kept(engine), strict=True):
                for tensor in group:
                    tensor[block] = 0
        rest = engine.run(longer, 9 - said, lora=lora)
        assert (rest.local, rest.host) == (len(longer) - 1, 0)
        equal = (rest.tokens, rest.logprobs) == (whole.tokens[said:], whole.logprobs[said:])
        assert equal is not spoil
    if adapters:
        assert engine.run(longer, 2).resumed == 0, "another adapter's"
    assert not any(key.startswith("failures") for key in engine.stats())
