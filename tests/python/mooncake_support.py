"""Engines' processes over one Mooncake Store, without engines: an arena, and a cache over it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cache_support import SLOT_BYTES, hybrid, keys, whole
from hybrid_pages._core import Arena, Cache, Mooncake, checksum
from hybrid_pages.mooncake import command

SLOTS = 65
"""Not whole pages of memory."""
IDENTITY = bytes(range(32))
LIMIT = 60.0
SIZES = {0: 64, 1: 160}


def wait(what: str, reached: Callable[[], object]) -> None:
    limit = time.monotonic() + LIMIT
    while not reached():
        assert time.monotonic() < limit, f"waited in vain until {what}"
        time.sleep(0.002)


def payload(prompt: str, kind: int, block: int, rank: int) -> bytes:
    seed = f"{prompt[: block + 1]} {kind} {rank} ".encode()
    return (seed * SIZES[kind])[: SIZES[kind]]


class Process:
    """What an engine's process has. Every byte that it loads is compared."""

    def __init__(
        self,
        master: str,
        *,
        identity: bytes = IDENTITY,
        ranks: int = 1,
        block_tokens: int = 16,
        ready: bool = True,
        deadline_ms: int = 2000,
        staging_bytes: int = 1 << 20,
        weighs: bool = False,
        program: list[str] | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.ranks = ranks
        geometry = hybrid(ranks=ranks, block_tokens=block_tokens)
        slot_bytes = SLOT_BYTES * ranks
        self.arena = Arena.create(geometry, slot_bytes=slot_bytes, slots=SLOTS)
        words = [f"{name}={value}" for name, value in (environment or {}).items()]
        self.tier = Mooncake(
            geometry,
            slot_bytes=slot_bytes,
            master=master,
            command=["/usr/bin/env", *words, *(program or command())],
            deadline_ms=deadline_ms,
            weighs=weighs,
            staging_bytes=staging_bytes,
        )
        self.cache = Cache(geometry, slot_bytes=slot_bytes, slots=SLOTS, remote=self.tier)
        self.namespace = self.cache.namespace(b"engine")
        self.others = children()
        self.tier.connect(self.arena, identity)
        if ready:
            self.wait_ready()

    def wait_ready(self) -> None:
        wait("the client is ready", lambda: not self.stats()["out"])

    def stats(self) -> dict[str, int]:
        return self.tier.stats()

    def failures(self) -> dict[str, int]:
        counts = self.stats().items()
        return {name[7:]: count for name, count in counts if name.startswith("failed_") and count}

    def store(
        self, prompt: str, *, change: bytes = b"", settle: bool = True
    ) -> list[tuple[int, ...]]:
        """Stores all pages and a checkpoint at the end; `change` replaces their first bytes.

        Returns the slots of each entry.
        """
        with self.cache.reserve(self.namespace, keys(prompt), whole(prompt)) as lease:
            sums = []
            for entry in lease.entries:
                kind, block = entry.class_index, entry.block_index
                shards = [payload(prompt, kind, block, rank) for rank in range(self.ranks)]
                shards = [change + shard[len(change) :] for shard in shards]
                for at, slot in enumerate(entry.slots):
                    parts = [shard[at * SLOT_BYTES :][:SLOT_BYTES] for shard in shards]
                    self.arena.write(slot, b"".join(part.ljust(SLOT_BYTES) for part in parts))
                sums.append([checksum(shard) for shard in shards])
            slots = [tuple(entry.slots) for entry in lease.entries]
            lease.commit(sums)
        if settle:
            self.settle()
        return slots

    def settle(self) -> None:
        def settled() -> bool:
            done = self.tier.settle(LIMIT)
            self.cache.poll()
            return done

        wait("the tier settles", settled)

    def depth(self, prompt: str) -> int:
        """How deep a lookup finds the prompt, anywhere, once nobody is asked."""
        wait("the store has answered", lambda: not self.hit(prompt).asking)
        return self.hit(prompt).blocks

    def hit(self, prompt: str):
        return self.cache.lookup(self.namespace, keys(prompt))

    def restore(self, prompt: str) -> int:
        """Loads the prompt as deep as it is found, and compares."""
        self.depth(prompt)
        wait("a promotion ends", lambda: not self.cache.promote(self.namespace, keys(prompt)))
        lease = self.cache.acquire(self.namespace, keys(prompt))
        if lease is None:
            return 0
        with lease:
            for entry in lease.entries:
                kind, block = entry.class_index, entry.block_index
                slots = [self.arena.read(slot) for slot in entry.slots]
                for rank in range(self.ranks):
                    parts = [slot[rank * SLOT_BYTES :][:SLOT_BYTES] for slot in slots]
                    data = b"".join(parts)[: SIZES[kind]]
                    assert data == payload(prompt, kind, block, rank), (kind, block, rank)
            return lease.blocks

    def helper(self) -> int:
        """The process id of its client's process."""
        (found,) = children() - self.others
        return found


def children() -> set[int]:
    """The processes that threads of this one have started."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has ended meanwhile
            found.update(map(int, (task / "children").read_text().split()))
    return found
