"""Tells whether the halves of a connector run in one process."""

import weakref
from typing import Protocol

from hybrid_pages.vllm.messages import Report, StepMetadata, WorkerMetadata


class StoresEnder(Protocol):
    """The part of a worker half that a scheduler half in the same process uses directly."""

    report: Report | None
    """This rank's geometries; None before caches are registered."""

    def end_stores(self, more: StepMetadata, *, wait: bool) -> WorkerMetadata:
        """Starts more stores, and with ``wait`` waits for all stores.

        Returns the outcomes of ended stores that were not reported yet, and those in the last
        reports, which may not have arrived. Some outcomes may therefore be returned and reported,
        too.
        """


_HERE: "weakref.WeakValueDictionary[str, StoresEnder]"
_HERE = weakref.WeakValueDictionary()


def worker_here(half: str) -> StoresEnder | None:
    """The worker half of a scheduler half, by its name; None if it is in another process."""
    return _HERE.get(half)


def note_worker(half: str, worker: StoresEnder) -> None:
    """Registers the worker half of a scheduler half."""
    _HERE[half] = worker
