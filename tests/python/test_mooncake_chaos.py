"""A Mooncake tier over a client that lies, dies and is slow at random.

Every byte that is loaded is right, every copy ends, and all is well again when the store is."""

from __future__ import annotations

import os
import random
import time
from functools import partial

import pytest

from mooncake_support import Process, wait
from test_mooncake import Fake, fake

__all__ = ["fake"]
STEPS = 300
SEED = int(os.environ.get("HYBRID_PAGES_SEED", "1"))
OTHERS = bytes(range(1, 33))


def at_work(fake: Fake, choose: random.Random) -> int:
    """Two processes of one identity, and one of another. Returns how many entries were read."""

    def process(identity: bytes | None) -> Process:
        words = {} if identity is None else {"identity": identity}
        return fake.process(deadline_ms=300, **words)

    identities = [None, None, OTHERS]
    processes = [process(identity) for identity in identities]
    read = 0
    for _ in range(STEPS):
        at = choose.randrange(len(processes))
        one = processes[at]
        if one.stats()["out"]:
            time.sleep(0.05)  # It is tried again after a pause.
        letters = choose.choices("ab", k=choose.randint(0, 5))
        prompt = choose.choice("abcd") + "".join(letters)
        act = choose.random()
        if act < 0.4:
            one.store(prompt, settle=False)
        elif act < 0.9:
            one.restore(prompt)
        elif act < 0.95:
            one.cache.poll()
        else:
            if choose.random() < 0.3:
                one.cache.clear()
                one.restore(prompt)
            read += one.stats()["reads"]
            one.tier.close()
            one.store(prompt, settle=False)
            processes[at] = process(identities[at])
    for one in processes:
        wait("all copies have ended", partial(has_ended, one))
        read += one.stats()["reads"]
        one.tier.close()
    return read


def has_ended(one: Process) -> bool:
    one.cache.poll()
    stats = one.stats()
    return stats["reading"] + stats["writing"] == 0


def has_written(one: Process) -> bool:
    one.store("zyxw")
    return one.stats()["writes"] >= 5


@pytest.mark.parametrize("wild", [False, True])
def test_whatever_a_store_does_the_bytes_are_right(fake, wild):
    if wild:
        fake.fail("wild", "1")
    read = at_work(fake, random.Random(SEED))
    fake.mend()
    print(read, "entries were read")
    assert read > 0 or wild
    for identity in (bytes(range(32)), OTHERS):
        one = fake.process(identity=identity)
        wait("it is written", partial(has_written, one))
        other = fake.process(identity=identity)
        wait("it is found", lambda other=other: other.restore("zyxw") == 4)
