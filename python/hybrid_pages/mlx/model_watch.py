"""Detects that a model has changed, so that entries serve only the state they were computed in.

Arrays of mlx never change: ``a[0] = 1`` gives the name ``a`` to another array. An alias keeps the
memory of the old array, so that a new one has another address, shape or strides. Only writes
through a view that another library has of the memory do not show in these. Therefore some elements
of each array are compared, too.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import os
from collections import Counter
from typing import Any

import mlx.core as mx

from hybrid_pages._core import array_marks
from hybrid_pages.mlx.model_contents import Conditions, ModelContents, ValueKeys
from hybrid_pages.mlx.numpy_views import are_equal

_SAMPLES = 16
_MOST_STATES = 256


@dataclasses.dataclass(frozen=True)
class ModelState:
    """A state of a model. Entries of one state serve no other.

    name: part of the namespaces of entries. uncached: why the cache cannot be used, or None.
    """

    name: str
    uncached: str | None = None


class ModelWatch:
    """Looks at one model before each use.

    changes: how often the model was found changed, by what: its weights, or its parts.

    Args:
        model: has run at least once, since some models make parts of themselves then.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._process = os.urandom(16).hex()
        self._numbers = itertools.count(1)
        self.changes: Counter[str] = Counter()
        self._number = 0
        self._reading = ModelContents(model)
        self._remember()
        self._last = self._key(self._reading.conditions)
        # The conditions are kept, since keys contain the ids of objects in them.
        self._states = {self._last: ("", self._reading.conditions)}

    @property
    def weights(self) -> dict[str, mx.array]:
        """The arrays of the model as they were at the last look, by path."""
        return self._weights

    def look(self) -> ModelState:
        """The present state. A state from before a change of weights never comes back."""
        if getattr(self._model, "training", False):
            return ModelState("", "training mode")
        if not self._is_as_last(_SAMPLES):
            self._reading = ModelContents(self._model)
            if self._has_other_weights(self._reading.arrays):
                self.changes["weights"] += 1
                self._renew()
            else:
                self._remember()
            self._note(self._key(self._reading.conditions))
        return ModelState(self._states[self._last][0])

    def changed_since(self, state: ModelState, *, sampled: bool = True) -> bool:
        """Whether the model is in another state now.

        sampled: whether elements of arrays are compared, too. Without that, it is fast enough for
        every token.
        """
        if getattr(self._model, "training", False):
            return True
        if self._is_as_last(_SAMPLES if sampled else 0):
            return self._states[self._last][0] != state.name
        reading = ModelContents(self._model)
        if self._has_other_weights(reading.arrays):
            return True
        found = self._states.get(self._key(reading.conditions))
        return found is None or found[0] != state.name

    def weights_changed(self) -> None:
        """Begins a new state: nothing that was stored until now is used again."""
        self._reading = ModelContents(self._model)
        self._renew()

    def lasting(self) -> str:
        """Everything in the model but its arrays, as a text that is equal in other processes.

        Raises:
            UnsupportedError: something has no such text.
        """
        plain = ValueKeys()
        return "\n".join(
            f"{path}={plain.words(path, value)}" for path, value in self._reading.conditions
        )

    def drop(self) -> None:
        """Drops the references to the model and its arrays."""
        self._model = None
        self._reading = ModelContents(None)
        self._renew()

    def _is_as_last(self, samples: int) -> bool:
        """Whether the model has the same objects and the same memory as at the last look."""
        return (
            self._device == str(mx.default_device())
            and self._reading.still_holds()
            and self._marked(samples) == self._marks[samples]
        )

    def _marked(self, samples: int) -> bytes:
        return array_marks(list(self._reading.arrays.values()), samples=samples)

    def _has_other_weights(self, arrays: dict[str, mx.array]) -> bool:
        """Whether arrays have other values than at the last look."""
        if arrays.keys() != self._weights.keys():
            return True
        for path, array in arrays.items():
            before, mark = self._weights[path], self._each[path]
            if array_marks([array], samples=_SAMPLES) == mark:
                continue
            # If the old array has another mark, somebody has written into its memory.
            if array_marks([before], samples=_SAMPLES) != mark or not are_equal(array, before):
                return True
        return False

    def _note(self, key: tuple[Any, ...]) -> None:
        if key != self._last:
            self.changes["parts"] += 1
            self._last = key
        if key not in self._states:
            if len(self._states) >= _MOST_STATES:
                self._states.clear()
            self._states[key] = self._fresh(), self._reading.conditions

    def _renew(self) -> None:
        self._remember()
        self._number = next(self._numbers)
        self._last = self._key(self._reading.conditions)
        self._states = {self._last: (self._fresh(), self._reading.conditions)}

    def _remember(self) -> None:
        # The old arrays are freed first: there may be no room for both.
        self._weights: dict[str, mx.array] = {}
        arrays = self._reading.arrays
        self._weights = {path: copy.copy(array) for path, array in arrays.items()}
        mx.eval(list(self._weights.values()))
        self._each = {
            path: array_marks([array], samples=_SAMPLES) for path, array in arrays.items()
        }
        self._marks = {0: self._marked(0), _SAMPLES: b"".join(self._each.values())}
        self._device = str(mx.default_device())

    def _fresh(self) -> str:
        return f"{self._process}:{next(self._numbers)}"

    def _key(self, conditions: Conditions) -> tuple[Any, ...]:
        plain = ValueKeys()
        key = tuple((path, plain(value)) for path, value in conditions)
        return self._number, str(mx.default_device()), key
