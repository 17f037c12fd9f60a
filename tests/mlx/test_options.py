"""``hybrid-pages mlx-server`` with settings that can't work ends at once, with one line and 2."""

import os
import signal
import socket
import subprocess
import sys

import pytest

import tiny
from http_server import serving
from hybrid_pages import BudgetError, DiskError, ForeignError
from hybrid_pages.adapter.disk import require_unused
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.mlx import CacheStore, PrefixCache, server
from runs import BLOCK

MODEL = "/nowhere"  # never loaded in a test that refuses before


def refused(capsys, *words):
    """What is said about a command line that is refused before anything is loaded."""
    try:
        status = server.main([MODEL, *map(str, words)])
    except SystemExit as ended:
        status = ended.code
    assert not server.Responses.ran
    said = capsys.readouterr().err
    assert status == 2, said
    assert "Traceback" not in said
    assert "expected" in said.splitlines()[-1] or "argument" in said.splitlines()[-1], said
    return said.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *(
            (["--host-gb", size], "--host-gb: expected a size above 0 and below 1048576 GiB, found")
            for size in ("-1", "0", "-0.0", "nan", "inf", "1e30")
        ),
        (["--host-gb", "1e5"], "--host-gb: expected at most "),
        (["--host-gb", "four"], "argument --host-gb: invalid float value: 'four'"),
        *(
            (["--block-tokens", tokens], "--block-tokens: expected a whole number from 1 to")
            for tokens in ("0", "-1", "99999999999")
        ),
        (["--block-tokens", "1.5"], "argument --block-tokens: invalid int value"),
        *(
            (["--disk-gb", size], "--disk-path: expected a directory with --disk-gb")
            for size in ("1", "0", "-1", "nan")
        ),
        (["--disk-path", "/tmp"], "--disk-gb: expected a quota above 0"),
        (["--disk-path", "/tmp", "--disk-gb", "nan"], "--disk-gb: expected a quota above 0"),
        (["--disk-path", "/tmp", "--disk-gb", "1e8"], "--disk-gb: expected at most the size of"),
        (["--disk-path", "", "--disk-gb", "1"], "--disk-path: expected a directory, found ''"),
        (["--disk-path", __file__, "--disk-gb", "1"], "--disk-path: expected a directory, found "),
        (["--disk-path", "/no/where", "--disk-gb", "1"], "make it first"),
        *(
            (["--prompt-cache-bytes", size], "--prompt-cache-bytes: expected a size ")
            for size in ("-1", "0", "10KB", "", "1e9", "GB")
        ),
        (["--prompt-cache-bytes", "1GB", "--host-gb", "1"], "--host-gb, found both"),
        *(
            (["--port", port], "--port: expected 1 to 65535, found")
            for port in ("0", "-1", "65536", "9" * 30)
        ),
        (["--host", "nowhere.invalid"], "--host: expected a name or an address of this machine"),
        (["--host", "192.0.2.1"], "--host: expected an address of this machine, found"),
        (["--prefill-step-size", "0"], "--prefill-step-size: expected 1 to"),
        (["--decode-concurrency", "0"], "--decode-concurrency: expected 1 to"),
        (["--prompt-concurrency", "-2"], "--prompt-concurrency: expected 1 to"),
        (["--max-tokens", "0"], "--max-tokens: expected 1 to"),
        (["--temp", "nan"], "--temp: expected 0 to"),
        (["--top-p", "1.5"], "--top-p: expected 0 to 1, found 1.5"),
        (["--kv-bits", "7"], "--kv-bits: expected one of 2, 3, 4, 5, 6, 8, found 7"),
        (["--kv-bits", "8", "--kv-group-size", "1"], "--kv-group-size: expected one of 32"),
        (["--chat-template-args", "[1]"], "--chat-template-args: expected an object in JSON"),
        (["--model", ""], "--model: expected a folder or a name on the hub, found ''"),
    ],
)
def test_what_cannot_work_is_one_line_before_a_model_is_loaded(capsys, words, said):
    assert said in refused(capsys, *words)


def test_a_port_in_use_is_refused(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused(capsys, "--port", port)
    assert f"--port: expected a free port, found {port} in use on 127.0.0.1: end what" in line


def test_a_disk_in_use_is_refused_before_the_model_is_loaded(capsys, models, tmp_path):
    disk = {"disk_path": tmp_path / "disk", "disk_gb": 0.1}
    with CacheStore(models("qwen3_5"), host_gb=0.05, block_tokens=BLOCK, **disk):
        line = refused(capsys, "--disk-path", tmp_path / "disk", "--disk-gb", "0.1")
        assert f"found that process {os.getpid()} uses it: give each server" in line
        with pytest.raises(DiskError, match="uses it"):
            PrefixCache(models("qwen3_5"), host_gb=0.05, **disk)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.save("qwen3_next", tmp_path_factory.mktemp("model") / "model")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host-gb", "0.00001"], "--host-gb: expected at least 0.0001 GiB"),
        (["--disk-gb", "1e-5"], "disk: expected a quota that holds one entry of each class"),
        (["--disk-gb", "0.1", "--kv-bits", "8"], "--disk-path: expected plain caches, found quant"),
        (["--adapter-path", "/nowhere"], "--model: expected a model that mlx-lm 0.32.2 can load"),
    ],
)
def test_what_only_the_model_can_tell_ends_the_server_at_start(tmp_path, model, words, said):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    disk = ["--disk-path", str(tmp_path / "disk")] if "--disk-gb" in words else []
    code = "import sys; from hybrid_pages.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "mlx-server", str(model), "--port", str(port), *disk, *words],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, done
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert "Starting httpd" not in done.stderr


def test_a_server_that_is_interrupted_ends_well_and_gives_its_disk_back(tmp_path, model):
    disk = ["--disk-path", str(tmp_path / "disk"), "--disk-gb", "0.1"]
    with serving(model, tmp_path / "log", *disk, ours=True) as ours:
        ours.complete("w11 w12", tokens=2)
        ours.process.send_signal(signal.SIGINT)
        assert ours.process.wait(60) == 0, ours.logged()
    said = ours.logged()
    assert "Traceback" not in said and "terminate called" not in said
    require_unused(str(tmp_path / "disk"))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"host_gb": -1}, SettingsError),
        ({"host_gb": 0}, SettingsError),
        ({"host_gb": 1e5}, BudgetError),
        ({"host_gb": "much"}, SettingsError),
        ({"block_tokens": 0}, SettingsError),
        ({"block_tokens": 2.0}, SettingsError),
        ({"block_tokens": True}, SettingsError),
        ({"disk_gb": 1}, SettingsError),
        ({"disk_path": "/tmp"}, SettingsError),
        ({"disk_path": os.path.dirname(__file__), "disk_gb": 0.1}, ForeignError),
        ({"disk_deadline_ms": 0}, SettingsError),
        ({"policy": "resue"}, SettingsError),
    ],
)
@pytest.mark.parametrize("kind", [CacheStore, PrefixCache])
def test_a_store_refuses_settings_before_it_runs_the_model(kind, given, error):
    with pytest.raises(error, match="expected"):
        kind(None, **given)


def test_a_block_as_long_as_a_window_is_a_setting_to_change(models):
    with pytest.raises(SettingsError, match="block_tokens: expected less than the sliding window"):
        PrefixCache(models("recurrent_gemma"), host_gb=0.05, block_tokens=64)
