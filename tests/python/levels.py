"""Reads the levels that ARCHITECTURE.md promises and finds the imports that break them."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import tomllib


@dataclass(frozen=True)
class Levels:
    """The modules of one tree, from the top level down, and the imports allowed within a level."""

    rows: list[list[str]]
    allowed: set[tuple[str, str]]

    def level(self, module: str) -> int | None:
        """The level of a module, counted from the top; None for one that no level names."""
        return next((at for at, row in enumerate(self.rows) if module in row), None)

    def violation(self, importer: str, imported: str) -> str | None:
        """The reason why an import is wrong; None if it points strictly down."""
        above, below = self.level(importer), self.level(imported)
        for module, level in ((importer, above), (imported, below)):
            if level is None:
                return f"{module}: expected in the levels of ARCHITECTURE.md, found in none"
        if importer == imported or below > above or (importer, imported) in self.allowed:
            return None
        return f"{importer} -> {imported}: expected a module of a lower level"


def read(document: str, tree: str) -> Levels:
    """The row of a tree in ARCHITECTURE's table: `a` > `b`, `c`, and exceptions: `a` -> `b`."""
    row = re.search(rf"^\| `{re.escape(tree)}` \|.*\| (.*?) \|$", document, re.M)
    assert row, f"ARCHITECTURE.md has no levels of {tree!r}"
    order, _, exceptions = row[1].partition("except")
    rows = [re.findall(r"`([^`]+)`", level) for level in order.split(" > ")]
    return Levels(rows, set(re.findall(r"`([\w/]+)` -> `([\w/]+)`", exceptions)))


# Rust


def crate_dependencies(root: Path) -> Iterator[tuple[str, str]]:
    """(crate, crate) for the dependencies between the crates of the workspace, by folder."""
    workspace = tomllib.loads((root / "Cargo.toml").read_text())
    folders = {workspace["package"]["name"]: "rust/core"}
    manifests = {"rust/core": workspace}
    for member in workspace["workspace"]["members"]:
        manifests[member] = tomllib.loads((root / member / "Cargo.toml").read_text())
        folders[manifests[member]["package"]["name"]] = member
    for folder, manifest in manifests.items():
        for kind in ("dependencies", "build-dependencies"):
            for name in manifest.get(kind, {}):
                if name in folders:
                    yield folder, folders[name]


# Python


@cache
def _imports(text: str) -> list[ast.Import | ast.ImportFrom]:
    nodes = ast.walk(ast.parse(text))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def python_imports(package: Path) -> Iterator[tuple[str, str]]:
    """(importer, imported) of full module names below a package, also for types alone."""
    modules = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        for pattern in ("*.py", "_core.*")
        for path in package.rglob(pattern)
    } | {f"{package.name}._core"}
    for path in sorted(package.rglob("*.py")):
        name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        importer = name.removesuffix(".__init__")
        # What a relative import starts from.
        here = importer.split(".") if path.stem == "__init__" else importer.split(".")[:-1]
        for node in _imports(path.read_text()):
            if isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            else:
                base = here[: len(here) + 1 - node.level] if node.level else []
                module = ".".join([*base, *filter(None, [node.module])])
                # `from package import name`: a module of that name, or something in the package.
                named = [
                    full if (full := f"{module}.{alias.name}") in modules else module
                    for alias in node.names
                ]
            for imported in named:
                if imported in modules and imported != importer:
                    yield importer, imported


def package_edges(package: Path, inner: str = "") -> set[tuple[str, str]]:
    """(importer, imported) for the modules and packages of a package, as the table names them.

    inner: a package inside, of which alone the modules count.
    """
    start = f"{package.name}.{inner}" if inner else package.name

    def part(module: str) -> str | None:
        rest = f"{module}.".removeprefix(f"{start}.")
        if rest == f"{module}.":
            return None
        return rest.partition(".")[0] or "__init__"

    edges = {(part(importer), part(imported)) for importer, imported in python_imports(package)}
    return {(one, other) for one, other in edges if one and other}


def circles(edges: set[tuple[str, str]]) -> list[str]:
    """Modules that import each other, directly or by way of others."""
    after: dict[str, set[str]] = {}
    for importer, imported in edges:
        after.setdefault(importer, set()).add(imported)
    found = []
    for start in sorted(after):
        reached, ahead = set(), set(after[start])
        while ahead:
            reached |= ahead
            ahead = set().union(*(after.get(module, set()) for module in ahead)) - reached
        if start in reached:
            found.append(start)
    return found
