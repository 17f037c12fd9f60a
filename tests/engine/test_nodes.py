"""A real engine on two nodes, in processes that see neither each other nor each other's memory."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from vllm.utils.network_utils import get_open_port

SCRIPT = Path(__file__).with_name("serve_nodes.py")
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
}
N = 128
# Around boundaries of blocks.
LENGTHS = (500, 1536)
# The second node sees no other processes, so not their memory, and has a /dev/shm of its own.
APART = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc", "--mount"]
MOUNTS = ["sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh"]

pytestmark = pytest.mark.long


def can_be_apart() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*APART, *MOUNTS, "true"], capture_output=True).returncode == 0


class Nodes:
    """An engine on two nodes, of which the second may have other settings."""

    def __init__(
        self, model: Path, folder: Path, ranks: int, stages: int, settings: dict, other: dict
    ) -> None:
        port, self._logs = str(get_open_port()), [folder / "first", folder / "second"]
        command = [sys.executable, str(SCRIPT)]
        rest = [port, str(model), str(ranks), str(stages)]
        commands = [
            [*command, "0", *rest, json.dumps(settings), *map(str, LENGTHS)],
            [*APART, *MOUNTS, *command, "1", *rest, json.dumps(other)],
        ]
        self.processes = []
        for words, log in zip(commands, self._logs, strict=True):
            with log.open("w") as file:
                self.processes.append(
                    subprocess.Popen(
                        words,
                        env={**os.environ, **ENVIRONMENT},
                        stdin=subprocess.PIPE,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        text=True,
                        start_new_session=True,
                    )
                )

    def said(self, part: str, seconds: float = 300) -> object:
        """What the first node has said of a part, as soon as it has."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for line in self._logs[0].read_text().splitlines():
                if line.startswith("FOUND "):
                    name, found = json.loads(line.removeprefix("FOUND "))
                    if name == part:
                        return found
            if self.processes[0].poll() is not None:
                break
            time.sleep(0.2)
        raise AssertionError(f"no {part}:\n{self.logs()}")

    def logs(self) -> str:
        return "\n".join(log.read_text()[-6000:] for log in self._logs)

    def ask(self, length: int) -> None:
        print(length, file=self.processes[0].stdin, flush=True)

    def kill(self, node: int) -> None:
        """Everything on a node is gone at once."""
        os.killpg(self.processes[node].pid, signal.SIGKILL)


@pytest.fixture
def on_two_nodes(model: Callable[[str], Path], tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    if not can_be_apart():
        pytest.skip("namespaces: expected unshare to make them, found that it can't")
    started = []

    def begin(name: str, ranks: int, stages: int, other: dict | None = None) -> Nodes:
        settings = {"host_gb": 0.1, "verify_on_load": True}
        given = settings if other is None else other
        started.append(Nodes(model(name), tmp_path, ranks, stages, settings, given))
        return started[-1]

    yield begin
    for nodes in started:
        for node, process in enumerate(nodes.processes):
            if process.poll() is None:
                nodes.kill(node)
            process.wait(30)


@pytest.mark.parametrize(("ranks", "stages"), [(2, 1), (1, 2)])
def test_what_two_nodes_store_is_restored_until_one_is_gone(on_two_nodes, ranks, stages):
    nodes = on_two_nodes("qwen3.5-tp2", ranks=ranks, stages=stages)
    parts = ("cold", "local", "restored", "forgotten")
    found = {part: nodes.said(part) for part in parts}
    cached = {part: [answer[0] for answer in answers] for part, answers in found.items()}
    assert cached["cold"] == cached["forgotten"] == [0] * len(LENGTHS)
    assert cached["local"] == [(length - 1) // N * N for length in LENGTHS]
    assert cached["restored"] == [length - 1 for length in LENGTHS]
    restored, local = ([answer[1:] for answer in found[part]] for part in ("restored", "local"))
    assert restored == local
    metrics = nodes.said("metrics")
    assert metrics["hit_tokens:host"] == sum(cached["restored"])
    assert not any("failures" in name for name in metrics)
    nodes.ask(1000)
    assert nodes.said("more")[0] == 0
    if stages > 1:
        return  # vLLM waits for the answer of the last stage as long as a step may take
    nodes.kill(1)
    nodes.ask(1000)
    assert nodes.processes[0].wait(120) != 0, nodes.logs()


def test_a_node_with_other_settings_is_named(on_two_nodes):
    nodes = on_two_nodes(
        "qwen3.5-tp2", ranks=2, stages=1, other={"host_gb": 0.2, "verify_on_load": True}
    )
    assert nodes.processes[0].wait(300) != 0
    assert "rank 1 (node 1, host" in nodes.logs() and "the same host_gb" in nodes.logs()
