"""Tells whether the halves of a connector run on one machine, and in one process."""

import weakref
from functools import cache
from pathlib import Path
from typing import Protocol

from hybrid_pages.vllm.config.support import UnsupportedError
from hybrid_pages.vllm.messages import Report, StepMetadata, WorkerMetadata


@cache
def boot_id() -> str:
    """An id of this machine until it boots again; empty if the system has none.

    Source: ``/proc/sys/kernel/random/boot_id``, see ``proc(5)``. Containers of a machine share it.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def require_machine(what: str, expected: str, found: str) -> None:
    """Rejects two processes on different machines.

    Raises:
        UnsupportedError: names both boot ids.
    """
    if expected != found:
        raise UnsupportedError(
            f"{what}: expected scheduler and workers on one machine, whose memory they share, "
            f"found boot ids {expected or 'unknown'} and {found or 'unknown'}: place the engine on "
            "one machine (with Ray: one node that has a GPU per rank)"
        )


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
