"""Settings that cost hits or safety: one warning each at start, none by default."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.config.kv_events import KVEventsConfig

from hybrid_pages.vllm import CONNECTOR
from hybrid_pages.vllm.startup import preflight
from simulation.copies import Script
from simulation.engine import Engine, connector
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from test_remote import model  # noqa: F401 (a fixture)

SIBLING = {
    "kv_connector": "FailingSibling",
    "kv_connector_module_path": "simulation.sibling",
    "kv_role": "kv_both",
}


@pytest.fixture
def warnings(script: Script, caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """Starts an engine and returns the names of what it warns of."""
    engines: list[Engine] = []

    def start(transfer: dict[str, Any] | None = None, shape: str = "gdn", **options: Any) -> Any:
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="vllm.hybrid_pages"):
            engines.append(Engine(SHAPES[shape], transfer=transfer or connector(), **options))
        said = [record.getMessage() for record in caplog.records]
        return [line.split(":")[1].strip() for line in said if line.startswith("hybrid-pages: ")]

    yield start
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("shape", ["gdn", "mamba2", "gdn-window", "attention-only"])
def test_nothing_is_said_of_defaults(warnings: Any, shape: str) -> None:
    assert warnings(shape=shape) == []


@pytest.mark.parametrize(
    ("batched", "name"),
    [(N, "step-below-two-blocks"), (2 * N - 2, "step-below-two-blocks"), (2 * N - 1, None)],
)
def test_a_step_below_two_blocks(warnings: Any, batched: int, name: str | None) -> None:
    assert warnings(batched_tokens=batched) == ([] if name is None else [name])
    assert warnings(batched_tokens=batched, shape="attention-only") == []


@pytest.mark.parametrize("retention", [None, 4 * N])
def test_states_that_vllm_keeps_itself(warnings: Any, retention: int | None) -> None:
    assert warnings(retention=retention) == ["retention"]


@pytest.mark.parametrize("role", ["kv_producer", "kv_consumer"])
def test_half_a_role(warnings: Any, role: str) -> None:
    assert warnings(connector() | {"kv_role": role}) == ["role"]


@pytest.mark.parametrize("role", ["kv_producer", "kv_consumer"])
def test_half_a_role_on_a_store_that_others_use(
    warnings: Any,
    model: Path,  # noqa: F811
    tmp_path: Path,
    role: str,
) -> None:
    transfer = connector(remote_url=(tmp_path / "store").as_uri()) | {"kv_role": role}
    assert warnings(transfer, model=model) == []


def test_no_checkpoints(warnings: Any) -> None:
    assert warnings(connector(checkpoint_mode="none")) == ["checkpoint-mode"]


def test_weights_that_may_change(warnings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    assert warnings() == ["resets"]
    assert warnings(connector(follow_engine_resets=True)) == []


@pytest.mark.parametrize(("policy", "said"), [("fail", 1), ("recompute", 0)])
def test_a_sibling_whose_failed_loads_end_requests(
    caplog: pytest.LogCaptureFixture, policy: str, said: int
) -> None:
    """Where vLLM makes its configuration: a child of MultiConnector can't see the outer one."""
    ours = {"kv_role": "kv_both"} | connector()
    outer = KVTransferConfig(
        kv_connector="MultiConnector",
        kv_role="kv_both",
        kv_load_failure_policy=policy,
        kv_connector_extra_config={"connectors": [ours, SIBLING]},
    )
    with caplog.at_level(logging.WARNING, logger="vllm.hybrid_pages"):
        preflight._warn(outer, CONNECTOR)
    assert caplog.text.count("failure-policy") == said
    assert caplog.text.count("FailingSibling") == said


def test_events_with_hashes_of_this_process_alone(
    warnings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hybrid_pages.vllm.startup import advice

    real = advice._situation

    def xxhash(*words: Any) -> Any:
        from dataclasses import replace

        return replace(real(*words), hash_algorithm="xxhash")

    monkeypatch.setattr(advice, "_situation", xxhash)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    events = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    assert warnings(events=events) == ["hash-seed"]
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert warnings(events=events) == []
