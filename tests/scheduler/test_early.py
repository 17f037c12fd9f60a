"""Configurations that are rejected where vLLM reads its arguments, before a model loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs

from hybrid_pages import BudgetError
from hybrid_pages.vllm import CONNECTOR, register
from hybrid_pages.vllm.settings import SettingsError
from hybrid_pages.vllm.support import UnsupportedError
from simulation.config import SimulatedHybridForCausalLM, _base, save_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a hybrid model without weights."""
    _base()  # vLLM knows its class from here on
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, SimulatedHybridForCausalLM.__name__)
    return folder


def configure(model: Path, transfer: dict[str, Any], **arguments: Any) -> VllmConfig:
    register()
    options = dict(
        model=str(model),
        skip_tokenizer_init=True,
        max_model_len=512,
        enable_prefix_caching=True,
        disable_hybrid_kv_cache_manager=False,
        kv_transfer_config=transfer,
    )
    return EngineArgs(**{**options, **arguments}).create_engine_config()


def ours(**extra: Any) -> dict[str, Any]:
    return {"kv_connector": CONNECTOR, "kv_role": "kv_both", "kv_connector_extra_config": extra}


def multi(*children: dict[str, Any]) -> dict[str, Any]:
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": list(children)},
    }


EXAMPLE = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}


def test_what_works_is_let_through_unchanged(model: Path) -> None:
    config = configure(model, ours(host_gb=0.5))
    assert config.kv_transfer_config.kv_connector == CONNECTOR
    assert config.kv_transfer_config.kv_load_failure_policy == "fail"


@pytest.mark.parametrize("wrap", [lambda child: child, multi])
@pytest.mark.parametrize(
    ("extra", "arguments", "error", "says"),
    [
        ({"host_gib": 1}, {}, SettingsError, "did you mean 'host_gb'"),
        ({"host_gb": 500_000}, {}, BudgetError, "host_gb: expected at most .* GiB"),
        ({}, {"enable_prefix_caching": False}, UnsupportedError, "prefix caching: expected on"),
        ({}, {"kv_cache_dtype": "fp8"}, UnsupportedError, "kv_cache_dtype: expected auto"),
        ({}, {"data_parallel_size": 2}, UnsupportedError, "data_parallel_size: expected 1"),
    ],
)
def test_what_does_not_work_is_refused_alone_and_in_a_multi_connector(
    model: Path,
    wrap: Any,
    extra: dict[str, Any],
    arguments: dict[str, Any],
    error: type[Exception],
    says: str,
) -> None:
    with pytest.raises(error, match=says):
        configure(model, wrap(ours(**extra)), **arguments)


def test_the_connector_that_turned_the_hybrid_manager_off_is_named(model: Path) -> None:
    transfer = multi(ours(), EXAMPLE)
    with pytest.raises(UnsupportedError, match="since ExampleConnector cannot") as got:
        configure(model, transfer, disable_hybrid_kv_cache_manager=None)
    assert "take it out of MultiConnector's connectors" in str(got.value)
    assert "--disable-hybrid" not in str(got.value)


def test_the_flag_is_named_to_whoever_gave_it(model: Path) -> None:
    with pytest.raises(UnsupportedError, match="drop --disable-hybrid-kv-cache-manager"):
        configure(model, ours(), disable_hybrid_kv_cache_manager=True)


def test_engines_without_the_connector_are_left_alone(model: Path) -> None:
    assert configure(model, None, enable_prefix_caching=False).kv_transfer_config is None
    other = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
    assert configure(model, other, enable_prefix_caching=False)


def test_checks_are_installed_once(model: Path) -> None:
    register()
    before = EngineArgs.create_engine_config
    register()
    assert EngineArgs.create_engine_config is before


def test_a_refusal_is_the_last_line_that_a_user_sees(tmp_path: Path) -> None:
    """Through vLLM's own loading of plugins."""
    save_model(tmp_path, "LlamaForCausalLM")
    program = (
        "from vllm import LLM;"
        f"LLM(model={str(tmp_path)!r}, skip_tokenizer_init=True, load_format='dummy',"
        f" kv_transfer_config={ours(host_gb=-1)!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("hybrid_pages.adapter.errors.SettingsError: host_gb: expected"), last
    assert "Loading" not in done.stdout + done.stderr
