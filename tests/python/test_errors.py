"""Every error that the package raises is a `HybridPagesError`: read off its sources."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import hybrid_pages
from hybrid_pages import _core

PACKAGE = Path(hybrid_pages.__file__).parent
# Conventions want these: of a wrong type, of a value that Typer turns into usage, what ends a
# process, and what FastAPI turns into an answer.
CONVENTIONS = {
    "TypeError",
    "BadParameter",
    "ArgumentTypeError",
    "KeyboardInterrupt",
    "HTTPException",
}
CORE = {
    name
    for name, value in vars(_core).items()
    if isinstance(value, type) and issubclass(value, hybrid_pages.HybridPagesError)
}


def name_of(node: ast.expr | None) -> str:
    """The last name of an expression: `b` of `a.b`, of `b(...)` and of `b[...]`."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return node.attr
        case ast.Call():
            return name_of(node.func)
        case ast.Subscript():
            return name_of(node.value)
    return ""


def known_errors(trees: list[ast.Module]) -> set[str]:
    """Names of classes that derive from the root, and of functions that return one of them."""
    known = set(CORE)
    while True:
        found = set(known)
        for node in (node for tree in trees for node in ast.walk(tree)):
            match node:
                case ast.ClassDef(bases=bases) if known & set(map(name_of, bases)):
                    found.add(node.name)
                case ast.FunctionDef(returns=returns) if name_of(returns) in known:
                    found.add(node.name)
        if found == known:
            return known
        known = found


def wrong_raises(tree: ast.Module, known: set[str]) -> Iterator[tuple[int, str]]:
    """Lines that raise something else, and what. A bare `raise` passes on what came, and a name in
    lower case what was kept of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            name = name_of(node.exc)
            kept = isinstance(node.exc, ast.Name | ast.Attribute) and name.islower()
            if name not in known | CONVENTIONS and not kept:
                yield node.lineno, name


def test_every_error_that_is_raised_is_a_hybrid_pages_error() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    trees = [ast.parse(file.read_text()) for file in files]
    known = known_errors(trees)
    assert {"UnsupportedError", "SettingsError", "HintError", "missing"} < known
    wrong = [
        f"{file.relative_to(PACKAGE)}:{line}: {name}"
        for file, tree in zip(files, trees, strict=True)
        for line, name in wrong_raises(tree, known)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("raise ValueError(1)", ["ValueError"]),
        ("raise RuntimeError", ["RuntimeError"]),
        ("class Mine(Exception): ...\nraise Mine()", ["Mine"]),
        ("def made() -> ValueError: ...\nraise made()", ["made"]),
        ("class Mine(hp.GeometryError): ...\nclass More(Mine): ...\nraise More()", []),
        ("def made() -> BudgetError: ...\nraise made()", []),
        ("raise TypeError(1)", []),
        ("try: ...\nexcept OSError: raise", []),
    ],
)
def test_a_raise_of_something_else_is_found(code: str, found: list[str]) -> None:
    tree = ast.parse(code)
    assert [name for _, name in wrong_raises(tree, known_errors([tree]))] == found


def test_an_error_is_one_class_under_all_its_names() -> None:
    from hybrid_pages.adapter import errors
    from hybrid_pages.vllm.config import settings, support

    assert support.UnsupportedError is errors.UnsupportedError
    assert settings.SettingsError is errors.SettingsError
