"""Flags behind `hybrid-pages verify MODEL --`, as vLLM's own parser of `vllm serve` reads them."""

import json
from pathlib import Path

import pytest

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
