"""The worker halves of this process, for the scheduler halves that live in it, too."""

import weakref
from typing import Protocol

from hybrid_pages.vllm.messages import StepMetadata, WorkerMetadata


class StoresEnder(Protocol):
    """A worker half, as a scheduler half may call it directly."""

    def end_stores(self, more: StepMetadata) -> WorkerMetadata:
        """Starts more stores and waits for all.

        Returns the outcomes that were not reported yet, and those of reports that may still be on
        their way: some of them were received, others will come again.
        """


_HERE: "weakref.WeakValueDictionary[str, StoresEnder]"
_HERE = weakref.WeakValueDictionary()


def worker_here(half: str) -> StoresEnder | None:
    """The worker half that works for a scheduler half, by its name, if it lives in this process."""
    return _HERE.get(half)


def note_worker(half: str, worker: StoresEnder) -> None:
    """Notes the worker half that works for a scheduler half."""
    _HERE[half] = worker
