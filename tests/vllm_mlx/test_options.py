"""``hybrid-pages vllm-mlx`` with settings that can't work ends at once, with one line and 2."""

import os
import signal
import socket
import subprocess
import sys

import pytest

import tiny
from hybrid_pages.vllm_mlx import server

MODEL = "/nowhere"  # never loaded in a test that refuses before


def refused(capsys, *words):
    """What is said about a command line that is refused before anything is loaded."""
    try:
        status = server.main([*map(str, words)])
    except SystemExit as ended:
        status = ended.code
    said = capsys.readouterr().err
    assert status == 2, said
    assert "Traceback" not in said
    return said.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host-gb", "0"], "--host-gb: expected a size above 0 and below 1048576 GiB, found"),
        (["--host-gb", "1e5"], "--host-gb: expected at most "),
        (["--cache-memory-mb", "-1"], "--cache-memory-mb: expected a size above 0, found"),
        (["--cache-memory-mb", "9", "--host-gb", "1"], "--host-gb, found both"),
        (["--block-tokens", "0"], "--block-tokens: expected a whole number from 1 to"),
        (["--disk-gb", "1"], "--disk-path: expected a directory with --disk-gb"),
        (["--disk-path", "/tmp"], "--disk-gb: expected a quota above 0"),
        (["--max-kv-size", "64"], "--max-kv-size: expected none, found one: caches of bounded"),
        (["--kv-cache-quantization"], "--kv-cache-quantization: expected none, found one"),
        (["--use-paged-cache"], "--use-paged-cache: expected none, found one"),
        (["--no-memory-aware-cache"], "--no-memory-aware-cache: expected none, found one"),
        (["--disable-prefix-cache"], "--disable-prefix-cache: expected none, found one"),
        (["--ssd-cache-dir", "/tmp"], "--ssd-cache-dir: expected none, found one: use --disk-path"),
        (["--ssd-cache-max-gb=3"], "--ssd-cache-max-gb: expected none, found one"),
        (["--cache-memory-percent", "0.1"], "--cache-memory-percent: expected none, found one"),
        (["--models-config", "x.yaml"], "--models-config: expected none, found one"),
        (["--mllm"], "--mllm: expected none, found one"),
        (["--enable-mtp"], "--enable-mtp: expected none, found one"),
        (["--specprefill"], "--specprefill: expected none, found one"),
        (["--prefix-trie-cache"], "--prefix-trie-cache: expected none, found one"),
        (["--max-num-seqs", "0"], "--max-num-seqs: expected 1 to"),
        (["--prefill-batch-size", "0"], "--prefill-batch-size: expected 1 to"),
        (["--completion-batch-size", "-3"], "--completion-batch-size: expected 1 to"),
        (["--chunked-prefill-tokens", "-1"], "--chunked-prefill-tokens: expected 0 to"),
        (["--stream-interval", "0"], "--stream-interval: expected 1 to"),
        (["--port", "0"], "--port: expected 1 to 65535, found"),
        (["--host", "192.0.2.1"], "--host: expected an address of this machine, found"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_what_cannot_work_is_one_line_before_a_model_is_loaded(capsys, words, said):
    assert said in refused(capsys, "serve", MODEL, *words)


def test_commands(capsys):
    for words in ([], ["bench", MODEL], [MODEL]):
        assert "expected the command serve, found" in refused(capsys, *words)
    assert "MODEL: expected a folder or a name on the hub, found none" in refused(capsys, "serve")
    with pytest.raises(SystemExit) as ended:
        server.main(["serve", "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "--host-gb" in said
    assert "--reasoning-parser" in said


def test_a_port_in_use_is_refused(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused(capsys, "serve", MODEL, "--port", port)
    assert f"--port: expected a free port, found {port} in use on 127.0.0.1" in line


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Models that are served, that are batched wrongly, and that are broken."""
    place = tmp_path_factory.mktemp("models")
    made = {name: tiny.save(name, place / name) for name in ("qwen3_next", "bailing_moe_linear")}
    made["broken"] = tiny.save("lfm2", place / "broken")
    (made["broken"] / "model.safetensors").write_bytes(b"none")
    return made


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("qwen3_next", ["--host-gb", "0.00001"], "--host-gb: expected at least 0.0001 GiB"),
        ("qwen3_next", ["--disk-gb", "1e-5"], "disk: expected a quota that holds one entry of"),
        ("bailing_moe_linear", [], "MODEL: expected a model that mlx-lm batches correctly, found"),
        ("broken", [], "MODEL: expected a model that vllm-mlx can load, found"),
    ],
)
def test_what_only_the_model_can_tell_ends_the_server_at_start(
    tmp_path, folders, name, words, said
):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if "--disk-gb" in words:
        words = [*words, "--disk-path", str(tmp_path / "disk")]
        (tmp_path / "disk").mkdir()
    asked = [sys.executable, "-m", "hybrid_pages", "vllm-mlx", "serve", str(folders[name])]
    done = subprocess.run(
        [*asked, "--port", str(port), *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("hybrid-pages vllm-mlx: ")
    assert said in last


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_and_frees_its_disk(tmp_path, folders, number):
    from http_server import serving

    flags = ["--disk-path", str(tmp_path / "disk"), "--disk-gb", "0.1"]
    for _ in range(2):
        with serving(folders["qwen3_next"], tmp_path / "log", *flags, ours=True) as ours:
            ours.complete("w11 w12")
            ours.process.send_signal(number)
            ours.process.wait(30)
        assert "Traceback" not in ours.logged().replace("KeyboardInterrupt", "")
