"""Stores that earlier versions wrote are read, and no format changes without a new version."""

from __future__ import annotations

import re
import struct
import tarfile
from pathlib import Path

import pytest

from golden_stores import FOLDER, KEY, KEYS, PROMPT, GoldenEngine, disk, remote, write
from hybrid_pages import DiskError, DiskTree, ForeignError
from hybrid_pages._core import (
    DISK_FORMAT_VERSION,
    REMOTE_FORMAT_VERSION,
    SEALED_DISK_FORMAT_VERSION,
)

MAKERS = {"disk": disk, "remote": remote}
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in FOLDER.glob("*.xz"))
REFUSED = {"disk-2"}
PLAIN = {"disk-1", "disk-1-first", "remote-1", "remote-1-first"}
HEADER = 4096
RANKS = 1


def unpacked(name: str, to: Path) -> Path:
    with tarfile.open(FOLDER / f"{name}.tar.xz") as packed:
        packed.extractall(to, filter="data")
    for path in (to, *to.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return to


def key_of(name: str) -> str:
    return "" if name in PLAIN else KEY if name in ("disk-2", "remote-2") else KEYS


def opened(name: str, path: Path) -> GoldenEngine:
    return GoldenEngine(MAKERS[name.split("-")[0]](path, key_of(name)))


def files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def failures(engine: GoldenEngine) -> dict[str, int]:
    stats = engine.tier.stats()
    return {name: count for name, count in stats.items() if name.startswith("failed_") and count}


@pytest.mark.parametrize("name", sorted(set(NAMES) - REFUSED))
def test_what_a_version_wrote_is_read_by_this_one(name, tmp_path):
    path = unpacked(name, tmp_path / "store")
    for _ in range(2):
        engine = opened(name, path)
        assert engine.restore() == len(PROMPT)
        assert failures(engine) == {}
        engine.tier.close()
    if name.startswith("remote"):
        assert files(path) == files(unpacked(name, tmp_path / "as it was"))


WRONG = {
    "none": "",
    "another": "ab" * 32,
    "another-store": KEYS + "-of-others",
    "other-tenants": KEYS.replace(KEY[::-1], "ab" * 32),
}


@pytest.mark.parametrize("name", ["disk-3", "remote-2", "remote-2-tenants"])
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_keys_and_none_find_nothing_and_remove_nothing(name, wrong, tmp_path):
    path = unpacked(name, tmp_path / "store")
    kept = contents(path)
    tier = MAKERS[name.split("-")[0]](path, WRONG[wrong])
    if name == "disk-3" and wrong in ("none", "another"):
        with pytest.raises(DiskError, match="expected encrypt_key with the key"):
            GoldenEngine(tier)
    else:
        assert GoldenEngine(tier).restore() == 0
    tier.close()
    assert kept.items() <= contents(path).items()
    assert opened(name, path).restore() == len(PROMPT)


def test_keys_are_refused_where_entries_are_in_the_clear(tmp_path):
    path = unpacked("disk-1", tmp_path / "store")
    kept = contents(path)
    tier = disk(path, KEYS)
    with pytest.raises(DiskError, match="expected entries that are encrypted"):
        GoldenEngine(tier)
    tier.close()
    assert kept == contents(path)
    assert opened("disk-1", path).restore() == len(PROMPT)


def contents(path: Path) -> dict[str, object]:
    """Slabs and packs, and the names of indexes, which note how often they were opened."""
    found = files(path)
    ends = (".slab", ".pack", "index.redb")
    return {name: name.endswith("redb") or found[name] for name in found if name.endswith(ends)}


def test_there_is_a_store_of_every_version():
    newest = max(DISK_FORMAT_VERSION, SEALED_DISK_FORMAT_VERSION)
    expected = {f"disk-{version}" for version in range(1, newest + 1)}
    expected |= {f"remote-{version}" for version in (*range(1, REMOTE_FORMAT_VERSION + 1), 2)}
    assert expected <= set(NAMES), "write the stores of the new version: see golden_stores.py"


def disk_parts(path: Path, version: str) -> dict[str, bytes]:
    """What must be equal wherever the same entries are written: slabs, and records of the index."""
    found = {}
    entries = []
    for name, data in files(path).items():
        if name.endswith(".slab"):
            cells = [data[at : at + HEADER] for at in range(0, len(data), 2 * HEADER)]
            found[name] = data if version == "1" else b"".join(cells)
            found[f"length of {name}"] = str(len(data)).encode()
            index = (path / name).with_name("index.redb").read_bytes()
            for header in cells:
                (ranks,) = struct.unpack_from("<I", header, 12)
                place, sums = header[80:96], header[128 : 128 + 8 * ranks]
                entries.append(header[48:96] + sums)
                # The time of use is between them.
                record = re.escape(place) + b".{8}" + re.escape(sums)
                assert re.search(record, index, re.DOTALL)
        elif name.endswith("journal"):
            # How many records are left depends on when the index took them.
            ends = 72 + 8 * RANKS
            for at in range(0, len(data), ends + 16):
                record = data[at : at + ends + 16]
                assert record[8:16] == struct.pack("<Q", 1)
                assert record[16:64] + record[72:ends] in entries
        elif name.endswith("hybrid-pages-disk"):
            found[name] = data
        elif name.endswith("encrypted"):
            # The first commit with format 3 said the key and the format, once.
            lines = [line.split() for line in data.splitlines()]
            assert lines in ([lines[0][:2]], [[*lines[0][:2], b"tenants"]] * 3)
            found[name] = b" ".join(lines[0][:2])
    return found


def remote_parts(path: Path, version: str) -> dict[str, bytes]:
    """Packs without what names their time and writer, and without what is random in a seal."""
    found = {}
    for name, data in files(path).items():
        if name.endswith(".pack"):
            folder, file = name.rsplit("/", 1)
            *_, number, table = file.removesuffix(".pack").split("-")
            end = int(table, 16)
            shards = data[end:] if version == "1" else bytes(len(data) - end)
            found[f"{folder}/{number}-{table}"] = data[:48] + data[64 : end - 32] + shards
    return found


@pytest.mark.parametrize("name", ["disk-1", "disk-3", "remote-1", "remote-2", "remote-2-tenants"])
def test_a_format_does_not_change_without_a_new_version(name, tmp_path):
    kind, version, *_ = name.split("-")
    write(MAKERS[kind], tmp_path / "now", *filter(None, [key_of(name)]))
    parts = {"disk": disk_parts, "remote": remote_parts}[kind]
    now, then = (
        parts(path, version) for path in (tmp_path / "now", unpacked(name, tmp_path / "then"))
    )
    assert now
    assert now == then, "give the format a new version, and keep the stores of this one"
    changed = {part: data[:-1] + bytes([data[-1] ^ 1]) for part, data in now.items()}
    assert changed != then


def test_a_disk_of_a_later_version_is_refused_by_name_and_left_as_it_is(tmp_path):
    path = unpacked("disk-1", tmp_path / "store")
    marker = path / "hybrid-pages-disk"
    marker.write_text(marker.read_text().replace("format 1", "format 7"))
    before = files(path)
    for use in (disk, DiskTree):
        with pytest.raises(ForeignError, match="format"):
            use(path)
    assert files(path) == before


def test_an_encrypted_disk_of_the_version_before_is_refused_by_name_and_left_as_it_is(tmp_path):
    path = unpacked("disk-2", tmp_path / "store")
    before = files(path)
    engine = disk(path, KEY)
    with pytest.raises(DiskError, match=r"encrypted entries of format 3, found .* format 2"):
        GoldenEngine(engine)
    engine.close()
    lock = path / "lane-0" / "lock"
    assert {name: data for name, data in files(path).items() if path / name != lock} == before
    (lane,) = DiskTree(path).lanes()
    (identity,) = lane["identities"]
    assert "found one of format 2" in identity["trouble"]
