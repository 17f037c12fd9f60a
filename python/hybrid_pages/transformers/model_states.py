"""The states that the models of one store were in, each with a number and a name.

A *state* of a model is its weights, its modules and torch's settings together. Entries are filed
under the name of the state that they were computed in, and serve no other.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, replace

from hybrid_pages.adapter.identity import short_lived

_MAX_STATES = 16


@dataclass(frozen=True)
class ModelState:
    """One state of a model.

    number: unique in its store; 0 for a state in which the cache cannot be used. continues: whether
    the model goes on from a recurrent state when it is given several tokens. uncached: why the
    cache cannot be used, or None. name: what entries are filed under.
    """

    number: int
    continues: bool = False
    uncached: str | None = None
    name: str = ""


class ModelStates:
    """The states that models were in, by their descriptions. The last 16 are remembered.

    process: the beginning of names that no other process has; empty where nothing outlives this
    one.

    Args:
        lasting: whether what is stored outlives the process.
    """

    def __init__(self, *, lasting: bool = False) -> None:
        self.process = short_lived() if lasting else ""
        self._known: OrderedDict[Hashable, ModelState] = OrderedDict()
        self._numbers = itertools.count(1)
        # Names that another process gives, too, each with the only description that may have it.
        self._names: dict[str, Hashable] = {}

    def number(self) -> int:
        """A number that no state and no epoch had before."""
        return next(self._numbers)

    def get(self, key: Hashable) -> ModelState | None:
        """The state with this description, if it is remembered."""
        state = self._known.get(key)
        if state is not None:
            self._known.move_to_end(key)
        return state

    def put(self, key: Hashable, state: ModelState) -> None:
        """Remembers a state. A forgotten one gets another number when it comes back."""
        self._known[key] = state
        if len(self._known) > _MAX_STATES:
            self._known.popitem(last=False)

    def claim(self, name: str, key: Hashable) -> bool:
        """Gives a name to the state with this description; False if another state has it."""
        if name not in self._names and len(self._names) < _MAX_STATES:
            self._names[name] = key
        return self._names.get(name) == key

    def rule_out(self, state: ModelState, reason: str) -> None:
        """Makes a known state one that runs uncached, for a reason that only a long text shows."""
        for key, known in self._known.items():
            if known is state:
                self._known[key] = replace(state, uncached=reason)
