"""The helper of a Mooncake tier: a process of its own that drives Mooncake's client.

The tier (`rust/tiers/mooncake`) starts the process. Standard input is a socket, on which each
message is a line of JSON (`src/wire.rs` of the tier has them); standard output is the staging
memory, shared with the tier. The process maps the slots for reading only. It ends when the tier
closes the socket, and may be killed at any time.
"""

from __future__ import annotations

import ctypes
import functools
import json
import mmap
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from hybrid_pages._core import HybridPagesError, RemoteError

WHEEL = "mooncake-transfer-engine-non-cuda"
_MAP_FAILED = ctypes.c_void_p(-1).value


def command() -> list[str]:
    """The command that starts the helper with this process's module path."""
    code = (
        "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
        "from hybrid_pages.mooncake import main; main()"
    )
    return [sys.executable, "-c", code, json.dumps(sys.path)]


def _map(fd: int, nbytes: int, protection: int) -> int:
    """Maps a file until the process ends. Returns the address."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    address = libc.mmap(None, nbytes, protection, mmap.MAP_SHARED, fd, 0)
    if address in (None, _MAP_FAILED):
        raise RemoteError(
            f"expected to map {nbytes} bytes, found {os.strerror(ctypes.get_errno())}"
        )
    return int(address)


def _map_slots(path: str, first: int) -> int:
    """Maps a plane's file. Returns the address of the slots, which begin `first` bytes into it."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return _map(fd, os.fstat(fd).st_size, mmap.PROT_READ) + first
    finally:
        os.close(fd)


def _own_address(master: str) -> str:
    """The address of this machine on the network of the master. Sends nothing."""
    host, _, port = master.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((host.strip("[]"), int(port)))
        return str(probe.getsockname()[0])


class Client:
    """Mooncake's client, with the staging memory and the slots registered.

    master: address of the Mooncake master. planes: path and offset of the slots of each rank.
    staging: size of the staging memory. fd: its file.
    """

    def __init__(self, master: str, planes: list[tuple[str, int]], staging: int, fd: int) -> None:
        # Only the helper may import this: it starts threads and installs signal handlers.
        from mooncake.store import MooncakeDistributedStore

        self._staging = _map(fd, staging, mmap.PROT_READ | mmap.PROT_WRITE)
        self._planes = [_map_slots(path, first) for path, first in planes]
        self._store = MooncakeDistributedStore()
        code = self._store.setup(
            {
                "local_hostname": _own_address(master),
                "metadata_server": "P2PHANDSHAKE",
                "global_segment_size": "0",
                "local_buffer_size": "0",
                "protocol": "tcp",
                "rdma_devices": "",
                "master_server_addr": master,
            }
        )
        if code != 0:
            raise RemoteError(f"expected a Mooncake master at {master}, found code {code}")
        # Ranges arrive in registered memory only. Peers may write there.
        code = self._store.register_buffer(self._staging, staging)
        if code != 0:
            raise RemoteError(f"expected to register {staging} bytes, found code {code}")

    def _headers(self, keys: list[str], places: list[int], length: int) -> list[int]:
        """Reads the first bytes of values into the staging memory. Returns bytes or errors."""
        if not keys:
            return []
        ranges = self._store.get_into_ranges(
            [self._staging], [keys], [[[at] for at in places]], [[[0]] * len(keys)],
            [[[length]] * len(keys)],
        )  # fmt: skip
        return [int(code[0]) for code in ranges[0]]

    def ask(self, keys: list[str], at: int, length: int) -> list[int]:
        """Looks keys up and reads the headers of those that exist.

        at: where in the staging memory the headers go. length: of a header.

        Returns:
            For each key 1 if it exists, 0 if it does not, or a negative error.
        """
        codes = [int(code) for code in self._store.batch_is_exist(keys)]
        there = [index for index, code in enumerate(codes) if code == 1]
        places = [at + index * length for index in there]
        headers = self._headers([keys[index] for index in there], places, length)
        for index, code in zip(there, headers, strict=True):
            codes[index] = 1 if code == length else min(code, -1)
        return codes

    def get(self, items: list[dict[str, Any]]) -> list[int]:
        """Reads values into the staging memory. Returns bytes or a negative error for each."""
        return [
            int(code)
            for code in self._store.batch_get_into_multi_buffers(
                [item["key"] for item in items],
                [[self._staging + item["at"]] for item in items],
                [[item["length"]] for item in items],
            )
        ]

    def put(self, items: list[dict[str, Any]], length: int) -> list[int]:
        """Writes values, and reads back the headers of those that exist afterwards.

        items: each with the key, the place of the header in the staging memory, and parts of slots.
        length: of a header.

        Returns:
            For each item 0 if there is a value now, whoever wrote it, or a negative error.
        """
        keys = [item["key"] for item in items]
        pieces: list[list[tuple[int, int]]] = [
            [
                (self._staging + item["at"], length),
                *((self._planes[plane] + at, size) for plane, at, size in item["parts"]),
            ]
            for item in items
        ]
        put = self._store.batch_put_from_multi_buffers(
            keys,
            [[address for address, _ in parts] for parts in pieces],
            [[size for _, size in parts] for parts in pieces],
        )
        codes = [int(code) for code in put]
        for item in items:
            ctypes.memset(self._staging + item["at"], 0, length)
        # 0 is also the answer where another value is kept, or one that its writer never ended.
        taken = [index for index, code in enumerate(codes) if code == 0]
        places = [items[index]["at"] for index in taken]
        headers = self._headers([keys[index] for index in taken], places, length)
        for index, code in zip(taken, headers, strict=True):
            codes[index] = 0 if code == length else min(code, -1)
        return codes

    def remove(self, keys: list[str]) -> list[int]:
        """Removes values. Returns 0 or a negative error for each."""
        return [int(code) for code in self._store.batch_remove(keys, True)]


