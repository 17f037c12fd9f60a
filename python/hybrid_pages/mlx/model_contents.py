"""What is in a model: its arrays, and all else that its results depend on."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from itertools import chain
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from hybrid_pages.mlx.versions import UnsupportedError

_PACKAGES = ("mlx", "mlx_lm", "builtins", "functools")

# By type: what `mx.compile` returns for a module calls itself one, and has none of its parts.
_HOLDERS = (nn.Module, dict, list, tuple)

Conditions = list[tuple[str, Any]]
"""All in a model that is no array, by path."""


class ModelContents:
    """One walk through the modules of a model. Keeps every object that it found.

    arrays, conditions: by path.
    """

    def __init__(self, model: Any) -> None:
        self.arrays: dict[str, mx.array] = {}
        self.conditions: Conditions = []
        # Of modules, dicts and lists: what they hold, now and later, names included.
        self._modules: list[Any] = []
        self._views: list[Collection[Any]] = []
        self._walk(model)
        # Kept, so that nothing else gets the id of one.
        self._held = list(chain.from_iterable(self._views))
        self._marks = self._marked()
        self._calls = {kind: _call(kind) for kind in map(type, self._modules)}
        self._data = {
            id(value): (value, repr(value)) for _, value in self.conditions if _is_data(value)
        }

    def still_holds(self) -> bool:
        """Whether the model has the same objects as then. Arrays may have been written to.

        Much faster than another walk.
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
    """The function that a class is called by. Not what the metaclass has: that is new each time."""
    return next((vars(each)["__call__"] for each in kind.__mro__ if "__call__" in vars(each)), None)


def _is_data(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


class ValueKeys:
    """What tells a value from others: itself, its words, or, of an object, which one it is."""

    def __init__(self) -> None:
        # Many modules have the same arguments.
        self._known: dict[int, tuple[str, Any]] = {}

    def __call__(self, value: Any) -> tuple[str, Any]:
        if value is None or isinstance(value, (bool, int, float, str, bytes)):
            return type(value).__name__, repr(value) if isinstance(value, float) else value
        if id(value) not in self._known:
            named = ("data", repr(value)) if _is_data(value) else ("object", id(value))
            self._known[id(value)] = named
        return self._known[id(value)]

    def words(self, path: str, value: Any) -> str:
        """The same in words that another process would use, too.

        Raises:
            UnsupportedError: there are none.
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
