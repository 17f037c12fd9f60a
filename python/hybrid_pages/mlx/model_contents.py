"""Collects the arrays of a model, and everything else that its results depend on."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from itertools import chain
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from hybrid_pages.mlx.versions import UnsupportedError

_PACKAGES = ("mlx", "mlx_lm", "builtins", "functools")

# Checked by type: what `mx.compile` returns for a module claims to be one, without its children.
_HOLDERS = (nn.Module, dict, list, tuple)

Conditions = list[tuple[str, Any]]
"""Everything in a model but arrays, with its path: types, values and functions."""


class ModelContents:
    """The contents of a model at one moment, from a walk through its modules.

    It keeps every object alive that it has found. arrays, conditions: by path.
    """

    def __init__(self, model: Any) -> None:
        self.arrays: dict[str, mx.array] = {}
        self.conditions: Conditions = []
        # Live views of the names and values in modules, dicts and lists.
        self._modules: list[Any] = []
        self._views: list[Collection[Any]] = []
        self._walk(model)
        # Kept alive, so that no other object gets one of their ids.
        self._held = list(chain.from_iterable(self._views))
        self._marks = self._marked()
        self._calls = {kind: _call(kind) for kind in map(type, self._modules)}
        self._data = {
            id(value): (value, repr(value)) for _, value in self.conditions if _is_data(value)
        }

    def still_holds(self) -> bool:
        """Whether the model still has the objects that were found. Much faster than another walk.

        Writes to arrays do not show here.
        """
        return (
            self._marked() == self._marks
            and all(_call(kind) is call for kind, call in self._calls.items())
            and all(repr(value) == words for value, words in self._data.values())
        )

    def _marked(self) -> tuple[list[Any], ...]:
        return (
            list(map(id, chain.from_iterable(self._views))),
            list(map(len, self._views)),
            list(map(type, self._modules)),
            list(map(id, map(vars, self._modules))),
        )

    def _walk(self, model: Any) -> None:
        first: dict[int, str] = {}
        todo: list[tuple[str, Any]] = [("model", model)]
        while todo:
            path, value = todo.pop()
            if isinstance(value, mx.array):
                self.arrays[path] = value
                continue
            if not issubclass(type(value), _HOLDERS):
                self.conditions.append((path, value))
                continue
            if first.setdefault(id(value), path) != path:
                self.conditions.append((path, f"the same as {first[id(value)]}"))
                continue
            if issubclass(type(value), nn.Module):
                more = vars(value)
                self._modules.append(value)
                self._views += value.keys(), value.values(), more.keys(), more.values()
                self.conditions += [(path, type(value)), (f"{path}()", _call(type(value)))]
                todo += [(f"{path}.{name}", each) for name, each in value.items()]
                todo += [(f"{path}.{name}", each) for name, each in more.items()]
            elif isinstance(value, dict):
                self._views += value.keys(), value.values()
                todo += [(f"{path}[{name!r}]", each) for name, each in value.items()]
            else:
                self._views.append(value)
                self.conditions.append((path, len(value)))
                todo += [(f"{path}[{at}]", each) for at, each in enumerate(value)]


def _call(kind: type) -> Any:
    """The ``__call__`` of a class, looked up without the metaclass, which returns a new object each
    time."""
    return next((vars(each)["__call__"] for each in kind.__mro__ if "__call__" in vars(each)), None)


def _is_data(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


class ValueKeys:
    """Keys by which values are compared: plain values by content, dataclasses by their text, other
    objects by identity."""

    def __init__(self) -> None:
        # Many modules share the same arguments object.
        self._known: dict[int, tuple[str, Any]] = {}

    def __call__(self, value: Any) -> tuple[str, Any]:
        if value is None or isinstance(value, (bool, int, float, str, bytes)):
            return type(value).__name__, repr(value) if isinstance(value, float) else value
        if id(value) not in self._known:
            named = ("data", repr(value)) if _is_data(value) else ("object", id(value))
            self._known[id(value)] = named
        return self._known[id(value)]

    def words(self, path: str, value: Any) -> str:
        """A text for a value that is equal in other processes.

        path: of the value, for the error.

        Raises:
            UnsupportedError: the value is code from outside mlx-lm, which has no such text.
        """
        kind, plain = self(value)
        if kind != "object":
            return f"{kind} {plain!r}"
        named = value if hasattr(value, "__qualname__") else type(value)
        module = getattr(named, "__module__", None) or ""
        if module.split(".")[0] not in _PACKAGES:
            raise UnsupportedError(
                f"disk_path: expected a model of mlx-lm's own code, found "
                f"{module}.{named.__qualname__} at {path}: another process may have other code "
                "under that name, leave disk_path out"
            )
        return f"{kind} {module}.{named.__qualname__}"
