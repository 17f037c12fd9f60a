"""Calls of everything that the stubs name, with numbers and objects that make no sense.

    python binding_fuzz.py SEED CALLS

runs in a process of its own, since what is looked for is what ends or hangs one. It prints each
call before it makes it. A call may be refused; it may not panic, hang or take memory because a
number says so, and what is refused changes nothing.
"""

from __future__ import annotations

import ast
import faulthandler
import hashlib
import json
import os
import random
import resource
import sys
import tempfile
from contextlib import suppress
from importlib.resources import files
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

import hybrid_pages
from hybrid_pages import _core

HANG_SECONDS = 60
MOST_MEMORY = 4 << 30
"""Beyond what the process has at the start."""
MOST_RESIDENT = 1 << 30
N = 16

NUMBERS = [0, 1, 2, 3, 7, 63, 64, 65, 255, 4096]
EDGES = [
    edge + step
    for edge in (2**15, 2**16, 2**31, 2**32, 2**53, 2**62, 2**63, 2**64)
    for step in (-1, 0, 1)
]
ODD_NUMBERS = [*EDGES, -1, -2, -(2**31), -(2**63), -(2**64), 10**30, True]
FLOATS = [0.0, -0.0, 0.5, 1.0, 1.5, 1e-320, 1e-9, 1e9, 1e18, 1.8e19, 1e38, 1e308, -1.0, -1e308]
ODD_FLOATS = [float("nan"), float("inf"), float("-inf")]
STRINGS = ["", "a", "\0", "a\0b", "\ud800", "x\udfffy", "é", "a" * 5000, "None", "lru ", "-1"]
BYTES = [b"", b"a", b"\0", bytes(8), bytes(31), bytes(32), bytes(33), bytes(5000)]
OTHERS = [None, object(), [], {}, (), set(), [[]], [None], {"a": 1}, range(5), 1j, "ab", b"ab", 0.5]
EDGE_CLOCK = [*range(0, 5000, 97), 2**53, 2**62 - 1]


class Target(NamedTuple):
    """Something to call."""

    owner: str | None
    name: str
    parameters: list[tuple[str, str, bool, bool]]
    """Name, annotation, whether it is a keyword, and whether it has a default."""
    is_method: bool


