"""Entries on a disk outlive the cache that wrote them."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from cache_support import SLOT_BYTES, hybrid, keys, whole
from hybrid_pages import (
    Arena,
    BudgetError,
    Cache,
    Disk,
    DiskError,
    DiskTree,
    ForeignError,
    InvalidArgumentError,
    Remote,
    checksum,
)
from hybrid_pages._core import DISK_LATENCY_LIMITS_US

SLOTS = 32
IDENTITY = bytes(range(32))


@pytest.fixture(autouse=True)
def restarts() -> Iterator[None]:
    """Every test ends with two more starts of its disks, which lose nothing that is whole."""
    Process.used.clear()
    yield
    gc.collect()
    for path, identity in list(Process.used):
        before = whole_entries(path, identity)
        for _ in range(2):
            process = Process(path, identity)
            assert process.disk.stats()["entries"] >= before
            process.disk.close()
        assert whole_entries(path, identity) == before


def whole_entries(path: Path, identity: bytes) -> int:
    verdict = DiskTree(path).verify("lane-0", identity.hex())
    return 0 if verdict is None else verdict["good"]


class Process:
    """What an engine's process has: an arena, and a cache over a disk."""

    used: ClassVar[dict[tuple[Path, bytes], None]] = {}
    """Paths and identities that a test has used."""

    def __init__(self, path: Path, identity: bytes = IDENTITY) -> None:
        geometry = hybrid()
        arena = Arena.create(geometry, slot_bytes=SLOT_BYTES, slots=SLOTS)
        disk = Disk(geometry, slot_bytes=SLOT_BYTES, path=path, quota_bytes=1 << 20)
        self._begin(arena, disk, identity)
        self.used[path, identity] = None

    @classmethod
    def over(cls, arena: Arena, disk: Disk) -> Process:
        process = cls.__new__(cls)
        process._begin(arena, disk, IDENTITY)
        return process

    def _begin(self, arena: Arena, disk: Disk, identity: bytes) -> None:
        self.arena, self.disk = arena, disk
        self.cache = Cache(hybrid(), slot_bytes=SLOT_BYTES, slots=SLOTS, disk=disk)
        self.namespace = self.cache.namespace(b"engine")
        self.disk.connect(self.arena, identity)

    def store(self, prompt: str) -> None:
        with self.cache.reserve(self.namespace, keys(prompt), whole(prompt)) as lease:
            sums = []
            for entry in lease.entries:
                size = 64 if entry.class_index == 0 else 160
                data = payload(prompt, entry.class_index, entry.block_index, size)
                for at, slot in enumerate(entry.slots):
                    self.arena.write(slot, data[at * SLOT_BYTES :][:SLOT_BYTES])
                sums.append([checksum(data)])
            lease.commit(sums)
        assert self.disk.settle(60)
        self.cache.poll()

    def restore(self, prompt: str) -> int:
        limit = time.monotonic() + 60
        while self.cache.promote(self.namespace, keys(prompt)):
            assert time.monotonic() < limit, "a promotion did not end"
            time.sleep(0.001)
        lease = self.cache.acquire(self.namespace, keys(prompt))
        if lease is None:
            return 0
        with lease:
            for entry in lease.entries:
                size = 64 if entry.class_index == 0 else 160
                data = b"".join(self.arena.read(slot) for slot in entry.slots)[:size]
                expected = payload(prompt, entry.class_index, entry.block_index, size)
                assert data == expected
                assert entry.checksums == [checksum(data)]
            return lease.blocks


def payload(prompt: str, kind: int, block: int, size: int) -> bytes:
    seed = f"{prompt[: block + 1]} {kind} ".encode()
    return (seed * size)[:size]


def test_a_prompt_comes_back_in_the_next_process(tmp_path):
    first = Process(tmp_path / "disk")
    first.store("abc")
    stats = first.disk.stats()
    assert (stats["writes"], stats["durable"], stats["persistent"]) == (4, 4, 1)
    (tier,) = first.cache.tiers()
    assert (tier["name"], tier["written"], tier["entries"]) == ("disk", 4, 4)
    del first
    second = Process(tmp_path / "disk")
    assert second.disk.stats()["left_over"] == 4
    assert second.restore("abcd") == 3
    stats = second.disk.stats()
    assert (stats["reads"], stats["left_over"], second.disk.notes()) == (4, 0, [])
    buckets, microseconds = second.disk.latencies()["read"]
    assert len(buckets) == len(DISK_LATENCY_LIMITS_US) + 1
    assert sum(buckets) == 4
    assert microseconds > 0


def test_another_identity_finds_nothing(tmp_path):
    first = Process(tmp_path / "disk")
    first.store("abc")
    del first
    assert Process(tmp_path / "disk", identity=bytes(32)).restore("abc") == 0


def test_after_a_clear_nothing_is_found_again(tmp_path):
    first = Process(tmp_path / "disk")
    first.store("abc")
    first.cache.clear()
    del first
    assert Process(tmp_path / "disk").restore("abc") == 0


def test_a_closed_disk_gives_its_directory_back_and_does_nothing_more(tmp_path):
    first = Process(tmp_path / "disk")
    first.store("abc")
    for _ in range(2):
        first.disk.close()
    second = Process(tmp_path / "disk")
    assert second.restore("abcd") == 3
    first.cache.clear()
    assert first.disk.stats()["out"] == 1
    with first.cache.reserve(first.namespace, keys("x"), whole("x")) as lease:
        lease.commit([[0] for _ in lease.entries])
    assert first.cache.lookup(first.namespace, keys("x")).blocks == 1
    assert first.disk.stats()["writes"] == 4
    second.store("abcdef")
    del second
    assert Process(tmp_path / "disk").restore("abcdefg") == 6


