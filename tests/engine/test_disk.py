"""Real engines that end and start again on one disk."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

SCRIPT = Path(__file__).with_name("serve_disk.py")
N = 32
LENGTHS = (5 * N + 3, 40 * N + 7, 17 * N)
WHOLE = [(length - 1) // N * N for length in LENGTHS]
IDLE_SECONDS = 2.0


class Server:
    """An engine in processes of its own, and what it has found."""

    def __init__(self, model: Path, disk: Path) -> None:
        environment = {
            **os.environ,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        environment.pop("PYTHONHASHSEED", None)
        self._process = subprocess.Popen(
            [sys.executable, SCRIPT, model, disk, *map(str, LENGTHS)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        lines = []
        for line in self._process.stdout:
            lines.append(line)
            if line.startswith("FOUND "):
                break
        else:
            raise AssertionError("the engine ended:\n" + "".join(lines[-80:]))
        found = json.loads(line.removeprefix("FOUND "))
        self.first, self.local = found["first"], found["local"]
        self.hits = {
            name.rpartition(":")[2]: count for name, count in found["metrics"].items() if count
        }

    @property
    def cached(self) -> list[int]:
        """Cached tokens of each prompt when it was asked first."""
        return [cached for cached, *_ in self.first]

    def end(self, number: signal.Signals) -> None:
        """Sends a signal to all of its processes, and waits for their end."""
        time.sleep(IDLE_SECONDS)
        os.killpg(self._process.pid, number)
        self._process.stdout.read()  # until the last of them has closed it
        self._process.wait(60)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory) -> Path:
    """A model's folder, whose weights may be changed."""
    return shutil.copytree(model("qwen3.5"), tmp_path_factory.mktemp("weights") / "model")


@pytest.fixture(scope="module")
def disk(folder, tmp_path_factory) -> Path:
    """A disk that an engine was killed on."""
    disk = tmp_path_factory.mktemp("disk") / "disk"
    server = Server(folder, disk)
    assert server.cached == [0] * len(LENGTHS)
    server.end(signal.SIGKILL)
    return disk


def test_a_restarted_engine_gives_what_the_local_hit_gives(folder, disk):
    for number in (signal.SIGTERM, signal.SIGKILL):  # the first one after a SIGKILL
        server = Server(folder, disk)
        try:
            assert server.cached == WHOLE
            assert server.first == server.local
            assert server.hits == {"disk": sum(WHOLE), "local": sum(WHOLE)}
        finally:
            server.end(number)


def test_other_weights_under_the_same_path_restore_nothing(folder, disk):
    path = next(folder.glob("*.safetensors"))
    tensors = load_file(path)
    name = next(name for name in tensors if "layers.1" in name and name.endswith("weight"))
    tensors[name] = tensors[name] * 1.01
    save_file(tensors, path, metadata={"format": "pt"})
    server = Server(folder, disk)
    try:
        assert server.cached == [0] * len(LENGTHS)
    finally:
        server.end(signal.SIGKILL)