class _Tier:
    """The connection to the tier."""

    def __init__(self, connection: socket.socket) -> None:
        self._lines = connection.makefile("r", encoding="utf-8")
        self._connection = connection
        self._lock = threading.Lock()

    def messages(self) -> Iterator[dict[str, Any]]:
        for line in self._lines:
            yield json.loads(line)

    def tell(self, **answer: object) -> None:
        line = json.dumps(answer) + "\n"
        with self._lock:
            self._connection.sendall(line.encode())


def _lane(work: queue.SimpleQueue[tuple[int, Callable[[], list[int]]]], tier: _Tier) -> None:
    try:
        while True:
            number, call = work.get()
            tier.tell(id=number, codes=call())
    except BaseException:
        # Ends the process, whatever happened: the tier then fails what it waits for and starts
        # another helper.
        traceback.print_exc()
        os._exit(1)


def main() -> None:
    """Serves the tier at the other end of standard input until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    staging_fd = os.dup(1)
    os.dup2(2, 1)  # what libraries print goes to standard error
    tier = _Tier(socket.socket(fileno=0))
    messages = tier.messages()
    start = next(messages, None)
    if start is None:
        os._exit(0)
    try:
        client = Client(start["master"], start["planes"], start["staging"], staging_fd)
    except ImportError as error:
        tier.tell(
            error=f"expected Mooncake's client, found {error}: install the package {WHEEL} and, if "
            "a shared library is missing, the system's libibverbs1 and libnl-route-3-200"
        )
        os._exit(1)
    except (HybridPagesError, OSError, RuntimeError) as error:
        tier.tell(error=str(error))
        os._exit(1)
    lanes: dict[str, queue.SimpleQueue[tuple[int, Callable[[], list[int]]]]] = {}
    # Writes and removals share a thread, so that they happen in order.
    for names in (("ask",), ("get",), ("put", "remove")):
        work: queue.SimpleQueue[tuple[int, Callable[[], list[int]]]] = queue.SimpleQueue()
        lanes.update(dict.fromkeys(names, work))
        threading.Thread(target=_lane, args=(work, tier), daemon=True).start()
    tier.tell(ready=True)
    for message in messages:
        name, number = message.pop("do"), message.pop("id")
        lanes[name].put((number, functools.partial(getattr(client, name), **message)))
    os._exit(0)
