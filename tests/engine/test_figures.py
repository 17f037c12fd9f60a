"""Figures of the connector on a real engine, and how it is loaded."""

import pytest
from prometheus_client import REGISTRY

from harness import Engine, tokens


@pytest.fixture(scope="module")
def engine(start):
    """Loaded by its module path instead of the entry point."""
    return start(
        "qwen3.5",
        kv_transfer_config={
            "kv_connector": "HybridPagesConnector",
            "kv_connector_module_path": "hybrid_pages.vllm.connector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"host_gb": 0.1},
        },
    )


def test_tokens_and_bytes_are_counted_as_they_move(engine: Engine):
    n, page, checkpoint = engine.N, 64 << 10, 6 * (64 * 3 * 2 * 3 + 64 * 64 * 4)
    prompt = tokens("counted", 4 * n + 5)
    engine.reset_all()
    with engine.counting() as cold:
        engine.run(prompt)
    assert cold == {
        "lookups": 1,
        "lookup_tokens": len(prompt),
        "stored_entries:pages": 4,
        "stored_entries:checkpoints": 1,
        "stored_bytes": 4 * page + checkpoint,
        "stored_seconds": cold["stored_seconds"],
    }
    with engine.counting() as local:
        engine.run(prompt)
    assert local == {"lookups": 1, "lookup_tokens": len(prompt), "hit_tokens:local": 4 * n}
    engine.reset_local()
    with engine.counting() as restored:
        engine.run(prompt)
    assert restored == {
        "lookups": 1,
        "lookup_tokens": len(prompt),
        "hit_tokens:host": 4 * n,
        "loaded_bytes:pages": 4 * page,
        "loaded_bytes:checkpoints": checkpoint,
        "loaded_seconds": restored["loaded_seconds"],
    }
    stats = engine.stats()
    assert stats["resident_entries:pages"] == 4
    assert stats["resident_entries:checkpoints"] == 1
    assert stats["leased_bytes"] == 0


def test_padding_never_leaves_the_engine(engine: Engine):
    """The engine pads each state of 17,536 bytes to a page of 32 KiB."""
    recurrent = next(c for c in engine.half.connection.geometry.classes if c.kind == "recurrent")
    assert recurrent.entry_bytes == 6 * 17536


def test_prometheus_has_the_same_figures(engine: Engine):
    engine.run(tokens("prometheus", 2 * engine.N + 1))
    metrics = {
        (sample.name, sample.labels.get(label)): sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        for label in ("source", "kind", "reason")
        if sample.name.startswith("vllm:hybrid_pages_")
    }
    counters = engine.half.stats()["counters"]
    for key, value in counters.items():
        name, _, label = key.partition(":")
        assert metrics[f"vllm:hybrid_pages_{name}_total", label or None] == pytest.approx(value)
    gauges = engine.stats()
    for kind in ("pages", "checkpoints"):
        assert (
            metrics["vllm:hybrid_pages_resident_entries", kind]
            == gauges[f"resident_entries:{kind}"]
        )


def test_the_start_line_says_what_fits(engine: Engine):
    line = engine.half.connection.describe()
    for part in (f"N={engine.N}", "1 attention + 3 recurrent", "64 KiB", "102.8 KiB", "tokens"):
        assert part in line
