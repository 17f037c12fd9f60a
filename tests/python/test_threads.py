"""Many threads on one cache: every slot that is held keeps its bytes, and nothing is left over.

`HYBRID_PAGES_THREADS_SECONDS` is how long the threads are at work.
"""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Any

import pytest

from cache_support import keys, make, whole
from hybrid_pages import HybridPagesError
from prove_report import report

SECONDS = float(os.environ.get("HYBRID_PAGES_THREADS_SECONDS", "1"))
THREADS = 8
SLOTS = 24


class World:
    """A cache, and for each slot a word that says whose bytes it holds."""

    def __init__(self) -> None:
        self.cache, self.namespace = make(slots=SLOTS)
        self.slots = [0] * SLOTS
        self.compared = 0
        self.calls = 0
        self.wrong: list[str] = []

    def word(self, prompt: str, entry: Any) -> int:
        return hash((prompt[: entry.block_index + 1], entry.class_index)) & (2**63 - 1)

    def store(self, rng: random.Random, prompt: str) -> None:
        with self.cache.reserve(self.namespace, keys(prompt), whole(prompt)) as lease:
            words = [self.word(prompt, entry) for entry in lease.entries]
            for entry, word in zip(lease.entries, words, strict=True):
                for slot in entry.slots:
                    self.slots[slot] = word
            time.sleep(0)
            for entry, word in zip(lease.entries, words, strict=True):
                self.expect(entry, word, f"reserved for {prompt}")
            if rng.random() < 0.9:
                lease.commit([[word] for word in words])

    def expect(self, entry: Any, word: int, what: str) -> None:
        found = [self.slots[slot] for slot in entry.slots]
        self.compared += 1
        if any(other != word for other in found):
            self.wrong.append(f"{what}: expected {word}, found {found}")

    def load(self, prompt: str) -> None:
        lease = self.cache.acquire(self.namespace, keys(prompt))
        if lease is None:
            return
        with lease:
            for turn in range(2):
                for entry in lease.entries:
                    word = self.word(prompt, entry)
                    assert entry.checksums == [word]
                    self.expect(entry, word, f"read for {prompt}")
                if not turn:
                    time.sleep(0)

    def work(self, seed: int, until: float) -> None:
        rng = random.Random(seed)
        while time.monotonic() < until and not self.wrong:
            prompt = "".join(rng.choice("ab") for _ in range(rng.randrange(1, 5)))
            prompt += rng.choice(["", "", "A", "C"])
            self.calls += 1
            match rng.randrange(20):
                case 0 | 1 | 2 | 3 | 4 | 5 | 6:
                    self.store(rng, prompt)
                case 7:
                    self.cache.clear()
                case 8:
                    assert self.cache.stats()["slots"] == SLOTS
                case 9:
                    self.cache.lookup(self.namespace, keys(prompt))
                case 10:
                    lease = self.cache.acquire(self.namespace, keys(prompt))
                    if lease is not None:
                        self.cache.invalidate(lease)
                        del lease  # which ends it
                case _:
                    self.load(prompt)


@pytest.mark.timeout(0 if SECONDS > 600 else 900)
def test_slots_keep_their_bytes_while_many_threads_use_the_cache(monkeypatch) -> None:
    import sys

    before = sys.getswitchinterval()
    world, until = World(), time.monotonic() + SECONDS
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            world.work(seed, until)
        except (AssertionError, HybridPagesError, RuntimeError) as error:
            errors.append(error)

    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not errors and not world.wrong, (errors[:1], world.wrong[:3])
    assert world.compared > 100
    assert world.cache.stats()["leased_slots"] == 0
    report({"calls by Python's threads": world.calls, "entries compared by them": world.compared})