def targets() -> list[Target]:
    """All public functions, constructors, methods and properties of the stubs."""
    found = []
    stubs = files(hybrid_pages).joinpath("_stubs")
    for stub in sorted(stubs.iterdir(), key=str):
        for node in ast.parse(stub.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                found.append(target(None, node))
            if isinstance(node, ast.ClassDef) and not any(
                base in ast.unparse(node) for base in ("Protocol", "Exception)", "Error)")
            ):
                owner = {"_Engine": "HostEngine"}.get(node.name, node.name)
                methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
                found += [target(owner, item) for item in methods]
    return found


def target(owner: str | None, node: ast.FunctionDef) -> Target:
    given = node.args.posonlyargs + node.args.args
    with_default = len(node.args.defaults)
    parameters = [
        (item.arg, ast.unparse(item.annotation), False, at >= len(given) - with_default)
        for at, item in enumerate(given)
        if item.annotation is not None
    ]
    for item, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        parameters.append((item.arg, ast.unparse(item.annotation), True, default is not None))
    static = any("staticmethod" in ast.unparse(decorator) for decorator in node.decorator_list)
    is_method = owner is not None and node.name != "__new__" and not static
    return Target(owner, node.name, parameters, is_method)


class World:
    """Objects that make sense, and chances to make others."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random, self.folder = random.Random(seed), folder
        self.pool: dict[str, list[Any]] = {}
        self.made = 0
        self.memory = [np.zeros((8, 64), np.uint8), np.zeros((8, 160), np.uint8)]
        self.restock()

    def restock(self) -> None:
        """Everything anew: what was called before may have used it up."""
        layer = lambda name, size: _core.Layer(name, [_core.Segment("d", "uint8", [size])])  # noqa: E731
        groups = [
            _core.Group("attention", [layer("a", 64)]),
            _core.Group("recurrent", [layer("r", 160)]),
        ]
        geometry = _core.Geometry(block_tokens=N, groups=groups, ranks=1, identity={})
        policy = self.random.choice(_core.POLICIES)
        self.made += 1
        disk = _core.Disk(
            geometry, slot_bytes=64, path=str(self.folder / f"disk{self.made}"), quota_bytes=1 << 20
        )
        arena = _core.Arena.create(geometry, slot_bytes=64, slots=40, private=False)
        cache = _core.Cache(geometry, slot_bytes=64, slots=40, policy=policy, disk=disk)
        disk.connect(arena, bytes(32))
        columns = _core.TableColumns(geometry, [(0, N, 1, 1, None), (1, N, 1, 1, None)])
        rules = _core.RunRules(
            N,
            1,
            [(1, 1)],
            "all",
            carries=lambda *_: False,
            processed=lambda request: request.num_computed_tokens,
            pin=lambda *_: None,
            unpin=lambda *_: None,
            take=lambda *_: [],
        )
        maps = [
            _core.LayerMap(
                group=group,
                layer=0,
                address=array.ctypes.data,
                nbytes=array.nbytes,
                block_stride=array.strides[0],
                runs=[(0, array.strides[0])],
            )
            for group, array in enumerate(self.memory)
        ]
        self.maps, self.cache, arrays = maps, cache, self.memory
        self.namespaces = [cache.namespace(b"a"), cache.namespace(b"b", b"tenant")]
        for _ in range(1000):  # more often than it is released
            cache.namespace(b"a")
        with cache.reserve(self.namespaces[0], self.keys(3), [(0, 0), (0, 1), (1, 1)]) as lease:
            lease.commit([[1]] * 3)
        lease = cache.acquire(self.namespaces[0], self.keys(3))
        write = cache.reserve(self.namespaces[1], self.keys(2), [(0, 0)])
        prefix_keys = _core.PrefixKeys()
        prefix_keys.read(self.keys(4))
        entries = _core.StoreEntries([(0, [1], [2])])
        link = _core.Link(
            latency=0.01, bandwidth=1e9, page_bytes=100, checkpoint_bytes=100, tokens_per_second=1e4
        )
        objects = [
            geometry, *geometry.groups, *groups[0].layers, *groups[0].layers[0].segments,
            *geometry.classes, arena, cache, disk, columns, rules, *maps, lease, write, prefix_keys,
            entries, link, cache.changes(), cache.lookup(self.namespaces[0], self.keys(3)),
            cache.admit(self.namespaces[0], self.keys(3), now=0, tokens=50), _core.Hints(),
            _core.Stores(geometry, cache, columns, rules),
            _core.HostEngine(geometry, arena, rank=0, num_blocks=8, layers=maps, owners=arrays),
            _core.Remote(geometry, slot_bytes=64, url=f"file://{self.folder}/remote"),
            _core.Mooncake(geometry, slot_bytes=64, master="localhost:1", command=["/bin/false"]),
            _core.DiskTree(str(self.folder / f"disk{self.made}")), _core.ArrayView(self.memory[0]),
            _core.BlockTables([{"a": [1, 2]}, {"a": [3]}]), self.opened(),
            *write.entries,
        ]  # fmt: skip
        with suppress(_core.HybridPagesError):
            objects.append(_core.Run(self.request(), prefix_keys, self.namespaces[0]))
        self.pool = {}
        for item in objects:
            self.pool.setdefault(type(item).__name__, []).append(item)

    # ---- values

    def keys(self, blocks: int) -> list[bytes]:
        return [hashlib.sha256(bytes([block])).digest() for block in range(blocks)]

    def number(self) -> int:
        return self.random.choice(NUMBERS if self.random.random() < 0.5 else ODD_NUMBERS)

    def request(self) -> SimpleNamespace:
        return SimpleNamespace(
            request_id="a",
            num_prompt_tokens=self.few(),
            num_tokens=self.few(),
            num_computed_tokens=self.few(),
            block_hashes=self.keys(4),
        )

    def few(self) -> int:
        """Mostly a number that makes sense."""
        return self.random.choice([0, 1, N, 3 * N]) if self.random.random() < 0.8 else self.number()

    def trace(self) -> str:
        """A trace, some of whose numbers make no sense."""
        path = self.folder / f"trace{self.made}.{self.random.randrange(9)}"
        rows = []
        for at in range(self.random.randrange(1, 8)):
            row: dict[str, Any] = {
                "timestamp": at * 10,
                "input_length": 3 * N + 1,
                "output_length": 5,
                "hash_ids": [0, 1, 2],
            }
            if self.random.random() < 0.3:
                name = self.random.choice([*row, "session", "priority", "retain"])
                row[name] = self.number() if self.random.random() < 0.8 else self.odd()
            rows.append(row)
        first = {"format": "hybrid-pages-trace", "version": 1, "block_tokens": N}
        path.write_text("".join(f"{json.dumps(row, default=str)}\n" for row in [first, *rows]))
        return str(path)

    def opened(self) -> Any:
        """A trace that can be opened."""
        while True:
            with suppress(_core.TraceError):
                return _core.Trace.open(self.trace(), skip_bad=self.random.random() < 0.8)

    def odd(self) -> Any:
        choice = self.random.choice
        kind = self.random.randrange(7)
        if kind == 0:
            return choice(STRINGS)
        if kind == 1:
            return choice(BYTES)
        if kind == 2:
            return choice(FLOATS + ODD_FLOATS)
        if kind == 3:
            return choice(OTHERS)
        if kind == 4:
            return [self.number() for _ in range(choice([0, 1, 2, 1000]))]
        return self.number()

    def value(self, name: str, annotation: str) -> Any:
        """For a parameter: most often one of its type."""
        choice, chance = self.random.choice, self.random.random()
        if name == "path":  # nothing outside the folder is touched
            return self.path(chance)
        if name in ("url", "command"):
            wrong = ["", "file://", "x", "file:///\0", "\ud800", f"file://{self.folder}/r"]
            return choice(wrong) if name == "url" else choice([[], ["/bin/false"], ["/none"], 3])
        if (
            name == "layers" and "LayerMap" in annotation
        ):  # others would be read from where they say
            return [*self.maps] if chance < 0.8 else choice([[], self.maps[:1], self.maps[::-1], 5])
        if chance < 0.12:
            return self.odd()
        known = self.known(name)
        if known is not None and chance < 0.75:
            return known
        return self.typed(annotation)

    def path(self, chance: float) -> Any:
        if chance < 0.6:
            return self.random.choice(
                [str(self.folder / "a"), str(self.folder / "b"), self.trace()]
            )
        return self.random.choice([f"{self.folder}/\ud800", f"{self.folder}/a\0b", 5, None, 0.5])

    def known(self, name: str) -> Any:
        choice = self.random.choice
        makers: dict[str, Any] = {
            "namespace": lambda: choice(self.namespaces),
            "number": lambda: choice(self.namespaces),
            "keys": lambda: choice(
                [self.keys(3), self.keys(5), 3 * self.keys(2), choice(self.pool["PrefixKeys"])]
            ),
            "hashes": lambda: self.keys(choice([0, 1, 7])),
            "now": lambda: choice(EDGE_CLOCK),
            "slot_bytes": lambda: choice([64, 128, 4096]),
            "slots": lambda: choice([8, 40, 1000]),
            "policy": lambda: choice(_core.POLICIES),
            "policies": lambda: [choice(_core.POLICIES)],
            "route": lambda: choice(_core.ROUTES),
            "entries": lambda: [(choice([0, 1]), choice([0, 1, 2])) for _ in range(3)],
            "tables": lambda: [[1, 2, 3], [4, 5, 6]],
            "states": lambda: [(1, 1, [5])],
            "kind": lambda: choice(["attention", "recurrent", "window"]),
            "dtype": lambda: choice(["uint8", "float32", "bfloat16"]),
            "mode": lambda: choice(["none", "adaptive", "align", "all"]),
            "identity": lambda: choice([bytes(32), {}, b"a"]),
            "quota_bytes": lambda: 1 << 20,
            "ranks": lambda: 1,
            "ratio": lambda: choice([1, 3]),
            "fractions": lambda: [choice([0.1, 0.5])],
            "fraction": lambda: choice([0.1, 0.5]),
            "engines": lambda: choice([1, 3]),
            "fleets": lambda: [
                (choice([1, 2]), choice(_core.ROUTES), choice(["auto", "all", None]))
            ],
            "traces": lambda: [choice(self.pool["Trace"])],
            "checksums": lambda: [[1]],
            "timeout": lambda: choice([0.0, 0.01, 0]),
            "seconds": lambda: choice([0.0, 0.01]),
            "request": self.request,
            "tracked": lambda: SimpleNamespace(
                run=choice(self.pool["Run"]), request=self.request()
            ),
            "array": lambda: self.memory[0],
            "arrays": lambda: self.memory,
            "groups": lambda: choice(
                [choice(self.pool["Geometry"]).groups, [(0, N, 1, 1, None)] * 2]
            ),
            "segments": lambda: self.pool["Segment"][:1],
            "shape": lambda: [choice([1, 64])],
        }
        return makers[name]() if name in makers else None

    def typed(self, annotation: str) -> Any:
        choice = self.random.choice
        for name in self.pool:
            if name in annotation.replace("|", " ").replace("[", " ").replace("]", " ").split():
                item = choice(self.pool[name])
                return [item] if "Sequence" in annotation else item
        if "Callable" in annotation:
            return choice([lambda *_: None, lambda *_: self.number(), 5])
        if "Sequence" in annotation or "list" in annotation or "Iterable" in annotation:
            size = choice([0, 1, 2, 3, 50])
            return [self.typed(annotation.split("[", 1)[-1]) for _ in range(size)]
        if "tuple" in annotation:
            return tuple(self.number() for _ in range(choice([1, 2, 3])))
        if "dict" in annotation or "Mapping" in annotation:
            return choice([{}, {"a": self.number()}, {self.number(): [None]}, {"a": "b"}])
        if "bool" in annotation:
            return choice([True, False])
        if "float" in annotation:
            return choice(FLOATS + ODD_FLOATS + ODD_NUMBERS)
        if "int" in annotation:
            return self.number()
        if "bytes" in annotation:
            return choice(BYTES)
        return choice(STRINGS) if "str" in annotation else self.odd()

    # ---- calls

    def call(self, to: Target) -> None:
        positional, keywords = [], {}
        for name, annotation, keyword, default in to.parameters:
            if default and self.random.random() < 0.5:
                if not keyword:
                    break
                continue
            value = self.value(name, annotation)
            if keyword:
                keywords[name] = value
            else:
                positional.append(value)
        function = self.function(to)
        if function is None:
            return
        shown = ", ".join(
            chain(map(show, positional), (f"{name}={show(it)}" for name, it in keywords.items()))
        )
        print(f"{to.owner or ''}.{to.name}({shown})", flush=True)
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        before = self.state()
        try:
            made = function(*positional, **keywords)
        except Exception:  # it may be refused
            assert self.state() == before or to.name in ("commit", "step", "ended"), (
                "it changed something"
            )
        else:
            if type(made).__name__ in self.pool and len(self.pool[type(made).__name__]) < 8:
                self.pool[type(made).__name__].append(made)

    def function(self, to: Target) -> Any:
        if to.owner is None:
            return getattr(_core, to.name)
        if not to.is_method:
            of = getattr(_core, to.owner)
            return of if to.name == "__new__" else getattr(of, to.name)
        items = self.pool.get(to.owner)
        if not items:
            return None
        item, of = self.random.choice(items), getattr(_core, to.owner)
        if isinstance(getattr(of, to.name, None), type(_core.Hit.blocks)):
            return lambda: getattr(item, to.name)
        return getattr(item, to.name, None)

    def state(self) -> tuple[Any, ...]:
        """What a call that is refused leaves as it was."""
        stats = self.cache.stats()
        stats.pop("metadata_bytes")
        assert self.cache.failure() is None, self.cache.failure()
        assert self.cache.audit() is None, self.cache.audit()
        hit = self.cache.lookup(self.namespaces[0], self.keys(3))
        return stats["writing_entries"], stats["pages"], stats["checkpoints"], hit.blocks


def show(value: Any) -> str:
    text = ascii(value)
    return text if len(text) < 200 else f"{text[:200]}... ({len(text)})"


def main(seed: int, calls: int) -> None:
    faulthandler.enable()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        world = World(seed, Path(folder))
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit = size + MOST_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        known = targets()
        assert len(known) > 250, f"expected all of the stubs, found {len(known)}"
        weights = [1 + 3 * len(to.parameters) for to in known]
        for count in range(calls):
            if count % 200 == 199:
                world.restock()
            (to,) = world.random.choices(known, weights)
            world.call(to)
        faulthandler.cancel_dump_traceback_later()
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        assert most < MOST_RESIDENT, f"it took {most} bytes"


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
