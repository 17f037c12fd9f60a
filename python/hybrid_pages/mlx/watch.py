"""The state of a model: whether what it computes now is what it computed when pages were stored.

Arrays of mlx never change; a Python name of one may come to mean another, also by ``a[0] = 1``. An
alias of the old array keeps its memory, so another array has another address: no write is missed.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import os
from collections import Counter
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from hybrid_pages import ArrayView
from hybrid_pages.mlx.support import UnsupportedError

_PACKAGES = ("mlx", "mlx_lm", "builtins", "functools")
_MOST_STATES = 256

Conditions = list[tuple[str, Any]]
"""All in a model that is no array, by path."""


@dataclasses.dataclass(frozen=True)
class State:
    """name: of the namespaces of what is computed in it. uncached: why the cache can't be used."""

    name: str
    uncached: str | None = None


class Watch:
    """Looks at one model. What was stored in one state of it serves no other.

    changes counts how often it was found changed, by what: weights, or its parts.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._process = os.urandom(16).hex()
        self._numbers = itertools.count(1)
        self.changes: Counter[str] = Counter()
        arrays, conditions = _read(model)
        self._remember(arrays)
        self._number = 0
        self._last = self._key(conditions)
        # Objects that conditions name by their ids must live as long.
        self._states = {self._last: ("", conditions)}

    @property
    def weights(self) -> dict[str, mx.array]:
        """The arrays of the model as they were at the last look, by path."""
        return self._weights

    def look(self) -> State:
        """The present state. What was stored before weights changed is never used again."""
        if getattr(self._model, "training", False):
            return State("", "training mode")
        arrays, conditions = _read(self._model)
        if self._are_others(arrays):
            self.changes["weights"] += 1
            self._renew(arrays, conditions)
        key = self._key(conditions)
        if key != self._last:
            self.changes["parts"] += 1
            self._last = key
        if key not in self._states:
            if len(self._states) >= _MOST_STATES:
                self._states.clear()
            self._states[key] = self._fresh(), conditions
        return State(self._states[key][0])

    def changed_since(self, state: State) -> bool:
        """Whether the model is in another state than it was."""
        arrays, conditions = _read(self._model)
        if getattr(self._model, "training", False) or self._are_others(arrays):
            return True
        found = self._states.get(self._key(conditions))
        return found is None or found[0] != state.name

    def weights_changed(self) -> None:
        """Nothing that was stored until now is used again."""
        self._renew(*_read(self._model))

    def lasting(self) -> str:
        """The conditions in words that another process would use, too.

        Raises:
            UnsupportedError: some have no such words.
        """
        conditions = _read(self._model)[1]
        plain = _Plain()
        return "\n".join(f"{path}={plain.words(path, value)}" for path, value in conditions)

    def _renew(self, arrays: dict[str, mx.array], conditions: Conditions) -> None:
        self._remember(arrays)
        self._number = next(self._numbers)
        self._last = self._key(conditions)
        self._states = {self._last: (self._fresh(), conditions)}

    def _remember(self, arrays: dict[str, mx.array]) -> None:
        # Those from before go first: there may be no room for both.
        self._weights: dict[str, mx.array] = {}
        self._weights = {path: copy.copy(array) for path, array in arrays.items()}
        mx.eval(list(self._weights.values()))
        self._at = _addresses(self._weights)

    def _are_others(self, arrays: dict[str, mx.array]) -> bool:
        mx.eval(list(arrays.values()))
        return _addresses(arrays) != self._at

    def _fresh(self) -> str:
        return f"{self._process}:{next(self._numbers)}"

    def _key(self, conditions: Conditions) -> tuple[Any, ...]:
        plain = _Plain()
        key = tuple((path, plain(value)) for path, value in conditions)
        return self._number, str(mx.default_device()), key


def _addresses(arrays: dict[str, mx.array]) -> dict[str, tuple[int, Any, Any]]:
    return {
        path: (ArrayView(array).address if array.size else 0, array.shape, array.dtype)
        for path, array in arrays.items()
    }


def _read(model: Any) -> tuple[dict[str, mx.array], Conditions]:
    """The arrays of a model by path, and all else that is in its modules."""
    arrays: dict[str, mx.array] = {}
    conditions: Conditions = []
    visited: set[int] = set()
    todo: list[tuple[str, Any]] = [("model", model)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, mx.array):
            arrays[path] = value
        elif isinstance(value, nn.Module):
            if id(value) in visited:
                continue
            visited.add(id(value))
            # Not what the metaclass has: that is another object at each look.
            classes = type(value).__mro__
            call = next(
                (vars(each)["__call__"] for each in classes if "__call__" in vars(each)), None
            )
            conditions += [(path, type(value)), (f"{path}()", call)]
            todo += [(f"{path}.{name}", each) for name, each in value.items()]
            todo += [(f"{path}.{name}", each) for name, each in vars(value).items()]
        elif isinstance(value, dict):
            todo += [(f"{path}[{name!r}]", each) for name, each in value.items()]
        elif isinstance(value, (list, tuple)):
            conditions.append((path, len(value)))
            todo += [(f"{path}[{at}]", each) for at, each in enumerate(value)]
        else:
            conditions.append((path, value))
    return arrays, conditions


class _Plain:
    """What tells a value from others: itself, its words, or, of an object, which one it is."""

    def __init__(self) -> None:
        # Many modules have the same arguments.
        self._known: dict[int, tuple[str, Any]] = {}

    def __call__(self, value: Any) -> tuple[str, Any]:
        if value is None or isinstance(value, (bool, int, float, str, bytes)):
            return type(value).__name__, repr(value) if isinstance(value, float) else value
        if id(value) not in self._known:
            data = dataclasses.is_dataclass(value) and not isinstance(value, type)
            self._known[id(value)] = ("data", repr(value)) if data else ("object", id(value))
        return self._known[id(value)]

    def words(self, path: str, value: Any) -> str:
        """The same in words that another process would use, too."""
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
