"""Configurations that are rejected where vLLM reads its arguments, before a model loads."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vllm.config import VllmConfig
from vllm.config.utils import replace
from vllm.engine.arg_utils import EngineArgs

from hybrid_pages import BudgetError, RemoteError
from hybrid_pages.adapter import memory
from hybrid_pages.vllm import CONNECTOR, register, versions
from hybrid_pages.vllm.config.settings import SettingsError
from hybrid_pages.vllm.config.support import UnsupportedError
from hybrid_pages.vllm.processes.engine_cores import EngineCores
from hybrid_pages.vllm.startup import preflight
from hybrid_pages.vllm.versions import logger
from simulation.config import SimulatedHybridForCausalLM, _base, save_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a hybrid model without weights."""
    _base()  # vLLM knows its class from here on
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, SimulatedHybridForCausalLM.__name__)
    return folder


def configure(
    model: Path, transfer: dict[str, Any], headless: bool = False, **arguments: Any
) -> VllmConfig:
    register()
    options = dict(
        model=str(model),
        skip_tokenizer_init=True,
        max_model_len=512,
        enable_prefix_caching=True,
        disable_hybrid_kv_cache_manager=False,
        kv_transfer_config=transfer,
    )
    return EngineArgs(**{**options, **arguments}).create_engine_config(headless=headless)


def ours(**extra: Any) -> dict[str, Any]:
    return {"kv_connector": CONNECTOR, "kv_role": "kv_both", "kv_connector_extra_config": extra}


def multi(*children: dict[str, Any]) -> dict[str, Any]:
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": list(children)},
    }


TWO_NODES = {"nnodes": 2, "distributed_executor_backend": "mp", "tensor_parallel_size": 2}
EXAMPLE = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}


def test_what_works_is_let_through_unchanged(model: Path) -> None:
    config = configure(model, ours(host_gb=0.5))
    assert config.kv_transfer_config.kv_connector == CONNECTOR
    assert config.kv_transfer_config.kv_load_failure_policy == "fail"


@pytest.mark.parametrize("kv_cache_dtype", ["fp8", "fp8_e5m2"])
def test_quantised_kv_caches_are_let_through(model: Path, kv_cache_dtype: str) -> None:
    config = configure(model, ours(host_gb=0.5), kv_cache_dtype=kv_cache_dtype)
    assert config.cache_config.cache_dtype == kv_cache_dtype


