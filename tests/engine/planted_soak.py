"""Faults that the soak must find: what is restored is spoilt, or something is kept for good."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from harness import Engine

Kept = list[Any]
MIB = 16
"""How much memory is kept each time. It is written, so that the system must hold it."""


class SpoiltByte:
    """Changes one byte of each restored state: the high byte of one of its numbers."""

    def swapped(self, job: Any, geometry: Any) -> Any:
        """Loads keep their blocks."""
        return job

    def zero(self, job: Any, geometry: Any, tensors: Sequence[Sequence[torch.Tensor]]) -> None:
        """Called when a load has ended, before its request goes on."""
        for item, _, blocks, _ in job.entries:
            kind = geometry.classes[item]
            if kind.kind != "recurrent":
                continue
            tensor = tensors[kind.groups[0]][-1]
            for block in blocks[:1]:
                tensor[block].view(torch.uint8).flatten()[-1] ^= 0xFF


def byte(engine: Engine, kept: Kept) -> None:
    engine.worker._plant = SpoiltByte()


def lease(engine: Engine, kept: Kept) -> None:
    cache, keys = engine.half.connection.cache, engine._last_keys
    if keys is not None and not kept:
        found = cache.acquire(cache.namespace(b""), keys)
        if found is not None:
            kept.append(found)


def slot(engine: Engine, kept: Kept) -> None:
    cache = engine.half.connection.cache
    if not kept:
        kept.append(cache.reserve(cache.namespace(b""), [b"of no prompt".ljust(32)], [(0, 0)]))


def block(engine: Engine, kept: Kept) -> None:
    if not kept:
        kept.append(engine.pool.get_new_blocks(1))


def file(engine: Engine, kept: Kept) -> None:
    kept.append(os.open("/proc/self/status", os.O_RDONLY))


def thread(engine: Engine, kept: Kept) -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def memory(engine: Engine, kept: Kept) -> None:
    kept.append(b"\1" * (MIB << 20))


PLANTS: dict[str, tuple[Callable[[Engine, Kept], None], str]] = {
    "a wrong byte": (byte, ", resumed at "),
    "a lease": (lease, "leased bytes are held"),
    "a slot": (slot, "leased bytes are held"),
    "a block": (block, "blocks are held"),
    "a file": (file, "files grew"),
    "a thread": (thread, "threads grew"),
    "memory": (memory, "MiB grew"),
}
"""What is done after each piece of traffic, and what each complaint then says."""
