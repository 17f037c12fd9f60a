"""Engines that start on a disk on which another one was killed."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from harness import Engine, Prompt
from serve_disk import prompts, settings

SCRIPT = Path(__file__).with_name("serve_disk.py")
# An idle engine writes what it has published within a second.
IDLE_SECONDS = 1.5


@pytest.fixture(
    scope="module",
    params=[signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)],
)
def number(request) -> signal.Signals:
    """The signal that ends the first engine, while it is idle."""
    return request.param


@pytest.fixture(scope="module")
def folder(model, number, tmp_path_factory) -> Path:
    """A model's folder, whose weights may be changed."""
    return Path(shutil.copytree(model("qwen3.5"), tmp_path_factory.mktemp("model") / "weights"))


@pytest.fixture(scope="module")
def disk(folder, number, tmp_path_factory) -> Path:
    """A disk that an engine was ended on."""
    disk = tmp_path_factory.mktemp("disk") / "disk"
    process = subprocess.Popen(
        [sys.executable, SCRIPT, folder, disk, number.name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line == "DONE\n":
            break
    else:
        raise AssertionError("the engine ended:\n" + "".join(lines[-80:]))
    time.sleep(IDLE_SECONDS)
    process.send_signal(number)
    process.stdout.read()
    assert process.wait(60) == -number
    return disk


@pytest.fixture
def start(folder, disk) -> Iterator[Callable[..., Engine]]:
    """Starts an engine on the disk."""
    engines = []

    def start(**more: object) -> Engine:
        engines.append(Engine(folder, settings(disk) | more))
        return engines[-1]

    yield start
    for engine in engines:
        engine.shutdown()


def check_restored(engine: Engine, prompt: Prompt) -> None:
    """All of it comes from the disk, and the answer is that of vLLM's own hit, bit for bit."""
    with engine.counting() as counted:
        restored = engine.run(prompt, 8)
    assert restored.host == len(prompt) // engine.N * engine.N
    assert counted["hit_tokens:disk"] == restored.host
    engine.reset_local()
    with engine.looking_away():
        engine.run(prompt, 8)  # vLLM's own blocks, from no restored one
    assert restored == engine.local_hit(prompt, restored, 8)


def test_a_restarted_engine_gives_what_the_local_hit_gives(number, start):
    engine = start()
    for prompt in prompts(number.name, engine.N):
        check_restored(engine, prompt)
    kernels = engine.half.connection.geometry.identity["kernels"]
    assert "CPU" in kernels and "gdn" in kernels, kernels
    assert not any("failures" in name for name in engine.stats())


def test_a_prompt_larger_than_the_host_comes_back_in_waves(number, start):
    engine = start(host_gb=0.001)
    _, long = prompts(number.name, engine.N)
    arena = engine.half.connection.arena
    page, *_ = (
        item for item in engine.half.connection.geometry.classes if item.kind == "attention"
    )
    assert len(long) // engine.N * page.entry_bytes > arena.slots * arena.slot_bytes
    check_restored(engine, long)
    assert engine.half.connection.cache.restores()["waves"] > 2
    assert not any("failures" in name for name in engine.stats())


def test_other_weights_under_the_same_path_restore_nothing(folder, number, start):
    path = next(folder.glob("*.safetensors"))
    tensors = load_file(path)
    name = next(name for name in tensors if "layers.1." in name and name.endswith("proj.weight"))
    tensors[name] = tensors[name] * 1.01
    save_file(tensors, path, metadata={"format": "pt"})
    engine = start()
    for prompt in prompts(number.name, engine.N):
        assert engine.run(prompt, 8).resumed == 0
    assert engine.half.connection.disk.stats()["other_bytes"] > 0