def test_an_untested_page_format_is_rejected(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybrid_pages.vllm.versions.PAGE_FORMATS", ("NONE",))
    with pytest.raises(UnsupportedError, match=r"kv_cache_dtype: expected .* found 'fp8'"):
        configure(model, ours(host_gb=0.5), kv_cache_dtype="fp8")


def test_a_checkpoint_may_choose_a_quantised_kv_cache(model: Path, tmp_path: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    scheme = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": scheme}))
    found = configure(tmp_path, ours(host_gb=0.5), load_format="dummy")
    assert found.cache_config.cache_dtype == "fp8_e4m3"


@pytest.mark.parametrize("wrap", [lambda child: child, multi])
@pytest.mark.parametrize(
    ("extra", "arguments", "error", "says"),
    [
        ({"host_gib": 1}, {}, SettingsError, "did you mean 'host_gb'"),
        ({"host_gb": 500_000}, {}, BudgetError, "host_gb: expected at most .* GiB"),
        ({}, {"enable_prefix_caching": False}, UnsupportedError, "prefix caching: expected on"),
        ({"host_gb": "auto"}, TWO_NODES, SettingsError, "host_gb: .*all 2 nodes.*'auto'"),
        ({"disk_path": "/x", "disk_gb": 1}, TWO_NODES, UnsupportedError, "disk_path: .*2 nodes"),
        ({"remote_url": "file:///x"}, TWO_NODES, UnsupportedError, "remote_url: .*2 nodes"),
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


# ---- budgets of several engine cores


OF_FOUR = {"data_parallel_size": 4, "data_parallel_size_local": 2}


@pytest.fixture
def ten_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 10 GiB."""
    free = memory.Free(10 * memory.GIB, "this machine's memory")
    monkeypatch.setattr(memory, "free_memory", lambda: free)


@pytest.mark.parametrize(
    ("cores", "headless", "arguments"),
    [
        (2, False, {"data_parallel_size": 2}),
        (2, False, {"data_parallel_size": 2, "_api_process_count": 3, "_api_process_rank": -1}),
        (2, False, OF_FOUR),
        (2, True, OF_FOUR | {"data_parallel_start_rank": 2}),
        (2, False, OF_FOUR | {"data_parallel_start_rank": 2}),
        (2, False, OF_FOUR | {"data_parallel_hybrid_lb": True}),
    ],
)
@pytest.mark.parametrize("wrap", [lambda child: child, multi])
def test_the_budgets_of_a_machine_s_engine_cores_are_checked_together(
    model: Path,
    ten_gib: None,
    wrap: Any,
    cores: int,
    headless: bool,
    arguments: dict[str, Any],
) -> None:
    assert configure(model, wrap(ours(host_gb=10 / cores)), headless, **arguments)
    expected = f"found {cores} engine cores x 5.5 GiB = {5.5 * cores:g} GiB: lower it to less than"
    with pytest.raises(BudgetError, match=expected):
        configure(model, wrap(ours(host_gb=5.5)), headless, **arguments)


@pytest.mark.parametrize(
    "arguments", [{"data_parallel_rank": 1}, {"data_parallel_external_lb": True}]
)
def test_an_engine_core_that_is_started_alone_is_counted_alone(
    model: Path, ten_gib: None, arguments: dict[str, Any], tmp_path: Path
) -> None:
    """Only a mixture of experts starts so."""
    config = json.loads((model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_local_experts": 4}))
    options = {"data_parallel_size": 4, "data_parallel_rank": 0} | arguments
    assert configure(tmp_path, ours(host_gb=10), **options)
    with pytest.raises(BudgetError, match=r"10.0 GiB, found 11 GiB: lower it$"):
        configure(tmp_path, ours(host_gb=11), **options)


def test_each_node_has_memory_for_its_ranks(model: Path, ten_gib: None) -> None:
    assert configure(model, ours(host_gb=20), **TWO_NODES)
    with pytest.raises(BudgetError, match=r"21 GiB on 2 nodes = 10\.5 GiB here"):
        configure(model, ours(host_gb=21), **TWO_NODES)


@pytest.mark.parametrize("wrap", [lambda child: child, multi])
def test_an_automatic_budget_is_found_out_once_for_all_engine_cores(
    model: Path, ten_gib: None, wrap: Any
) -> None:
    config = configure(model, wrap(ours(host_gb="auto")), data_parallel_size=2)
    outer = config.kv_transfer_config
    (transfer,) = [
        one for one in (outer, *versions.children(outer)) if one.kv_connector == CONNECTOR
    ]
    assert transfer.kv_connector_extra_config["host_gb"] == 2.5


def test_huge_pages_are_no_free_memory(
    model: Path, ten_gib: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are reserved already, for the planes of all ranks and engine cores together."""
    monkeypatch.setattr(memory, "_HUGE", str(tmp_path))
    monkeypatch.setattr(memory, "_MOUNT", str(tmp_path))
    for name in ("nr_hugepages", "free_hugepages"):
        (tmp_path / name).write_text(f"{500 * 512 + 2}")
    assert configure(model, ours(host_gb=500, huge_pages="2M"), tensor_parallel_size=2)
    assert configure(model, ours(host_gb=250, huge_pages="2M"), data_parallel_size=2)
    for more, options in ((500.1, {"tensor_parallel_size": 2}), (500, {"data_parallel_size": 2})):
        with pytest.raises(BudgetError, match=r"free huge pages of 2 MiB for .*nr_hugepages="):
            configure(model, ours(host_gb=more, huge_pages="2M"), **options)
    with pytest.raises(SettingsError, match="host_gb: expected a number of GiB with huge_pages"):
        configure(model, ours(host_gb="auto", huge_pages="2M"))


@pytest.mark.parametrize("cores", [1, 2])
def test_one_of_several_api_servers_needs_no_memory(model: Path, ten_gib: None, cores: int) -> None:
    """It starts beside the engine cores, which may have taken theirs by then. One that ends ends
    all."""
    servers = {"data_parallel_size": cores, "_api_process_count": 3, "_api_process_rank": 1}
    assert configure(model, ours(host_gb=11), **servers)
    assert configure(model, ours(host_gb="auto"), **servers)
    with pytest.raises(BudgetError, match="expected at most"):
        configure(model, ours(host_gb=11), **servers | {"_api_process_rank": -1})


def test_a_machine_without_engine_cores_needs_no_memory(model: Path, ten_gib: None) -> None:
    options = {"data_parallel_size": 2, "data_parallel_size_local": 0}
    assert configure(model, ours(host_gb=500), **options)


def test_a_dense_model_s_engine_cores_know_of_each_other(model: Path) -> None:
    """vLLM tells them nothing; they get what the process that starts them has counted."""
    config = configure(model, ours(host_gb=0.5), data_parallel_size=4, data_parallel_size_local=2)
    parallel = pickle.loads(pickle.dumps(copy.deepcopy(config))).parallel_config
    parallel.reconfigure_for_independent_dp_rank()
    parallel.data_parallel_index = 1
    assert parallel.data_parallel_size == parallel.data_parallel_size_local == 1
    cores = EngineCores.of(parallel)
    assert cores == EngineCores(1, 4, 2)
    assert cores.describe(0.5) == (
        "engine core 1 (of 4, from 0 on), this machine needs 2 x 0.5 GiB = 1 GiB"
    )


def test_one_engine_core_says_nothing_of_others(model: Path) -> None:
    parallel = configure(model, ours(host_gb=0.5)).parallel_config
    assert EngineCores.of(parallel).describe(0.5) == ""
    assert replace(parallel, rank=0) == parallel  # nothing is noted that vLLM does not know


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


@pytest.mark.long
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


@pytest.mark.parametrize("platform", ["rocm", "xpu"])
def test_other_platforms_are_rejected_by_name(
    platform: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(model, ours(host_gb=0.01))
    monkeypatch.setattr(versions, "platform", lambda: platform)
    with pytest.raises(UnsupportedError, match=f"expected cpu or cuda.*found {platform}"):
        configure(model, ours(host_gb=0.01))


# A disk.


def test_a_disk_is_let_through_and_nothing_is_made(model: Path, tmp_path: Path) -> None:
    configure(model, ours(host_gb=0.5, disk_path=str(tmp_path / "disk"), disk_gb=0.01))
    assert not (tmp_path / "disk").exists()


def test_a_wrong_directory_is_rejected_before_the_model_loads(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="disk_path: expected a directory, found the file"):
        configure(model, ours(host_gb=0.5, disk_path=str(tmp_path / "file"), disk_gb=0.01))


def test_a_quota_beyond_the_disk_is_rejected(model: Path, tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="disk_gb: expected at most the size of the file system"):
        configure(model, ours(host_gb=0.5, disk_path=str(tmp_path), disk_gb=1 << 29))


def test_keys_are_told_and_a_file_that_others_may_read_is_warned_of_once(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    told: list[str] = []
    monkeypatch.setattr(logger, "warning", lambda text, *given: warned.append(text % given))
    monkeypatch.setattr(logger, "info", lambda text, *given: told.append(text % given))
    path = tmp_path / "key"
    path.write_text("ab" * 32)
    given = {"disk_path": str(tmp_path / "disk"), "disk_gb": 0.01, "encrypt_key": str(path)}
    said = "encrypt_key: expected a key file for its owner alone, found the mode 0640 at "
    for mode, times in ((0o600, 0), (0o640, 1)):
        path.chmod(mode)
        configure(model, ours(host_gb=0.5, **given))
        assert sum(line.startswith(said + repr(str(path))) for line in warned) == times
    assert sum(line.startswith("encrypt_key: the key ") for line in told) == 2


def test_dummy_weights_and_a_disk_do_not_go_together(model: Path, tmp_path: Path) -> None:
    transfer = ours(host_gb=0.5, disk_path=str(tmp_path), disk_gb=0.01)
    with pytest.raises(UnsupportedError, match=r"disk_path: load_format: .* found 'dummy'"):
        configure(model, transfer, load_format="dummy")
    configure(model, ours(host_gb=0.5), load_format="dummy")


# A store that machines share.


def test_a_shared_directory_is_let_through(model: Path, tmp_path: Path) -> None:
    configure(model, ours(host_gb=0.5, remote_url=(tmp_path / "shared").as_uri()))


def test_a_store_that_cannot_be_used_is_rejected(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RemoteError, match="expected a directory"):
        configure(model, ours(host_gb=0.5, remote_url=(tmp_path / "file").as_uri()))
    with pytest.raises(SettingsError, match="remote_url: expected s3://"):
        configure(model, ours(host_gb=0.5, remote_url="https://bucket"))


def test_dummy_weights_and_a_store_do_not_go_together(model: Path, tmp_path: Path) -> None:
    transfer = ours(host_gb=0.5, remote_url=tmp_path.as_uri())
    with pytest.raises(UnsupportedError, match=r"remote_url: load_format: .* without remote_url"):
        configure(model, transfer, load_format="dummy")


def test_a_newer_patch_release_is_used_after_one_warning(monkeypatch):
    said = []
    monkeypatch.setattr(logger, "warning", lambda text, *words: said.append(text % words))
    for version in ("0.33.99", "0.33.99", versions.TESTED[0]):
        monkeypatch.setattr(versions, "installed", lambda version=version: version)
        preflight._warn(None, "HybridPagesConnector")
    assert len(said) == 1
    assert (
        "expected vllm 0.32.0 or 0.33.0, which tests have run, found the newer 0.33.99" in said[0]
    )
