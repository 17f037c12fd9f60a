"""Identifies the machine of a process: the arena is memory of one machine."""

from functools import cache
from pathlib import Path

from hybrid_pages.vllm.support import UnsupportedError


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
