"""`hybrid-pages verify --url` on real servers with every tier, and on such with a planted fault."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chat_server import Server
from fixtures import CACHE
from hybrid_pages import cli
from hybrid_pages.demo.chat import ensure_chat
from hybrid_pages.vllm.config.settings import PLANT_VARIABLE
from test_lora import adapter

BLOCK, TIERS = 64, ["host", "disk", "remote"]
pytestmark = pytest.mark.long


@contextmanager
def serving(
    folder: Path, plant: str, flags: Sequence[str] = (), key: str = "none"
) -> Iterator[Server]:
    ensure_chat(CACHE / "hybrid-pages")
    extra = {
        "host_gb": 0.05,
        "disk_path": str(folder / "disk"),
        "disk_gb": 0.1,
        "remote_url": (folder / "shared").as_uri(),
    }
    transfer = {
        "kv_connector": "HybridPagesConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra | ({"plant": plant} if plant else {}),
    }
    more = ("--block-size", str(BLOCK), "--kv-transfer-config", json.dumps(transfer), *flags)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv(PLANT_VARIABLE, plant)
        server = Server(more=more, key=key)
        try:
            yield server.wait()
        finally:
            server.stop()


def verified(folder: Path, address: str, plant: str, model: str = "") -> Any:
    """The report of a run, which finds a planted fault in each tier, or that all is equal."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    named = [model] if model else []
    status = cli.main(["verify", *named, "--url", address, "--json", str(report)])
    found = json.loads(report.read_text())
    assert status == bool(plant), found["problems"]
    assert found["tiers"] == TIERS
    for tier in TIERS:
        rows = [prompt["tiers"][tier] for prompt in found["prompts"]]
        assert all(row["restored_tokens"] for row in rows)
        verdicts = {row["verdict"] for row in rows}
        assert ("DIFFERS" in verdicts) == bool(plant), (tier, rows)
    return found


@pytest.mark.parametrize("plant", ["", "zero-state", "swap-pages"])
def test_each_tier_is_verified(tmp_path, plant):
    with serving(tmp_path, plant) as server:
        server.chat([{"role": "user", "content": "Tell me of the museum. " * 20}])
        found = verified(tmp_path, server.base, plant)
        # Differences are looked at twice.
        assert found["costs"]["computed_tokens"] < (50 if plant else 25) * BLOCK


@pytest.mark.parametrize("plant", ["", "zero-state"])
def test_adapters_are_verified_and_addresses_behind_a_key(tmp_path, monkeypatch, plant):
    folder = adapter(tmp_path / "adapter", 5)
    flags = ["--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"one={folder}"]
    flags += ["--served-model-name", "big", "small", "--root-path", "/engine"]
    with serving(tmp_path, plant, [*flags, "--api-key", "secret"], "secret") as server:
        assert cli.main(["verify", "--url", server.base]) == 2
        monkeypatch.setenv("VLLM_API_KEY", "secret")
        for model, path in (("one", ""), ("small", "/v1/"), ("", "/engine/v1")):
            found = verified(tmp_path, server.base + path, plant, model)
            assert found["model"] == (model or "big")
        assert cli.main(["verify", "two", "--url", server.base]) == 2


@pytest.mark.parametrize("plant", ["", "zero-state"])
def test_each_engine_core_is_verified(tmp_path, plant):
    with serving(tmp_path, plant, ["--data-parallel-size", "2"]) as server:
        found = verified(tmp_path, server.base, plant)
    names = [prompt["name"] for prompt in found["prompts"]]
    for core in range(2):
        assert sum(name.startswith(f"engine {core}: ") for name in names) == len(names) / 2 == 2
