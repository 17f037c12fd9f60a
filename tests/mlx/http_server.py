"""Servers as processes, and clients of them: mlx-lm's, or vllm-mlx's where that is installed, and
the same with our cache."""

import contextlib
import http.client
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

VLLM_MLX = importlib.util.find_spec("vllm_mlx") is not None
NAME = "default_model"
_STOCK = f"from {'vllm_mlx.cli' if VLLM_MLX else 'mlx_lm.server'} import main; main()"
_OURS = "import sys; from hybrid_pages.cli import main; sys.exit(main())"
_START_SECONDS = 120
# On a signal a server says what MLX holds, and what is stored beside it.
_TELL = """
import gc, signal
import mlx.core as mx

def tell(*_):
    gc.collect()
    mx.clear_cache()
    caches = [each for each in gc.get_objects() if type(each).__name__ == "Prompts"]
    stored = sum(each.nbytes for each in caches)
    print("HELD", mx.get_active_memory(), stored, flush=True)

signal.signal(signal.SIGUSR1, tell)
signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background
"""


class Server:
    """A client of one server. log: its file. process: its process."""

    def __init__(self, port, log):
        self.port, self.log, self.process = port, log, None

    def post(self, path, body):
        """Status and answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        raw = response.read()
        connection.close()
        try:
            return response.status, json.loads(raw)
        except json.JSONDecodeError:
            return response.status, raw

    def chat(self, messages, tokens=8, **more):
        """The text of an answer, and how many of how many prompt tokens were reused."""
        body = dict(model=NAME, messages=messages, max_tokens=tokens, temperature=0) | more
        status, answer = self.post("/v1/chat/completions", body)
        assert status == 200, (status, answer)
        message = answer["choices"][0]["message"]
        return message.get("content") or message.get("reasoning", ""), *self.usage(answer)

    def complete(self, prompt, tokens=8, **more):
        body = dict(model=NAME, prompt=prompt, max_tokens=tokens, temperature=0) | more
        status, answer = self.post("/v1/completions", body)
        assert status == 200, (status, answer)
        return answer["choices"][0]["text"], *self.usage(answer)

    def stream(self, messages, tokens=8, *, lines=None):
        """The text of an answer that comes in events; after so many lines the client goes away."""
        body = dict(model=NAME, messages=messages, max_tokens=tokens, temperature=0, stream=True)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        assert response.status == 200
        text = ""
        for count, line in enumerate(response):
            if count == lines:
                break
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    delta = choice.get("delta", {})
                    text += delta.get("content") or delta.get("reasoning") or ""
        connection.close()
        return text

    def healthy(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200

    def usage(self, answer):
        """How many tokens of a prompt were reused, and how many it has."""
        usage = answer["usage"]
        if "prompt_tokens_details" not in usage:
            # vllm-mlx's own says it in its log alone.
            computed = re.findall(r"tokens_to_prefill=(\d+)", self.logged())[-1]
            return usage["prompt_tokens"] - int(computed), usage["prompt_tokens"]
        return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]

    def held(self):
        """Bytes that MLX holds, and that prompts take in an arena."""
        before = self.logged().count("HELD ")
        self.process.send_signal(signal.SIGUSR1)
        until = time.monotonic() + 20
        while (text := self.logged()).count("HELD ") == before or not text.endswith("\n"):
            assert time.monotonic() < until, "no answer to the signal after 20 s"
            time.sleep(0.02)
        active, stored = text.split("HELD ")[-1].split("\n")[0].split()
        return int(active), int(stored)

    def logged(self):
        return self.log.read_text()

    def wait_for(self, words, seconds=30):
        """Waits until the log says something."""
        until = time.monotonic() + seconds
        while words not in self.logged():
            assert time.monotonic() < until, f"no {words!r} after {seconds} s"
            time.sleep(0.05)


@contextlib.contextmanager
def serving(folder, log, *flags, ours, kind=Server):
    """A server of the model in a folder, until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if VLLM_MLX:
        own = ["vllm-mlx"] if ours else []
        words = [*own, "serve", str(folder), "--continuous-batching", "--served-model-name", NAME]
    else:
        words = ["mlx-server", str(folder)] if ours else ["--model", str(folder)]
    words += ["--port", str(port), "--prefill-step-size", "64", *flags]
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _TELL + (_OURS if ours else _STOCK), *words],
            stdout=output,
            stderr=subprocess.STDOUT,
            # vllm-mlx keeps prompts in the user's folder.
            env={**os.environ, "HOME": str(log.parent)},
        )
    server = kind(port, log)
    server.process = process
    try:
        until = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                if server.healthy():
                    break
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, f"no server after {_START_SECONDS} s"
            time.sleep(0.05)
        yield server
    finally:
        process.terminate()
        process.wait(20)
