"""Reads the levels that ARCHITECTURE.md promises and finds the imports that break them."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tomllib


@dataclass(frozen=True)
class Levels:
    """The modules of one tree, from the top row down, and the imports allowed within a row."""

    rows: list[list[str]]
    allowed: set[tuple[str, str]]

    def level(self, module: str) -> int | None:
        """The row of a module, counted from the top; None for one that no row names."""
        return next((at for at, row in enumerate(self.rows) if module in row), None)

    def violation(self, importer: str, imported: str) -> str | None:
        """The reason why an import is wrong; None if it points strictly down."""
        above, below = self.level(importer), self.level(imported)
        for module, level in ((importer, above), (imported, below)):
            if level is None:
                return f"{module}: expected in a table of ARCHITECTURE.md, found in none"
        if importer == imported or below > above or (importer, imported) in self.allowed:
            return None
        return f"{importer} -> {imported}: expected a module of a row below"


def read(document: str, heading: str) -> Levels:
    """The table under a heading of ARCHITECTURE.md, and the exceptions (`a` -> `b`) named there."""
    section = re.search(rf"^### {re.escape(heading)}\n(.*?)(?=^##|\Z)", document, re.M | re.S)
    assert section, f"ARCHITECTURE.md has no section {heading!r}"
    cells = re.findall(r"^\| (`.*?) \|", section[1], re.M)
    allowed = re.findall(r"`([\w/]+)` -> `([\w/]+)`", section[1])
    return Levels([re.findall(r"`([^`]+)`", cell) for cell in cells], set(allowed))


# Rust


def _code(source: str) -> str:
    """The source without comments and without what strings say."""
    source = re.sub(r"/\*.*?\*/", "", source, flags=re.S)
    return re.sub(r'''//[^\n]*|'"'|"(?:\\.|[^"\\])*"''', "", source)


def _branches(tree: str) -> Iterator[list[str]]:
    """The paths of a `use` tree: `a::{b, c::d}` has a::b and a::c::d."""
    depth, start, parts = 0, 0, []
    for at, letter in enumerate(tree + ","):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(tree[start:at].strip())
            start = at + 1
    for part in filter(None, parts):
        head, brace, rest = part.partition("{")
        names = [name.strip().split()[0] for name in head.split("::") if name.strip()]
        if not brace:
            yield names
        else:
            yield from (names + tail for tail in _branches(rest.rpartition("}")[0]))


def _paths(code: str) -> Iterator[list[str]]:
    """Every path that starts at the crate's root or at a parent module."""
    uses = re.findall(r"\buse\s+([^;]+);", code)
    for tree in uses:
        yield from _branches(tree)
    rest = re.sub(r"\buse\s+[^;]+;", "", code)
    for path in re.findall(r"\b(?:crate|super)(?:::\w+)+", rest):
        yield path.split("::")


def rust_imports(source: Path) -> Iterator[tuple[str, str]]:
    """(importer, imported) for the top-level modules of a crate's `src`, its root excepted."""
    modules = {path.stem for path in source.iterdir()} - {"lib"}
    for path in sorted(source.rglob("*.rs")):
        place = path.relative_to(source).with_suffix("").parts
        if place == ("lib",):
            continue
        # A folder's module is in its mod.rs.
        place = place[:-1] if place[-1] == "mod" else place
        for names in _paths(_code(path.read_text())):
            if names[0] == "crate":
                target = names[1:]
            else:
                ups = next(at for at, name in enumerate([*names, ""]) if name != "super")
                # An inline module, such as `tests`, is one level deeper: it stays in the same file.
                if not 0 < ups >= len(place):
                    continue
                target = names[ups:]
            if target and target[0] in modules:
                yield place[0], target[0]


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


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _statements(tree: ast.AST, *, types: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if types or not _is_type_checking(node):
            yield node
            yield from _statements(node, types=types)


def python_imports(package: Path, *, types: bool = True) -> Iterator[tuple[str, str]]:
    """(importer, imported) of full module names below a package; `types`: also for types alone."""
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
        for node in _statements(ast.parse(path.read_text()), types=types):
            if isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = here[: len(here) + 1 - node.level] if node.level else []
                module = ".".join([*base, *filter(None, [node.module])])
                # `from package import name`: a module of that name, or something in the package.
                named = [
                    full if (full := f"{module}.{alias.name}") in modules else module
                    for alias in node.names
                ]
            else:
                continue
            for imported in named:
                if imported in modules and imported != importer:
                    yield importer, imported


def top_level(module: str) -> str:
    """The part of a package that a module belongs to, as the table names it."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


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
