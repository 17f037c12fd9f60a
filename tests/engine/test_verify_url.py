"""`hybrid-pages verify --url` on a real server with every tier, and on one with a planted fault."""

import json
from pathlib import Path

import pytest

from chat_server import Server
from fixtures import CACHE
from hybrid_pages import cli
from hybrid_pages.demo.chat import ensure_chat
from hybrid_pages.vllm.config.settings import PLANT_VARIABLE

BLOCK = 64


def started(tmp_path: Path, **settings: str) -> Server:
    ensure_chat(CACHE / "hybrid-pages")
    extra = {
        "host_gb": 0.05,
        "disk_path": str(tmp_path / "disk"),
        "disk_gb": 0.05,
        "remote_url": (tmp_path / "shared").as_uri(),
    }
    transfer = {
        "kv_connector": "HybridPagesConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra | settings,
    }
    more = ("--block-size", str(BLOCK), "--kv-transfer-config", json.dumps(transfer))
    return Server(more=more).wait()


@pytest.mark.long
@pytest.mark.parametrize("plant", ["", "zero-state", "swap-pages"])
def test_each_tier_is_verified(tmp_path, monkeypatch, plant):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    if plant:
        monkeypatch.setenv(PLANT_VARIABLE, plant)
    server = started(tmp_path, **({"plant": plant} if plant else {}))
    try:
        server.chat([{"role": "user", "content": "Tell me of the museum. " * 20}])
        report = tmp_path / "report.json"
        status = cli.main(["verify", "--url", server.base, "--json", str(report)])
        found = json.loads(report.read_text())
        assert status == bool(plant), found["problems"]
        assert found["tiers"] == ["host", "disk", "remote"]
        for tier in found["tiers"]:
            rows = [prompt["tiers"][tier] for prompt in found["prompts"]]
            assert all(row["restored_tokens"] for row in rows)
            verdicts = {row["verdict"] for row in rows}
            assert ("DIFFERS" in verdicts) == bool(plant), (tier, rows)
        # Differences are looked at twice.
        assert found["costs"]["computed_tokens"] < (50 if plant else 25) * BLOCK
    finally:
        server.stop()
