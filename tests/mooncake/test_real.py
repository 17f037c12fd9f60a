"""A Mooncake tier on Mooncake itself: master, stores and clients over TCP."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest
from real_mooncake import MASTER

from mooncake_support import IDENTITY, Process, keys, wait

BLOCKS = "abcdefghijkl"


def process(**settings) -> Process:
    return Process(MASTER, **settings)


def test_what_one_process_writes_another_reads(mooncake):
    first, second = process(), process()
    first.store(BLOCKS)
    assert first.stats()["writes"] == 13
    assert second.restore(BLOCKS + "x") == 12
    assert second.restore("xyz") == 0
    stats = second.stats()
    assert (stats["reads"], stats["outages"]) == (13, 0)
    assert stats["lists"] <= 4, "a prompt is asked for in a batch"
    assert first.failures() == second.failures() == {}


def test_ranks_have_their_own_shards(mooncake):
    first, second = process(ranks=2), process(ranks=2)
    first.store(BLOCKS)
    assert second.restore(BLOCKS) == 12
    assert process().restore(BLOCKS) == 0, "shards of two ranks are nothing for one"


def test_the_same_entries_of_two_writers_are_there_once(mooncake):
    first, second = process(), process()
    first.store("abc")
    second.store("abc")
    assert second.failures() == {}
    third = process()
    assert third.restore("abc") == 3


def test_bytes_that_are_there_stay_and_are_told_apart(mooncake):
    first, second = process(), process()
    first.store("a")
    second.store("a", change=b"other")
    assert second.failures() == {"kept": 2}
    assert process().restore("a") == 1


def test_after_a_clear_nobody_finds_what_this_process_wrote(mooncake):
    first = process()
    first.store("abc")
    first.cache.clear()
    first.settle()
    assert process().restore("abc") == 0
    assert first.failures() == {}


@pytest.mark.parametrize("damage", ["flip", "short", "other", "empty header"])
def test_wrong_bytes_under_a_key_are_a_miss_and_go(mooncake, damage):
    first = process()
    first.store("a")
    # A client of its own process: this one starts threads.
    code = f"""
import sys
from real_mooncake import client
store = client()
for key in store_keys(store):
    value = bytearray(store.get(key))
    damage = {damage!r}
    if damage == "flip": value[-1] ^= 1
    if damage == "short": value = value[:40]
    if damage == "other": value = b"x" * len(value)
    if damage == "empty header": value[:112] = bytes(112)
    assert store.remove(key, True) == 0
    assert store.put(key, bytes(value)) == 0
"""
    plant(code)
    second = process()
    assert second.restore("a") == 0
    failures = second.failures()
    assert sum(failures.values()) >= 1
    assert set(failures) <= {"header", "checksum"}
    second.settle()
    second.store("a")
    assert process().restore("a") == 1


def plant(code: str) -> None:
    """Runs code that knows all keys of the store, which its master tells over HTTP."""
    prelude = """
import urllib.request
def store_keys(store):
    lines = urllib.request.urlopen("http://127.0.0.1:9003/get_all_keys").read().decode().split()
    return [line for line in lines if line.startswith("hp/")]
"""
    here = os.path.dirname(__file__)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, *sys.path])}
    subprocess.run([sys.executable, "-c", prelude + code], env=environment, check=True, timeout=60)


def test_a_missing_member_of_a_boundary_costs_the_boundary(mooncake):
    first = process()
    first.store("abc")
    first.store("abcde")
    plant("""
store = __import__("real_mooncake").client()
sizes = {key: store.get_size(key) for key in store_keys(store)}
for key, size in sizes.items():
    if size > 200: assert store.remove(key, True) == 0
""")
    assert process().restore("abcde") == 0, "no checkpoint is left"


def test_a_store_without_room_costs_hits_alone(mooncake):
    for owner in mooncake.owners:
        owner.kill()
        owner.wait()
    mooncake.kill_master()
    mooncake.start_master()
    mooncake.add(16 << 20)
    first = process()
    plant("""
store = __import__("real_mooncake").client()
codes = [store.put(f"fill{i}", bytes(1 << 20)) for i in range(64)]
assert -200 in codes, codes
while store.put(f"more{len(codes)}", bytes(100)) == 0: codes.append(0)
""")
    first.store("abc")
    assert first.failures().get("full") or process().restore("abc") == 3
    assert set(first.failures()) <= {"full"}
    assert first.stats()["outages"] == 0


def test_a_master_that_dies_is_an_outage_and_its_successor_works(mooncake):
    first, second = process(deadline_ms=1000), process(deadline_ms=1000)
    first.store("abc")
    mooncake.kill_master()
    second.restore("abc")
    first.store("xyz")
    assert sum(first.failures().values()) >= 1
    assert first.restore("abc") == 3, "the host has it"
    mooncake.start_master()
    # Machines join a new master by themselves, with nothing in it.
    wait("it comes back", lambda: stored_again(first))
    assert set(first.failures()) <= {"write", "ask", "full", "deadline", "helper"}


def stored_again(first: Process) -> bool:
    first.settle()
    prompt = hashlib.sha256(os.urandom(8)).hexdigest()[:3]
    written = first.stats()["writes"]
    first.store(prompt)
    return first.stats()["writes"] == written + 4 and process().restore(prompt) == 3


@pytest.mark.parametrize("who", ["master", "owner"])
def test_whoever_is_silent_costs_the_deadline_alone(mooncake, who):
    first, second = process(deadline_ms=500), process(deadline_ms=500)
    first.store("abc")
    second.depth("abc") if who == "owner" else None
    pid = mooncake.master.pid if who == "master" else mooncake.owners[0].pid
    os.kill(pid, 19)
    try:
        assert second.restore("abc") == 0
        assert sum(second.failures().values()) >= 1
    finally:
        os.kill(pid, 18)
    wait("it comes back", lambda: stored_again(first))


def test_a_machine_that_dies_takes_its_values_alone(mooncake):
    first = process()
    first.store("abc")
    second = process()
    assert second.depth("abc") == 3
    (owner,) = mooncake.owners
    owner.kill()
    owner.wait()
    assert second.restore("abc") == 0
    assert set(second.failures()) <= {"read", "gone", "deadline"}
    mooncake.add(64 << 20)
    wait("it comes back", lambda: stored_again(first))


def test_a_client_that_is_killed_while_it_writes_leaves_nothing_in_part(mooncake):
    for _ in range(3):
        first = process()
        with first.cache.reserve(first.namespace, keys("q"), [(0, 0)]) as lease:
            first.arena.write(lease.entries[0].slots[0], bytes(64))
            lease.commit([[0]])  # A checksum that these bytes do not have.
        os.kill(first.helper(), 9)
        wait("it is noticed", lambda first=first: first.failures().get("helper"))
    assert process().restore("q") == 0


def test_the_client_of_this_process_sees_what_the_format_says(mooncake):
    first = process()
    first.store("ab")
    plant(f"""
store = __import__("real_mooncake").client()
keys = store_keys(store)
assert len(keys) == 3, keys
for key in keys:
    assert key.startswith("hp/1/{IDENTITY.hex()}/"), key
    assert store.get(key)[:12] == b"HYBPVALU" + (1).to_bytes(4, "little")
""")
