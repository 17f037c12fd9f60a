"""Which file of a crate uses what another one defines: `use` and paths, followed to definitions.

Names are found as rustc finds them, as far as text tells: through `use`, globs and re-exports. To
declare a module, or to re-export what another file defines, is not to use it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

_DEFINES = re.compile(
    r"(?<!')\b(?:struct|enum|union|trait|type|fn|const|static)\s+(?:mut\s+)?(\w+)"
    r"|\bmacro_rules!\s*(\w+)"
)
_USE = re.compile(r"(\bpub\s*(?:\([^)]*\)\s*)?)?\buse\s+([^;]+);")
_PATH = re.compile(r"(?<![\w:])(?:\w+::)+\w+")


@cache
def code(source: str) -> str:
    """The source without comments and without what strings say."""
    source = re.sub(r"/\*.*?\*/", "", source, flags=re.S)
    return re.sub(
        r"""//[^\n]*|\br(#+)".*?"\1|\br"[^"]*"|'(?:"|\\.)'|"(?:\\.|[^"\\])*\"""",
        "",
        source,
        flags=re.S,
    )


def _inside(text: str, opening: int) -> int:
    """Where the brace at ``opening`` closes."""
    depth = 0
    for brace in re.compile(r"[{}]").finditer(text, opening):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.start()
    return len(text)


def _without_blocks(text: str) -> str:
    """The text outside of all braces."""
    kept, at = [], 0
    while (opening := text.find("{", at)) >= 0:
        kept.append(text[at:opening])
        at = _inside(text, opening) + 1
    return ";".join([*kept, text[at:]])


def _branches(tree: str) -> Iterator[tuple[list[str], str]]:
    """The paths of a `use` tree, each with the name that it gives: `a::{b, c as d}` has two."""
    depth, start, parts = 0, 0, []
    for at, letter in enumerate(tree + ","):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(tree[start:at].strip())
            start = at + 1
    for part in filter(None, parts):
        head, brace, rest = part.partition("{")
        path, _, alias = head.partition(" as ")
        names = [name.strip() for name in path.split("::") if name.strip()]
        if brace:
            yield from (
                ([*names, *tail], names[-1] if alias == "self" else alias)
                for tail, alias in _branches(rest.rpartition("}")[0])
            )
        else:
            yield names, alias.strip() or names[-1]


@dataclass(frozen=True)
class Use:
    """One name that a `use` brings into a module; `*` for all of another one."""

    path: tuple[str, ...]
    name: str
    public: bool


