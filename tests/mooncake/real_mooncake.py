"""Mooncake's own master and stores, as processes."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PORT = 50051
MASTER = f"127.0.0.1:{PORT}"
LIMIT = 60.0
# Offers memory to the store, and says when it does.
OWNER = """
import signal, sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
code = store.setup({
    "local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE",
    "global_segment_size": sys.argv[2], "local_buffer_size": str(16 << 20), "protocol": "tcp",
    "rdma_devices": "", "master_server_addr": sys.argv[1],
})
print(code, flush=True)
signal.pause()
"""


def why_not() -> str:
    """What these tests lack here; empty if nothing."""
    if importlib.util.find_spec("mooncake") is None:
        return "needs Mooncake's client: run `make test-mooncake`"
    others = {name for _, name in socket.if_nameindex()} - {"lo"}
    if others:
        # Its servers listen on all addresses, whatever they are told.
        return f"needs a network namespace with loopback alone, found {sorted(others)}"
    return ""


class Store:
    """A master and machines that offer memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.master: subprocess.Popen[bytes] | None = None
        self.owners: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Store:
        self.start_master()
        self.add(64 << 20)
        return self

    def __exit__(self, *_: object) -> None:
        for process in [self.master, *self.owners]:
            if process is not None:
                process.kill()
                process.wait()

    def start_master(self, *words: str) -> None:
        package = Path(importlib.util.find_spec("mooncake").origin).parent
        with open(self.folder / "master.log", "ab") as log:
            self.master = subprocess.Popen(
                [
                    package / "mooncake_master",
                    "--rpc_address=127.0.0.1",
                    f"--rpc_port={PORT}",
                    "--metrics_host=127.0.0.1",
                    *words,
                ],
                stdout=log,
                stderr=log,
            )
        limit = time.monotonic() + LIMIT
        while True:
            try:
                socket.create_connection(("127.0.0.1", PORT)).close()
                return
            except OSError:
                assert time.monotonic() < limit, (self.folder / "master.log").read_text()
                time.sleep(0.01)

    def kill_master(self) -> None:
        self.master.kill()
        self.master.wait()

    def stop_master(self) -> None:
        """It is there and never answers."""
        self.master.send_signal(signal.SIGSTOP)
        wait_stopped(self.master.pid)

    def continue_master(self) -> None:
        self.master.send_signal(signal.SIGCONT)

    def add(self, nbytes: int) -> subprocess.Popen[bytes]:
        """One more machine with memory."""
        with open(self.folder / "owners.log", "ab") as log:
            owner = subprocess.Popen(
                [sys.executable, "-c", OWNER, MASTER, str(nbytes)],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "GLOG_minloglevel": "1"},
            )
        self.owners.append(owner)
        assert owner.stdout.readline() == b"0\n", (self.folder / "owners.log").read_text()
        return owner


def wait_stopped(pid: int) -> None:
    limit = time.monotonic() + LIMIT
    while not all(
        "T (stopped)" in task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/status")
    ):
        assert time.monotonic() < limit
        time.sleep(0.01)


def client():
    """Mooncake's client in this process, to look and to plant: for tests alone."""
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    code = store.setup(
        {
            "local_hostname": "127.0.0.1",
            "metadata_server": "P2PHANDSHAKE",
            "global_segment_size": "0",
            "local_buffer_size": str(16 << 20),
            "protocol": "tcp",
            "rdma_devices": "",
            "master_server_addr": MASTER,
        }
    )
    assert code == 0
    return store