def test_a_disk_has_one_user_and_one_cache(tmp_path):
    first = Process(tmp_path / "disk")
    with pytest.raises(DiskError, match=r"expected to be its only user, found that process \d+"):
        Process(tmp_path / "disk")
    with pytest.raises(InvalidArgumentError, match="expected one that no cache has"):
        Cache(hybrid(), slot_bytes=SLOT_BYTES, slots=SLOTS, disk=first.disk)
    with pytest.raises(DiskError, match="expected to be connected once"):
        first.disk.connect(first.arena, IDENTITY)


def test_a_directory_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "letters").write_text("dear")
    with pytest.raises(ForeignError, match=r"found 'letters' in it"):
        Process(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letters"]


@pytest.mark.parametrize(
    ("error", "settings"),
    [
        (BudgetError, {"quota_bytes": 20_000}),
        (InvalidArgumentError, {"threads": 0}),
        (InvalidArgumentError, {"deadline_ms": 0}),
        (InvalidArgumentError, {"policy": "best"}),
        (DiskError, {"path": "/proc/no/such/place"}),
        (TypeError, {"lane": "0"}),
        (InvalidArgumentError, {"lane": -1}),
        (InvalidArgumentError, {"lane": 1 << 32}),
    ],
)
def test_settings_that_make_no_sense_are_rejected(tmp_path, error, settings):
    given = {"path": tmp_path / "disk", "quota_bytes": 1 << 20} | settings
    with pytest.raises(error):
        Disk(hybrid(), slot_bytes=SLOT_BYTES, **given)


def test_a_cache_takes_no_tier_of_another_geometry(tmp_path):
    tiers = {
        "disk": Disk(hybrid(), slot_bytes=SLOT_BYTES, path=tmp_path / "disk", quota_bytes=1 << 20),
        "remote": Remote(hybrid(), slot_bytes=SLOT_BYTES, url=(tmp_path / "remote").as_uri()),
    }
    other = hybrid(block_tokens=32)
    for name, tier in tiers.items():
        with pytest.raises(ForeignError, match="block_tokens expected 32, found 16") as caught:
            Cache(other, slot_bytes=SLOT_BYTES, slots=SLOTS, **{name: tier})
        for geometry in (other, hybrid()):
            assert geometry.fingerprint.hex() in str(caught.value)
    Cache(hybrid(), slot_bytes=SLOT_BYTES, slots=SLOTS, **tiers)


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_an_impossible_time_to_wait_says_which_are_possible(tmp_path, seconds):
    disk = Disk(hybrid(), slot_bytes=SLOT_BYTES, path=tmp_path / "disk", quota_bytes=1 << 20)
    with pytest.raises(InvalidArgumentError, match="seconds: expected a number from 0 to 1e19"):
        disk.settle(seconds)


def test_an_identity_has_32_bytes(tmp_path):
    with pytest.raises(InvalidArgumentError, match="identity: expected 32 bytes, found 3"):
        Process(tmp_path / "disk", identity=b"abc")


STARVED = """
import os, resource, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from cache_support import SLOT_BYTES, hybrid
from hybrid_pages import Arena, Disk
from test_disk import SLOTS, Process

path = Path(sys.argv[2])
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
used = max(int(name) for name in os.listdir("/proc/self/fd"))
refused = 0
for more in range(0, 40):
    arena = Arena.create(hybrid(), slot_bytes=SLOT_BYTES, slots=SLOTS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, most))
    disk = Disk(hybrid(), slot_bytes=SLOT_BYTES, path=path, quota_bytes=1 << 20)
    process = Process.over(arena, disk)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, most))
    out = disk.stats()["out"]
    assert not out or any("it is tried again" in note for note in disk.notes())
    refused += out
    limit = time.monotonic() + 60
    while disk.stats()["out"]:
        assert time.monotonic() < limit, disk.stats()
        process.cache.poll()
        time.sleep(0.01)
    assert process.restore("abcd") == 3, (more, disk.stats(), disk.notes())
    disk.close()
    del process, disk, arena
    if not out and more > 5:
        break
assert refused > 3, refused
"""


FORKED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from cache_support import use_in_a_fork
from test_disk import Process

process = Process(Path(sys.argv[2]))
process.store("abc")
use_in_a_fork(process)
"""


def test_a_forked_process_goes_on_without_the_disk(tmp_path):
    command = [sys.executable, "-c", FORKED, str(Path(__file__).parent), str(tmp_path / "disk")]
    subprocess.run(command, check=True, timeout=60)


def test_a_start_with_too_many_open_files_costs_nothing_whichever_file_it_is(tmp_path):
    first = Process(tmp_path / "disk")
    first.store("abc")
    del first
    command = [sys.executable, "-c", STARVED, str(Path(__file__).parent), str(tmp_path / "disk")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    for _ in range(2):
        process = Process(tmp_path / "disk")
        assert process.restore("abcd") == 3
        assert not any(n for name, n in process.disk.stats().items() if name.startswith("failed_"))
        del process


@pytest.mark.parametrize("bit", range(0, 8 * 34, 29))
def test_a_flipped_bit_in_the_marker_stops_no_engine(tmp_path, bit):
    first = Process(tmp_path / "disk")
    first.store("abc")
    del first
    marker = tmp_path / "disk" / "hybrid-pages-disk"
    data = bytearray(marker.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    marker.write_bytes(data)
    second = Process(tmp_path / "disk")
    assert second.restore("abcd") == 3
    assert second.disk.stats()["failed_directory"] == 1
    assert "written anew" in second.disk.notes()[0]