@dataclass(eq=False)
class Module:
    """A module of a crate: a file, or a part of one."""

    path: tuple[str, ...]
    file: str
    parent: "Module | None"
    text: str
    children: dict[str, "Module"] = field(default_factory=dict)

    @cached_property
    def body(self) -> str:
        """Everything but `use`, and what visibilities name."""
        return re.sub(r"\bpub\s*\([^)]*\)", "", _USE.sub("", self.text))

    @cached_property
    def words(self) -> set[str]:
        """The identifiers of the body."""
        return set(re.findall(r"\b[A-Za-z_]\w*", self.body))

    @cached_property
    def defines(self) -> set[str]:
        """The names of its items."""
        return {a or b for a, b in _DEFINES.findall(_without_blocks(self.body))}

    @cached_property
    def uses(self) -> list[Use]:
        """The names that it has from elsewhere."""
        return [
            Use(
                tuple(name for name in path if name != "self" or path[0] == "self"), name, bool(pub)
            )
            for pub, tree in _USE.findall(self.text)
            for path, name in _branches(tree)
        ]

    def find(self, name: str, seen: frozenset[object] = frozenset()) -> "Module | str | None":
        """What a name means here: a module, or the file that defines it; None if it is foreign."""
        if (self, name) in seen:
            return None
        seen |= {(self, name)}
        if name in self.children:
            return self.children[name]
        if name in self.defines:
            return self.file
        for use in self.uses:
            if use.name == name and (found := self.resolve(use.path, seen)):
                return found
        for use in self.uses:
            if use.name == "*":
                there = self.resolve(use.path[:-1], seen)
                if isinstance(there, Module) and (found := there.find(name, seen)):
                    return found
        return None

    def resolve(
        self, path: tuple[str, ...], seen: frozenset[object] = frozenset()
    ) -> "Module | str | None":
        """What a path means here. What macros make counts as defined where the path leads."""
        at: Module = self
        rest = list(path)
        while rest and rest[0] in ("crate", "self", "super"):
            step = rest.pop(0)
            while step == "crate" and at.parent is not None:
                at = at.parent
            if step == "super" and at.parent is not None:
                at = at.parent
        for number, name in enumerate(rest):
            found = at.find(name, seen)
            if not isinstance(found, Module):
                return found or (at.file if number or rest != list(path) else None)
            at = found
        return at

    def paths(self) -> Iterator[tuple[str, ...]]:
        """The paths in its body that lead through modules of the crate."""
        for text in set(_PATH.findall(self.body)):
            path = tuple(text.split("::"))
            if path[0] in ("crate", "self", "super") or isinstance(self.find(path[0]), Module):
                yield path

    def needs(self) -> Iterator[str]:
        """The files that define what it uses."""
        for use in self.uses:
            if use.name == "*":
                there = self.resolve(use.path[:-1])
                if isinstance(there, Module):
                    found = {there.find(name) for name in self.words - self.defines}
                    yield from (file for file in found if isinstance(file, str))
                elif there is not None:
                    yield there
            elif not use.public or use.name in self.words:
                found_file = self.resolve(use.path)
                if isinstance(found_file, str):
                    yield found_file
        for path in self.paths():
            found_file = self.resolve(path)
            if isinstance(found_file, str):
                yield found_file

    def top_levels(self) -> Iterator[str]:
        """The top-level modules that its `use` and its paths name, also to re-export."""
        for path in [*(use.path for use in self.uses), *self.paths()]:
            at: Module | None = self
            for name in path:
                if name == "crate":
                    while at is not None and at.parent is not None:
                        at = at.parent
                elif name == "super":
                    at = at.parent if at is not None else None
                elif name != "self":
                    at = at.children.get(name) if at is not None else None
                if at is not None and at.path:
                    yield at.path[0]

    def all(self) -> Iterator["Module"]:
        """This module and all that are inside."""
        yield self
        for child in self.children.values():
            yield from child.all()


def _add(module: Module, folder: Path, source: Path) -> Module:
    """Gives a module its children: those in its text, and those in files."""
    text = module.text
    while inline := re.search(r"\bmod\s+(\w+)\s*\{", text):
        end = _inside(text, inline.end() - 1)
        path = (*module.path, inline[1])
        child = Module(path, module.file, module, text[inline.end() : end])
        module.children[inline[1]] = _add(child, folder / inline[1], source)
        text = text[: inline.start()] + text[end + 1 :]
    module.text = text
    for name in re.findall(r"\bmod\s+(\w+)\s*;", text):
        for file in (folder / f"{name}.rs", folder / name / "mod.rs"):
            if file.is_file():
                relative = str(file.relative_to(source))
                child = Module((*module.path, name), relative, module, code(file.read_text()))
                module.children[name] = _add(child, folder / name, source)
    return module


def crate(source: Path) -> Module:
    """The root module of a crate's `src`."""
    root = Module((), "lib.rs", None, code((source / "lib.rs").read_text()))
    return _add(root, source, source)


def file_edges(source: Path) -> set[tuple[str, str]]:
    """(user, definer) for the files of a crate."""
    return {
        (module.file, needed)
        for module in crate(source).all()
        for needed in module.needs()
        if needed != module.file
    }


def module_edges(source: Path) -> set[tuple[str, str]]:
    """(importer, imported) for the top-level modules of a crate, its root excepted."""
    return {
        (module.path[0], name)
        for module in crate(source).all()
        if module.path
        for name in module.top_levels()
    }
