"""Which state a model is in, so that entries serve only the state that they were computed in.

A *state* is the weights, the model's modules and the process's settings together, and has a number
of its own in a store; entries are filed under it. Weights that were seen to change get an *epoch*
that nothing had before and nothing gets again, even if they are changed back: a look can miss an
edit, and what was missed must not come back with an old name. Settings and modules are compared
whole, so their earlier states are found again.
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import DynamicCache

from hybrid_pages.adapter.identity import short_lived
from hybrid_pages.transformers import conditions
from hybrid_pages.transformers.conditions import Structure
from hybrid_pages.transformers.flow import reaches_outputs
from hybrid_pages.transformers.identity import adapters
from hybrid_pages.transformers.layout import Layout
from hybrid_pages.transformers.memory import is_out_of_memory
from hybrid_pages.transformers.names import Unnamed, lasting_name
from hybrid_pages.transformers.passes import depends_on_pass
from hybrid_pages.transformers.probe import continues, read_layout
from hybrid_pages.transformers.rehearsal import rehearse
from hybrid_pages.transformers.support import reason_of, untested
from hybrid_pages.transformers.weights import Reading, Sampler, same_weights

_MAX_STATES = 16
_UNREADABLE = (RuntimeError, NotImplementedError, TypeError)
RANDOM = "random numbers in forward passes"
"""Why a model runs uncached: its texts would not be those of the same seed."""
_NO_MEMORY = "out of memory while trying the model out"


@dataclass(frozen=True)
class State:
    """A model that does not change.

    number: of the state, in its store. name: of the state, in what is stored. continues: whether
    the model goes on from a recurrent state when it is given several tokens. uncached: why its
    caches cannot be stored.
    """

    number: int
    continues: bool = False
    uncached: str | None = None
    name: str = ""


class Models:
    """The models that use a store, the states that they were in, and their numbers.

    lasting: whether what is stored outlives the process. Then the states of the first model, as
    long as its weights are those that it came with, have names that another process gives them,
    too, and all others names that no other process has.
    """

    def __init__(self, *, lasting: bool = False) -> None:
        self.process = short_lived() if lasting else ""
        self._first = lasting
        self._known: OrderedDict[Hashable, State] = OrderedDict()
        self._watches: weakref.WeakKeyDictionary[Any, Watch] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count(1)
        # Names that last, with the state that has each. What differs here has no name in common.
        self._names: dict[str, Hashable] = {}

    def number(self) -> int:
        """One that nothing had before."""
        return next(self._numbers)

    def get(self, key: Hashable) -> State | None:
        state = self._known.get(key)
        if state is not None:
            self._known.move_to_end(key)
        return state

    def put(self, key: Hashable, state: State) -> None:
        """Remembers a state; one that is forgotten gets another number when it comes back."""
        self._known[key] = state
        if len(self._known) > _MAX_STATES:
            self._known.popitem(last=False)

    def may_have(self, name: str, key: Hashable) -> bool:
        """Whether a state may have a name that lasts: no other state has it."""
        if name not in self._names and len(self._names) < _MAX_STATES:
            self._names[name] = key
        return self._names.get(name) == key

    def rule_out(self, state: State, reason: str) -> None:
        """Gives a known state a reason to run uncached that only a long text has shown."""
        for key, known in self._known.items():
            if known is state:
                self._known[key] = replace(state, uncached=reason)

    def knows(self, model: Any) -> bool:
        return model in self._watches

    def watch(self, model: Any, layout: Layout) -> Watch:
        """The one watch of a model; another model with all the same weights shares its epoch."""
        if model not in self._watches:
            twins = [w for w in self._watches.values() if w.has_weights_of(model)]
            epoch = twins[0].epoch if twins else self.number()
            self._watches[model] = Watch(model, layout, self, epoch, lasting=self._first)
            self._first = False
        return self._watches[model]

    def weights_changed(self) -> None:
        """New epochs for all models: any of them may share the tensors that were edited."""
        for watch in self._watches.values():
            watch.set_epoch()
            watch.changes["weights_changed()"] += 1


class Watch:
    """One model, looked at before each use.

    changes: how often something was found changed, by what. unnamed: why the last new state has no
    name that lasts, if it should have one.
    """

    def __init__(
        self, model: Any, layout: Layout, models: Models, epoch: int, *, lasting: bool = False
    ) -> None:
        self._model = weakref.ref(model)
        self._layout, self._models = layout, models
        self._sampler = Sampler()
        # Tensors and attributes that forward passes write and nothing that is stored depends on.
        self._written: frozenset[str] = frozenset()
        self._found = conditions.structure(model)
        try:
            self._last = self._read(self._found)
        except _UNREADABLE:  # each look says so
            self._last = Reading({}, {})
        self.epoch = epoch
        # Whether the weights are those of the store's identity.
        self._lasting = lasting
        self.unnamed: str | None = None
        # The epoch that the last look gave a state in.
        self._named: int | None = None
        self.changes: Counter[str] = Counter()

    def look(self) -> State:
        """The model's present state. A new one is tried out on a few tokens."""
        model = self._held()
        reason = self._uncached(model)
        if reason is not None:
            return State(0, uncached=reason)
        found = conditions.structure(model, self._written)
        if found.uncached is not None:
            return State(0, uncached=found.uncached)
        try:
            self._take(self._read(found))
        except (*_UNREADABLE, MemoryError) as error:
            if is_out_of_memory(error):  # nothing was learnt: the next look compares as before
                return State(0, uncached="out of memory while looking at the weights")
            # What it is now cannot be told, so nothing that it was is known to hold.
            self.set_epoch()
            return State(0, uncached=f"weights that cannot be sampled: {type(error).__name__}")
        key = (self.epoch, self._written, found.key(), conditions.process())
        state = self._models.get(key)
        if state is None:
            self._count(found)
            state = self._try_out(model, found)
        self._found, self._named = found, self.epoch
        return state

    def set_epoch(self) -> None:
        """Gives the weights a number that nothing had before."""
        self.epoch, self._lasting = self._models.number(), False

    def changed_meanwhile(self, state: State) -> str | None:
        """The first thing that has changed since the last look, which gave this state; or None."""
        model = self._held()
        found = conditions.structure(model, self._written)
        reason = self._uncached(model) or found.uncached
        if reason is not None:
            return reason
        try:
            changed = self._last.changed(self._read(found))
        except (*_UNREADABLE, MemoryError):
            return "weights"
        if changed:
            return changed[0]
        key = (self.epoch, self._written, found.key(), conditions.process())
        return None if self._models.get(key) is state else "the model or torch's settings"

    def has_weights_of(self, model: Any) -> bool:
        """Whether another model has the same weights now, and this one since its last look."""
        mine = conditions.structure(self._held(), self._written)
        try:
            self._take(self._read(mine))
        except _UNREADABLE:
            return False
        return same_weights(mine.tensors, conditions.structure(model, self._written).tensors)

    def _name(self, key: tuple[Hashable, ...], number: int) -> str:
        self.unnamed = None
        if self._lasting:
            try:
                name = lasting_name(key[1:])  # without the epoch
            except Unnamed as error:
                self.unnamed = f"{error}: {error.remedy}"
                self.changes[f"unnamed: {error}"] += 1
            else:
                if self._models.may_have(name, key):
                    return name
        return f"{self._models.process}{number}"

    def _held(self) -> Any:
        model = self._model()
        assert model is not None, "a watch is asked only by those who hold its model"
        return model

    def _uncached(self, model: Any) -> str | None:
        return "adapters" if adapters(model) else conditions.uncached(model)

    def _read(self, found: Structure) -> Reading:
        watched = {n: t for n, t in found.tensors.items() if n not in self._written}
        return self._sampler.read(watched, found.replaced)

    def _take(self, reading: Reading) -> None:
        if self._last.changed(reading):
            self.changes["weights"] += 1
            self.set_epoch()
        self._last = reading

    def _count(self, found: Structure) -> None:
        """Counts what makes this state a new one, unless it is the weights or the first."""
        differing = next(_differences(self._found, found), None)
        if differing is not None:
            self.changes[differing] += 1
        elif self._named == self.epoch:
            self.changes["torch's settings"] += 1

    def _try_out(self, model: Any, found: Structure) -> State:
        """Runs a model on a few tokens: are its caches as expected, and what does it write?"""
        layout, generators = self._layout, random_states(model)
        before = conditions.structure(model)
        reading = self._sampler.read(before.tensors, before.replaced)
        try:
            now = read_layout(model, layout.block_tokens, layout.geometry.identity)
            goes_on = continues(model, layout) if now.groups == layout.groups else False
        except Exception as error:  # whatever it is, `generate` may not meet it
            kind = type(error.__cause__ or error).__name__
            return State(0, uncached=f"the model fails on two tokens: {kind}")
        reason = None
        if now.groups != layout.groups:
            reason = "model changed"
        drawn = random_states(model)
        if not all(map(torch.equal, generators, drawn)):
            set_random_states(model, generators)
            reason = RANDOM
        after = conditions.structure(model)
        # What a first pass works out and keeps is no change of what was there.
        new = after.replaced - before.tensors.keys()
        tensors = reading.changed(self._sampler.read(after.tensors, after.replaced))
        tensors = [name for name in tensors if name not in new]
        attributes = list(_differences(before, after))
        written = frozenset(tensors) | frozenset(attributes)
        if attributes:
            reason = f"{attributes[0]} is written by each forward pass"
        for name in tensors:
            if name not in after.tensors or _matters(model, name):
                reason = f"{name} is written by each forward pass"
        if reason is None:
            reason = self._compare(model, goes_on)
        if reason is None and untested():
            reason = _fails(model, layout)
            set_random_states(model, generators)
        if written != self._written:
            # What was not watched may have been edited, and what was read may have been written.
            lasting = self._lasting and self._named is None
            self._written = written
            self.set_epoch()
            self._lasting = lasting
        found = conditions.structure(model, self._written)
        self._last = self._read(found)
        key = (self.epoch, self._written, found.key(), conditions.process())
        number = self._models.number()
        state = State(number, goes_on, reason, self._name(key, number))
        if reason != _NO_MEMORY:  # it may be there next time
            self._models.put(key, state)
        return state

    def _compare(self, model: Any, goes_on: bool) -> str | None:
        """Why texts would depend on where prompts are cut, told from a few longer passes."""
        generators = random_states(model)
        try:
            reason = depends_on_pass(model, continues=goes_on)
        except Exception as error:  # whatever it is, `generate` may not meet it
            failed = f"the model fails on a few tokens: {type(error).__name__}"
            reason = _NO_MEMORY if is_out_of_memory(error) else failed
        if not all(map(torch.equal, generators, random_states(model))):
            set_random_states(model, generators)
            reason = RANDOM
        return reason


