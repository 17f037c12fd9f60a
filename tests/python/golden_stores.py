"""What each version of a format wrote, in tests/data/golden/, for every later version to read.

    python tests/python/golden_stores.py FOLDER         # with the package that is importable

When a format gets a new version, run it with the new package, and add its files to the old ones.
"""

from __future__ import annotations

import gc
import hashlib
import io
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from hybrid_pages import Arena, Cache, Disk, Geometry, Group, Layer, Segment, checksum

FOLDER = Path(__file__).parents[1] / "data" / "golden"
KEY = "f00dfeedf00dfeedf00dfeedf00dfeedf00dfeedf00dfeedf00dfeedf00dfeed"
KEYS = f"{KEY}\ntenants {KEY[::-1]}\nstore golden"
IDENTITY = bytes(range(32))
PROMPT = "abc"
SIZES = (64, 160)
LAYERS = (("a", 64), ("r", 160))
SLOT, SLOTS = 64, 32


def geometry() -> Geometry:
    """A page of 64 bytes and a checkpoint of 160."""
    page, state = (Layer(name, [Segment("data", "uint8", [size])]) for name, size in LAYERS)
    groups = [Group("attention", [page]), Group("recurrent", [state])]
    return Geometry(block_tokens=16, groups=groups, ranks=1, identity={"model": "tiny"})


def disk(path: Path, encrypt_key: str = "") -> Disk:
    extra = {"encrypt_key": encrypt_key} if encrypt_key else {}
    return Disk(geometry(), slot_bytes=SLOT, path=path, quota_bytes=1 << 20, threads=1, **extra)


def remote(path: Path, encrypt_key: str = ""):
    from hybrid_pages import Remote  # which the first versions do not have

    extra = {"encrypt_key": encrypt_key} if encrypt_key else {}
    return Remote(geometry(), slot_bytes=SLOT, url=path.as_uri(), admit="all", **extra)


class GoldenEngine:
    """A cache over one tier."""

    def __init__(self, tier) -> None:
        self.tier = tier
        self.arena = Arena.create(geometry(), slot_bytes=SLOT, slots=SLOTS)
        below = {"disk" if isinstance(tier, Disk) else "remote": tier}
        self.cache = Cache(geometry(), slot_bytes=SLOT, slots=SLOTS, **below)
        self.namespace = self.cache.namespace(b"engine")
        tier.connect(self.arena, IDENTITY)

    def store(self) -> None:
        entries = [(0, block) for block in range(len(PROMPT))] + [(1, len(PROMPT) - 1)]
        with self.cache.reserve(self.namespace, keys(), entries) as lease:
            sums = []
            for entry in lease.entries:
                data = payload(entry.class_index, entry.block_index)
                for at, slot in enumerate(entry.slots):
                    self.arena.write(slot, data[at * SLOT :][:SLOT])
                sums.append([checksum(data)])
            lease.commit(sums)
        assert self.tier.settle(60)
        self.cache.poll()

    def restore(self) -> int:
        """How many blocks come back; their bytes are compared."""
        limit = time.monotonic() + 60
        while getattr(self.cache.lookup(self.namespace, keys()), "asking", False):
            assert time.monotonic() < limit
            time.sleep(0.001)
        while self.cache.promote(self.namespace, keys()):
            assert time.monotonic() < limit
            time.sleep(0.001)
        lease = self.cache.acquire(self.namespace, keys())
        if lease is None:
            return 0
        with lease:
            for entry in lease.entries:
                expected = payload(entry.class_index, entry.block_index)
                found = b"".join(self.arena.read(slot) for slot in entry.slots)
                assert found[: len(expected)] == expected
            return lease.blocks


def keys() -> list[bytes]:
    return [hashlib.sha256(PROMPT[:end].encode()).digest() for end in range(1, len(PROMPT) + 1)]


def payload(kind: int, block: int) -> bytes:
    return hashlib.shake_256(f"{kind} {block}".encode()).digest(SIZES[kind])


def write(make, path: Path, *key: str) -> None:
    engine = GoldenEngine(make(path, *key))
    engine.store()
    if hasattr(engine.tier, "close"):
        engine.tier.close()
    del engine
    gc.collect()


def pack(folder: Path, to: Path) -> None:
    """Packs a folder so that equal files give equal bytes."""
    with tarfile.open(to, "w:xz", preset=9) as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name not in ("trial", "probe", "lock"):
                entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
                data = path.read_bytes()
                entry.size = len(data)
                packed.addfile(entry, io.BytesIO(data))


def main(to: Path) -> None:
    made = {
        "disk-1": (disk,),
        "remote-1": (remote,),
        "disk-3": (disk, KEYS),
        "remote-2": (remote, KEY),
        "remote-2-tenants": (remote, KEYS),
    }
    for name, (make, *key) in made.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "store")
            try:
                write(make, path, *key)
            except (ImportError, TypeError) as error:
                print(f"{name}: this version does not have it: {error}")
                continue
            pack(path, to / f"{name}.tar.xz")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
