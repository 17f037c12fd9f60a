"""Detects that a model has changed, so that entries serve only the state they were computed in.

Weights that were found changed get a new *epoch*, a number that is never used again, even if they
are changed back: a look can miss an edit, so an old number could stand for other weights. Settings
and modules are compared whole, so their earlier states are found again.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Hashable
from typing import Any

from hybrid_pages.transformers import structure, torch_settings
from hybrid_pages.transformers.compat import is_out_of_memory
from hybrid_pages.transformers.identity import has_peft_adapters
from hybrid_pages.transformers.layout import Layout
from hybrid_pages.transformers.model_states import ModelState, ModelStates
from hybrid_pages.transformers.model_trial import NO_MEMORY, differences, try_out
from hybrid_pages.transformers.stable_names import Unnamed, stable_name
from hybrid_pages.transformers.structure import Structure
from hybrid_pages.transformers.weight_samples import WeightSample, WeightSampler, same_weights

_UNREADABLE = (RuntimeError, NotImplementedError, TypeError)


class WatchedModels:
    """The models that use one store, each with its watch.

    Args:
        lasting: whether what is stored outlives the process. Then the states of the first model, as
            long as its weights are those that it came with, get names that another process gives
            them, too. All other names are this process's own.
    """

    def __init__(self, *, lasting: bool = False) -> None:
        self.states = ModelStates(lasting=lasting)
        self._first = lasting
        self._watches: weakref.WeakKeyDictionary[Any, ModelWatch] = weakref.WeakKeyDictionary()

    def knows(self, model: Any) -> bool:
        """Whether a model is watched already."""
        return model in self._watches

    def watch(self, model: Any, layout: Layout) -> ModelWatch:
        """The only watch of a model. Models whose weights are all equal share an epoch."""
        if model not in self._watches:
            twins = [w for w in self._watches.values() if w.has_weights_of(model)]
            epoch = twins[0].epoch if twins else self.states.number()
            self._watches[model] = ModelWatch(
                model, layout, self.states, epoch, lasting=self._first
            )
            self._first = False
        return self._watches[model]

    def weights_changed(self) -> None:
        """Gives all models new epochs: any of them may share the tensors that were edited."""
        for watch in self._watches.values():
            watch.set_epoch()
            watch.changes["weights_changed()"] += 1


class ModelWatch:
    """Looks at one model before each use.

    changes: how often something was found changed, by what. unnamed: why the last new state has no
    name that another process gives it, too, if it should have one. epoch: number of the weights.

    Args:
        model: to look at; it is not kept alive.
        layout: of its caches.
        states: of all models of the store.
        epoch: of its weights.
        lasting: whether its weights are those of the store's identity.
    """

    def __init__(
        self,
        model: Any,
        layout: Layout,
        states: ModelStates,
        epoch: int,
        *,
        lasting: bool = False,
    ) -> None:
        self._model = weakref.ref(model)
        self._layout, self._states = layout, states
        self._sampler = WeightSampler()
        # Tensors and attributes that forward passes write and nothing that is stored depends on.
        self._written: frozenset[str] = frozenset()
        self._found = structure.describe(model)
        try:
            self._last = self._read(self._found)
        except _UNREADABLE:  # each look says so
            self._last = WeightSample({}, {})
        self.epoch = epoch
        self._lasting = lasting
        self.unnamed: str | None = None
        # The epoch that the last look gave a state in.
        self._named: int | None = None
        self.changes: Counter[str] = Counter()

    def look(self) -> ModelState:
        """The model's present state. In a new state the model is tried out on a few tokens."""
        model = self._held()
        reason = self._uncached(model)
        if reason is not None:
            return ModelState(0, uncached=reason)
        found = structure.describe(model, self._written)
        if found.uncached is not None:
            return ModelState(0, uncached=found.uncached)
        try:
            self._take(self._read(found))
        except (*_UNREADABLE, MemoryError) as error:
            if is_out_of_memory(error):  # nothing was learnt: the next look compares as before
                return ModelState(0, uncached="out of memory while looking at the weights")
            # The present weights are not known, so no earlier epoch may be used for them.
            self.set_epoch()
            kind = type(error).__name__
            return ModelState(0, uncached=f"weights that cannot be sampled: {kind}")
        state = self._states.get(self._key(found))
        if state is None:
            self._count(found)
            state = self._try_out(model)
        self._found, self._named = found, self.epoch
        return state

    def set_epoch(self) -> None:
        """Gives the weights a number that nothing had before."""
        self.epoch, self._lasting = self._states.number(), False

    def changed_meanwhile(self, state: ModelState) -> str | None:
        """What has changed since the last look, which returned this state; None for nothing."""
        model = self._held()
        found = structure.describe(model, self._written)
        reason = self._uncached(model) or found.uncached
        if reason is not None:
            return reason
        try:
            changed = self._last.changed(self._read(found))
        except (*_UNREADABLE, MemoryError):
            return "weights"
        if changed:
            return changed[0]
        same = self._states.get(self._key(found)) is state
        return None if same else "the model or torch's settings"

    def has_weights_of(self, model: Any) -> bool:
        """Whether another model has the same weights now, and this one since its last look."""
        mine = structure.describe(self._held(), self._written)
        try:
            self._take(self._read(mine))
        except _UNREADABLE:
            return False
        return same_weights(mine.tensors, structure.describe(model, self._written).tensors)

    def _key(self, found: Structure) -> tuple[Hashable, ...]:
        """The description of a state, the epoch first."""
        return (self.epoch, self._written, found.key(), torch_settings.current())

    def _name(self, key: tuple[Hashable, ...], number: int) -> str:
        self.unnamed = None
        if self._lasting:
            try:
                name = stable_name(key[1:])  # without the epoch
            except Unnamed as error:
                self.unnamed = f"{error}: {error.remedy}"
                self.changes[f"unnamed: {error}"] += 1
            else:
                if self._states.claim(name, key):
                    return name
        return f"{self._states.process}{number}"

    def _held(self) -> Any:
        model = self._model()
        assert model is not None, "a watch is asked only by those who hold its model"
        return model

    def _uncached(self, model: Any) -> str | None:
        return "adapters" if has_peft_adapters(model) else torch_settings.uncached_reason(model)

    def _read(self, found: Structure) -> WeightSample:
        watched = {n: t for n, t in found.tensors.items() if n not in self._written}
        return self._sampler.read(watched, found.replaced)

    def _take(self, sample: WeightSample) -> None:
        if self._last.changed(sample):
            self.changes["weights"] += 1
            self.set_epoch()
        self._last = sample

    def _count(self, found: Structure) -> None:
        """Counts what makes this state a new one, unless it is the weights or the first."""
        differing = next(differences(self._found, found), None)
        if differing is not None:
            self.changes[differing] += 1
        elif self._named == self.epoch:
            self.changes["torch's settings"] += 1

    def _try_out(self, model: Any) -> ModelState:
        """Tries the model out in a new state, and remembers what was found."""
        trial = try_out(model, self._layout, self._sampler)
        if trial.written is None:
            return ModelState(0, uncached=trial.uncached)
        if trial.written != self._written:
            # What was not watched may have been edited, and what was read may have been written.
            lasting = self._lasting and self._named is None
            self._written = trial.written
            self.set_epoch()
            self._lasting = lasting
        found = structure.describe(model, self._written)
        self._last = self._read(found)
        key, number = self._key(found), self._states.number()
        state = ModelState(number, trial.continues, trial.uncached, self._name(key, number))
        if trial.uncached != NO_MEMORY:  # there may be memory next time
            self._states.put(key, state)
        return state
