"""The examples that need no framework run, and notice wrong bytes; each example is listed."""

import ctypes
import json
import re
import runpy
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import numpy as np
import pytest

from hybrid_pages import HostEngine

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name):
    return runpy.run_path(str(EXAMPLES / name))


def test_every_example_is_listed():
    listed = re.findall(r"^\| \[([\w.]+)\]\(\1\)", (EXAMPLES / "README.md").read_text(), re.M)
    found = [path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".rs")]
    assert sorted(listed) == sorted(found)


def test_a_second_prompt_resumes_over_numpy_arrays(capsys):
    assert load("core_numpy.py")["main"]() == 6
    assert "restored 6 of 8 blocks" in capsys.readouterr().out


def test_bytes_that_were_not_restored_end_the_numpy_example(monkeypatch):
    example = load("core_numpy.py")
    finish = example["finish"]

    def spoil(copies: HostEngine, ticket: int):
        checksums = finish(copies, ticket)
        example["main"].__globals__["spoiled"].pages[12] = 0
        return checksums

    class Engine(example["Engine"]):
        def __init__(self, blocks):
            super().__init__(blocks)
            example["main"].__globals__.setdefault("spoiled", self)

    example["main"].__globals__.update(finish=spoil, Engine=Engine)
    with pytest.raises(AssertionError, match="expected the pages of a cold run"):
        example["main"]()


def test_without_a_gpu_the_example_says_why(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HYBRID_PAGES_LIBCUDA", str(tmp_path / "none.so"))
    assert load("gpu_arrays.py")["main"]() == 0
    assert "skipped: CUDA is not available" in capsys.readouterr().err


class Array:
    """An array of the mock's memory, as libraries of GPU arrays describe theirs."""

    def __init__(self, memory, shape):
        self.shape = shape
        nbytes = 4 * int(np.prod(shape))
        self.address = memory.allocate(nbytes)
        buffer = (ctypes.c_uint8 * nbytes).from_address(self.address)
        self.host = np.frombuffer(buffer, np.float32).reshape(shape)
        self.host[:] = np.random.default_rng(self.address).random(shape, np.float32)

    @property
    def __cuda_array_interface__(self):
        data = (self.address, False)
        return {"version": 3, "shape": self.shape, "typestr": "<f4", "data": data, "stream": 1}


def test_blocks_of_gpu_arrays_come_back_over_the_mock(memory):
    example = load("gpu_arrays.py")
    shape = (example["BLOCKS"], 2, example["TOKENS"], example["WIDTH"])
    arrays = [Array(memory, shape) for _ in range(example["LAYERS"])]
    before = [array.host.copy() for array in arrays]
    engine = example["round_trip"](arrays, 0)
    engine.close()
    for array, content in zip(arrays, before, strict=True):
        assert np.array_equal(array.host[5:7], content[1:3])
        assert np.array_equal(array.host[:5], content[:5])
        assert np.array_equal(array.host[7:], content[7:])


class Server(BaseHTTPRequestHandler):
    """What the example asks of vLLM's server; `faults` are replies that replace its own."""

    faults: ClassVar[dict[str, tuple[int, str]]] = {}
    asked: ClassVar[list[str]] = []
    usage: ClassVar[dict[str, object]] = {"prompt_tokens": 9}

    def do_GET(self):
        metrics = """vllm:cache_config_info{block_size="64"} 1.0
vllm:hybrid_pages_hit_tokens_total{engine="0",source="host"} %d.0
"""
        known = {
            "/v1/models": (200, json.dumps({"data": [{"id": "tiny"}]})),
            "/metrics": (200, metrics % max(0, 64 * (self.asked.count("/v1/completions") - 2))),
            "/v1/completions": (200, json.dumps({"usage": self.usage})),
            "/v1/chat/completions": (200, json.dumps({"usage": self.usage})),
            "/reset_prefix_cache": (200, json.dumps({"success": True})),
        }
        self.asked.append(self.path)
        status, body = self.faults.get(self.path, known[self.path])
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def vllm():
    """Runs the example of a server against one that answers so."""

    def run(faults=()):
        kind = type("Mine", (Server,), {"faults": dict(faults), "asked": []})
        http = HTTPServer(("127.0.0.1", 0), kind)
        Thread(target=http.serve_forever, daemon=True).start()
        try:
            return load("vllm_server.py")["main"]([f"http://127.0.0.1:{http.server_port}"])
        finally:
            http.shutdown()
            http.server_close()

    return run


NO_TEMPLATE = json.dumps({"error": {"message": "you must provide a chat template", "code": 400}})


def test_a_model_without_a_chat_template_gets_plain_text(vllm):
    assert vllm({"/v1/chat/completions": (400, NO_TEMPLATE)}) == 64


def test_where_nothing_is_restored_the_example_says_what_to_run(vllm, capsys):
    faults = {"/metrics": (200, 'vllm:cache_config_info{block_size="64"} 1.0\n')}
    assert vllm(faults) == 0
    assert "hybrid-pages doctor --url http://127.0.0.1:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ({"/v1/chat/completions": (400, '{"error": "too long"}')}, "HTTP Error 400.*too long"),
        ({"/v1/models": (401, "who?")}, "HTTP Error 401.*who"),
        ({"/metrics": (200, "")}, "expected vllm:cache_config_info"),
        ({"/reset_prefix_cache": (404, "")}, "VLLM_SERVER_DEV_MODE=1"),
        ({"/reset_prefix_cache": (200, '{"success": false}')}, "found blocks in use"),
    ],
)
def test_a_refusal_is_told_in_the_servers_words(vllm, faults, said, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(Exception, match=said) as raised:
        vllm(faults)
    assert type(raised.value).__name__ == "Refused"


def test_without_a_server_the_example_says_so():
    ended = subprocess.run(
        [sys.executable, EXAMPLES / "vllm_server.py", "http://127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert "http://127.0.0.1:1/v1/models: expected vLLM's server, found none" in ended.stderr
    assert "Traceback" not in ended.stderr
