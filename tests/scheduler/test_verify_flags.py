"""Flags behind `hybrid-pages verify MODEL --`, as vLLM's own parser of `vllm serve` reads them."""

import json
from pathlib import Path

import pytest
from vllm.config import CacheConfig

from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.verify.engine import _arrange

TRANSFER = {
    "kv_connector": "HybridPagesConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"host_gb": 1},
}
RUN = {"run": "r"}


# A folder: the hub is not asked for it.
MODEL = str(Path(__file__).parent)


def arranged(*flags):
    return _arrange(MODEL, list(flags), RUN)


def test_flags_are_read_as_the_server_does(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(f"max-model-len: 1024\nkv-transfer-config: '{json.dumps(TRANSFER)}'\n")
    for flags in (
        ["--config", str(config)],
        ["--max_model_len", "1024", "--kv_transfer_config", json.dumps(TRANSFER), "--port", "1"],
    ):
        told, arguments, start = arranged(*flags)
        assert (told["tiers"], told["notes"]) == (("host",), ())
        assert (arguments.model, arguments.max_model_len) == (MODEL, 1024)
        assert start.transfer["kv_connector_extra_config"] == {"host_gb": 1}


@pytest.mark.parametrize(
    ("free", "share"), [(1.0, 0.4), (0.5, 0.2), (0.91, 0.36), (0.001, 0.01)], ids=str
)
def test_on_a_cpu_flags_without_a_share_of_memory_get_one_that_fits(monkeypatch, free, share):
    from vllm.utils import cpu_resource_utils as found

    whole = 1 << 36
    node = found.MemoryNodeInfo(total_memory=whole, available_memory=int(free * whole))
    monkeypatch.setattr(found, "get_memory_node_info", lambda number: node)
    monkeypatch.setattr(found, "get_visible_memory_node", lambda: [0, 1])
    assert arranged()[1].gpu_memory_utilization == share
    assert arranged("--kv-cache-memory-bytes", "9")[1].kv_cache_memory_bytes == 9
    for flags in (["--gpu-memory-utilization", "0.9"], ["--gpu_memory_utilization=0.9"]):
        assert arranged(*flags)[1].gpu_memory_utilization == 0.9


def test_a_share_in_a_file_of_flags_counts_as_named(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("gpu-memory-utilization: 0.8\n")
    assert arranged("--config", str(config))[1].gpu_memory_utilization == 0.8


def test_on_a_gpu_the_share_is_vllms(monkeypatch):
    from hybrid_pages.vllm.versions import command

    monkeypatch.setattr(command, "platform", lambda: "cuda")
    assert arranged()[1].gpu_memory_utilization == CacheConfig.gpu_memory_utilization


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
        (["--model", "OTHER"], "found 'OTHER': name it once"),
        (["--enforce-eager", "OTHER"], "found 'OTHER': name it once"),
        (["--kv-offloading-size", "4"], "--kv-offloading-size: expected none, found 4"),
        (["--kv-transfer-config", "{bad"], "Invalid JSON"),
    ],
)
def test_flags_that_would_verify_something_else_are_refused(flags, said):
    with pytest.raises(SettingsError) as error:
        arranged(*flags)
    assert said in str(error.value)
