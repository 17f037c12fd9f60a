"""The worker halves of this process, for the scheduler halves that live in it, too."""

import weakref
from typing import Protocol

from hybrid_pages.vllm.messages import StepMetadata, WorkerMetadata


class StoresEnder(Protocol):
    """A worker half, as a scheduler half may call it directly."""

    def end_stores(self, more: StepMetadata) -> WorkerMetadata:
        """Starts more stores and waits for all; returns the outcomes that were not reported yet."""


_HERE: "weakref.WeakValueDictionary[tuple[str | None, str], StoresEnder]"
_HERE = weakref.WeakValueDictionary()


def worker_here(engine_id: str | None, arena: str) -> StoresEnder | None:
    """The worker half that works on an engine's arena, if it lives in this process.

    Two engines may have one id, and each has an arena of its own.
    """
    return _HERE.get((engine_id, arena))


def note_worker(engine_id: str | None, arena: str, worker: StoresEnder) -> None:
    """Notes the worker half that works on an arena."""
    _HERE[engine_id, arena] = worker
