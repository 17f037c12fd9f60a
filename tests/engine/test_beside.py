"""Beside other connectors in real engines: vLLM's MultiConnector with its own connectors."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from faults import LOAD
from harness import Engine, patched, tokens

BENCHES = Path(__file__).parents[2] / "benches" / "rivals"
OURS = {
    "kv_connector": "HybridPagesConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"host_gb": 0.25},
}
# With the workers of `memcpy_spec.py`: vLLM's own do not run on a CPU.
OFFLOADING = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "MemcpyOffloadingSpec",
        "spec_module_path": "memcpy_spec",
        "cpu_bytes_to_use": 64 << 20,
    },
}


def multi(*children: dict, **outer: object) -> dict:
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": list(children)},
        **outer,
    }


@pytest.fixture(scope="module", autouse=True)
def memcpy_spec():
    sys.path.insert(0, os.fspath(BENCHES))
    yield
    sys.path.remove(os.fspath(BENCHES))


def failures(engine: Engine) -> list[str]:
    return [key for key in engine.stats() if key.startswith("failures")]


@pytest.fixture(scope="module", params=["ours first", "ours last"])
def beside_offloading(request, start, memcpy_spec):
    children = [OURS, OFFLOADING] if request.param == "ours first" else [OFFLOADING, OURS]
    return start("qwen3.5", inside=True, kv_transfer_config=multi(*children)), request.param


def test_the_first_prompt_is_stored_beside_vllms_offloading(beside_offloading):
    engine, order = beside_offloading
    prompt = tokens("first", 4 * engine.N + 9)
    engine.run(prompt)
    assert engine.stats()["stored_entries:pages"] >= 4
    engine.reset_local()
    again = engine.run(prompt)
    assert again.host == 4 * engine.N
    assert (engine.stats().get("hit_tokens:host", 0) > 0) is (order == "ours first")
    assert again == engine.local_hit(prompt, again)
    assert not failures(engine)


def test_what_is_restored_beside_vllms_offloading_equals_local_hits(beside_offloading):
    engine, _ = beside_offloading
    for seed in range(3):
        shared = tokens(("shared", seed), (2 + seed) * engine.N + 5)
        warm = [(*shared, *tokens((seed, visitor), engine.N)) for visitor in range(2)]
        assert engine.restored(warm, (*shared, *tokens(seed, 9))).resumed
        assert engine.restored(warm, warm[0]).resumed
    assert not failures(engine)
    assert engine.stats()["leased_bytes"] == 0


def test_the_end_of_an_answer_is_gone_on_from_beside_vllms_offloading(beside_offloading):
    engine, order = beside_offloading
    prompt = tokens("talk", engine.N + 9)
    engine.reset_all()
    whole = engine.run(prompt, 10)
    engine.reset_all()
    longer = (*prompt, *engine.run(prompt, 6).tokens)
    engine.reset_local()
    rest = engine.run(longer, 4)
    # Of two connectors vLLM takes the first one that has anything.
    assert rest.host == (len(longer) - 1 if order == "ours first" else engine.N)
    if order == "ours first":
        assert (rest.tokens, rest.logprobs) == (whole.tokens[6:], whole.logprobs[6:])
    assert not failures(engine)


@pytest.mark.parametrize("fault", LOAD)
def test_our_failed_load_is_recomputed_under_vllms_default_policy(beside_offloading, fault):
    """The outer `kv_load_failure_policy` is `fail`, which would end the request."""
    engine, order = beside_offloading
    if order == "ours last":
        pytest.skip("OffloadingConnector has every prefix and loads first")
    assert engine.vllm.vllm_config.kv_transfer_config.kv_load_failure_policy == "fail"
    prompt = tokens(f"fails {fault}", 4 * engine.N + 9)
    first = engine.run(prompt)
    engine.reset_local()
    inject, reason = LOAD[fault]
    # A step that ends inside a block would round otherwise.
    at_boundaries = patched(engine.half.connection.checkpoints, "inside", False)
    with engine.counting() as counted, inject(engine), at_boundaries:
        result = engine.run(prompt)
    assert result.finished == "length"
    assert result == first or result == engine.local_hit(prompt, result)
    assert counted[f"failures:{reason}"] >= 1


def test_beside_the_example_connector_whose_loads_are_synchronous(start, tmp_path):
    """It does not support the hybrid KV cache manager, which a model of attention alone can do
    without."""
    example = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": os.fspath(tmp_path)},
    }
    engine = start(
        "llama",
        kv_transfer_config=multi(example, OURS),
        disable_hybrid_kv_cache_manager=True,
    )
    prompt = tokens("example", 4 * engine.N + 9)
    cold = engine.run(prompt)
    assert any(tmp_path.iterdir())
    engine.reset_local()
    theirs = engine.run(prompt)
    assert theirs.resumed == 4 * engine.N
    counted = engine.stats()
    assert counted["hit_tokens:other"] == 4 * engine.N
    assert "hit_tokens:host" not in counted
    for child in tmp_path.iterdir():
        shutil.rmtree(child)
    engine.reset_local()
    ours = engine.run(prompt)
    assert ours.resumed == 4 * engine.N
    assert engine.stats()["hit_tokens:host"] == 4 * engine.N
    assert cold.tokens == theirs.tokens == ours.tokens
    assert ours == engine.local_hit(prompt, ours)
    assert not failures(engine)
