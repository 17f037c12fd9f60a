"""Mooncake's client as our helper uses it, over a directory: codes as the real one gives them.

FAKE_MOONCAKE names the directory. A file `fault-CALL` in it makes that call misbehave: it holds a
code that every key gets, or `hang`, `exit`, `raise`, `hold` (wait until the file has gone), `lose`
(answer well, do nothing) or `short` (bring all bytes, say one less). While `fault-wild` is there,
every key and every answer may meet a fault of its own.
"""

from __future__ import annotations

import ctypes
import os
import random
import time
from pathlib import Path
from urllib.parse import quote

NOT_FOUND, WRONG_LENGTH, TRANSFER_FAIL = -704, -600, -800


class MooncakeDistributedStore:
    def __init__(self) -> None:
        self.folder = Path(os.environ["FAKE_MOONCAKE"])
        self.registered: list[range] = []
        self.random = random.Random(os.getpid())

    def path(self, key: str) -> Path:
        return self.folder / quote(key, safe="")

    def planted(self, call: str) -> str:
        try:
            return (self.folder / f"fault-{call}").read_text()
        except FileNotFoundError:
            return ""

    def fault(self, call: str) -> str:
        while (fault := self.planted(call)) == "hold":
            (self.folder / "holds").touch()
            time.sleep(0.002)
        if fault == "hang":
            (self.folder / "hangs").touch()
            time.sleep(3600)
        if self.chance(0.01):
            fault = self.random.choice(["exit", "raise", "slow"])
        if fault == "slow":
            time.sleep(self.random.random())
            fault = ""
        if fault == "exit":
            os._exit(7)
        if fault == "raise":
            raise RuntimeError("a fault of the test's")
        return fault

    def chance(self, part: float) -> bool:
        return bool(self.planted("wild")) and self.random.random() < part

    def read(self, key: str) -> bytes:
        """A value, or something else."""
        if self.chance(0.05):
            others = sorted(self.folder.glob("hp*"))
            return self.random.choice(others).read_bytes() if others else b""
        return self.spoilt(self.path(key).read_bytes())

    def spoilt(self, data: bytes) -> bytes:
        """Bytes as they are, mostly."""
        if not data or not self.chance(0.1):
            return data
        at = self.random.randrange(len(data))
        return self.random.choice(
            [
                data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :],
                data[at:] + data[:at],
                bytes(len(data)),
                data[:at],
                data + data[:at],
            ]
        )

    def told(self, codes: list[int]) -> list[int]:
        """Codes as they are, mostly."""
        lies = [0, 1, -1, -200, NOT_FOUND, TRANSFER_FAIL, 1 << 40, -(1 << 63)]
        codes = [self.random.choice(lies) if self.chance(0.05) else code for code in codes]
        return codes[:-1] if self.chance(0.01) else codes

    def setup(self, config: dict[str, str]) -> int:
        assert all(isinstance(value, str) for value in config.values())
        return int(self.fault("setup") or 0)

    def register_buffer(self, address: int, size: int) -> int:
        self.registered.append(range(address, address + size))
        return int(self.fault("register") or 0)

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        fault = self.fault("exist")
        return self.told([int(fault or self.path(key).exists()) for key in keys])

    def get_into_ranges(self, buffers, keys, to, offsets, sizes):
        fault = self.fault("ranges")
        if fault:
            return [[size if fault == "lose" else [int(fault)] for size in sizes[0]]]
        codes = []
        for key, (at,), (offset,), (size,) in zip(
            keys[0], to[0], offsets[0], sizes[0], strict=True
        ):
            assert any(buffers[0] + at in part for part in self.registered)
            try:
                data = self.read(key)[offset : offset + size]
            except FileNotFoundError:
                codes.append([NOT_FOUND])
                continue
            if len(data) < size:
                codes.append([WRONG_LENGTH])
                continue
            ctypes.memmove(buffers[0] + at, data, size)
            codes.append([size])
        return [[[code] for code in self.told([code for (code,) in codes])]]

    def batch_get_into_multi_buffers(self, keys, pointers, sizes):
        fault = self.fault("get")
        codes = []
        for key, ((address,), (size,)) in zip(keys, zip(pointers, sizes, strict=True), strict=True):
            try:
                data = self.read(key)
            except FileNotFoundError:
                codes.append(NOT_FOUND)
                continue
            if fault == "lose" and len(data) == size:
                codes.append(size)
            elif fault and fault != "short":
                codes.append(int(fault))
            elif len(data) != size:
                codes.append(WRONG_LENGTH if size < len(data) else TRANSFER_FAIL)
            else:
                ctypes.memmove(address, data, size)
                codes.append(size - (fault == "short"))
        return self.told(codes)

    def batch_put_from_multi_buffers(self, keys, pointers, sizes):
        fault = self.fault("put")
        for key, parts, lengths in zip(keys, pointers, sizes, strict=True):
            path = self.path(key)
            data = self.spoilt(b"".join(map(ctypes.string_at, parts, lengths)))
            if self.chance(0.02):
                continue  # It says that it has it.
            if not fault and not path.exists():  # What is there is kept.
                path.with_suffix(".part").write_bytes(data)
                path.with_suffix(".part").rename(path)
        return self.told([0 if fault == "lose" else int(fault or 0) for _ in keys])

    def batch_remove(self, keys: list[str], force: bool) -> list[int]:
        assert force
        fault = self.fault("remove")
        codes = []
        for key in keys:
            there = self.path(key).exists()
            if there and not fault and not self.chance(0.05):
                self.path(key).unlink()
            codes.append(int(fault) if fault else 0 if there else NOT_FOUND)
        return self.told(codes)