def _differences(before: Structure, after: Structure) -> Iterator[str]:
    """The full names of attributes that two descriptions of a model do not agree on."""
    for name, values in after.modules.items():
        old = before.modules.get(name)
        if old == values:
            continue
        left, right = (dict(side.attributes) if side else {} for side in (old, values))
        differing = [key for key in left | right if left.get(key) != right.get(key)]
        if not differing:
            same_code = old is not None and old.code == values.code
            differing = ["modules" if same_code else "forward"]
        yield from (f"{name}.{key}" if name else str(key) for key in differing)


def _fails(model: Any, layout: Layout) -> str | None:
    """Why a model does not go on from a restored cache, under a transformers not tested."""
    try:
        rehearse(model, layout, lambda: DynamicCache(config=model.config))
    except Exception as error:
        return _NO_MEMORY if is_out_of_memory(error) else reason_of(error)
    return None


def _matters(model: Any, name: str) -> bool:
    try:
        return reaches_outputs(model, lambda: conditions.structure(model).tensors[name])
    except Exception:  # what cannot be followed may matter
        return True


def random_states(model: Any) -> list[torch.Tensor]:
    """Where torch's own generators stand that a model's passes draw from."""
    states = [torch.get_rng_state()]
    if model.device.type == "cuda":
        states.append(torch.cuda.get_rng_state(model.device))
    return states


def set_random_states(model: Any, states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1], model.device)
