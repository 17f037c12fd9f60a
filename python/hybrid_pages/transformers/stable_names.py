"""Names of a model's states that are equal in other processes.

Inside one process objects are compared by identity. A stable name consists of the contents of plain
values, the package and version of code, and the class and fields of other objects. Code without a
version, such as that of a notebook or a repository, has no name: tomorrow it may be different under
the same name.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import sys
import types
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from hybrid_pages import HybridPagesError
from hybrid_pages.transformers.structure import ByIdentity, Described, ModuleDescription, Unreadable
from hybrid_pages.transformers.tensor_parts import PLAIN

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_MOST_DEPTH = 8
Path = tuple[int, ...]
"""The ids of the functions and objects around what is being named, the outermost first. Some
decorators make functions that contain themselves."""


class Unnamed(HybridPagesError):
    """Something has no stable name. The message says what, ``remedy`` what to do about it."""

    remedy = "another process could not tell whether it has the same: leave the setting out"


class Unversioned(Unnamed):
    """Code has no version, and may be different under the same name tomorrow."""

    remedy = (
        "another process may have other code under that name: install it as a package, or leave "
        "the setting out"
    )


def stable_name(parts: Sequence[Hashable]) -> str:
    """The stable name of something with these parts, as 64 hexadecimal digits.

    Raises:
        Unnamed: a part has no stable name.
    """
    try:
        text = json.dumps([sys.version, [_name(part, ()) for part in parts]])
    except RecursionError:
        raise Unnamed("an object that holds itself") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise Unnamed(f"an object that has no name ({type(error).__name__}: {error})") from None
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def _name(value: Any, path: Path) -> Any:
    if isinstance(value, PLAIN):
        return [type(value).__name__, repr(value)]
    if value is ...:
        return "ellipsis"
    if isinstance(value, slice):
        return ["slice", _name((value.start, value.stop, value.step), path)]
    if isinstance(value, Described):
        return ["object of", _name(type(value.held), path)]
    if isinstance(value, ByIdentity):
        return _name(value.held, path)
    if isinstance(value, Unreadable):
        raise Unnamed(f"a tensor of {value.kind}, whose content can't be read ({value.why})")
    if isinstance(value, ModuleDescription):
        return _module(value, path)
    if isinstance(value, (tuple, list)):
        return [_name(item, path) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(_name(item, path)) for item in value)
    if isinstance(value, dict):
        items = value.items()
        return sorted(json.dumps([_name(key, path), _name(item, path)]) for key, item in items)
    if isinstance(value, types.CodeType):
        digest = hashlib.blake2b(value.co_code, digest_size=16).hexdigest()
        uses = [_name(value.co_names, path), _name(value.co_consts, path)]
        return ["code", digest, value.co_name, *uses]
    if isinstance(value, types.ModuleType):
        return ["module", value.__name__, _version(value.__name__)]
    if isinstance(value, type):
        return ["class", value.__qualname__, *_place(value.__module__, value)]
    if isinstance(value, _FUNCTIONS):
        return _function(value, path)
    return _object(value, path)


def _module(value: ModuleDescription, path: Path) -> Any:
    attributes = []
    for key, item in value.attributes:
        try:
            attributes.append(_name((key, item), path))
        except Unnamed as error:
            error.args = (f"{error}, in {key} of a {value.kind.__qualname__}",)
            raise
    rest = [_name(value.kind, path), _name(value.code, path)]
    return [*rest, attributes, _name(value.modules, path)]


def _function(value: Any, path: Path) -> Any:
    owner = getattr(value, "__self__", None)
    if isinstance(value, types.MethodType):
        return ["method", _name(value.__func__, path), _name(type(owner), path)]
    if isinstance(value, types.BuiltinFunctionType):
        module = value.__module__ or type(owner).__module__
        return ["builtin", value.__qualname__, *_place(module, value)]
    if id(value) in path:
        return ["again", path.index(id(value))]
    path = (*path, id(value))
    # A function's globals tell where it was written, even if a decorator says otherwise.
    found = ["function", value.__qualname__, _name(value.__code__, path)]
    found += _place(value.__globals__.get("__name__", ""), value)
    found += [_name(value.__defaults__, path), _name(value.__kwdefaults__, path)]
    return [*found, [_cell(cell, path) for cell in value.__closure__ or ()]]


def _cell(cell: types.CellType, path: Path) -> Any:
    try:
        value = cell.cell_contents
    except ValueError:
        return "empty"
    return _name(value, path)


def _object(value: Any, path: Path) -> Any:
    kind, fields = type(value), getattr(value, "__dict__", None)
    if isinstance(value, functools.partial):
        fields = {"": (value.func, value.args, value.keywords)} | value.__dict__
    what = f"an object of {kind.__module__}.{kind.__qualname__}"
    if isinstance(value, torch.Tensor):
        raise Unnamed(f"{what} where no digest of the weights looks")
    if fields is None:
        raise Unnamed(f"{what}, whose content can't be read")
    if id(value) in path:
        return ["again", path.index(id(value))]
    if len(path) >= _MOST_DEPTH:
        raise Unnamed(f"{what} inside {_MOST_DEPTH} others")
    inside = (*path, id(value))
    named = sorted(json.dumps([key, _name(item, inside)]) for key, item in fields.items())
    return ["object", _name(kind, path), named]


def _place(module: str, value: Any) -> tuple[str, str]:
    try:
        return module, _version(module)
    except Unversioned:
        name = getattr(value, "__qualname__", repr(value))
        raise Unversioned(f"{name} of {module or 'no module'}, which has no version") from None


@functools.cache
def _version(module: str) -> str:
    """The version of the package that a module belongs to."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == "builtins":
        return "python"
    found = []
    for name in _distributions().get(top, ()):
        distribution = importlib.metadata.distribution(name)
        origin = distribution.read_text("direct_url.json")
        source = {} if origin is None else json.loads(origin)
        if "dir_info" in source:  # a folder, whose files change under one version
            raise Unversioned(module)
        commit = source.get("vcs_info", {}).get("commit_id", "")
        found.append(f"{name} {distribution.version} {commit}")
    if not found:
        raise Unversioned(module)
    return ", ".join(sorted(found))


@functools.cache
def _distributions() -> Mapping[str, Sequence[str]]:
    return importlib.metadata.packages_distributions()
