"""Where the halves of a connector run: on one machine, and sometimes in one process."""

import weakref
from functools import cache
from pathlib import Path
from typing import Protocol

from hybrid_pages.vllm.config.support import UnsupportedError
from hybrid_pages.vllm.messages import StepMetadata, WorkerMetadata


@cache
def boot_id() -> str:
    """Names this machine until it boots again; empty if the system names none.

    Source: ``/proc/sys/kernel/random/boot_id``, see ``proc(5)``. Containers of a machine share it.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def require_machine(what: str, expected: str, found: str) -> None:
    """Rejects two processes on different machines.

    Raises:
        UnsupportedError: with both boot ids.
    """
    if expected != found:
        raise UnsupportedError(
            f"{what}: expected scheduler and workers on one machine, whose memory they share, "
            f"found boot ids {expected or 'unknown'} and {found or 'unknown'}: place the engine on "
            "one machine (with Ray: one node that has a GPU per rank)"
        )


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
