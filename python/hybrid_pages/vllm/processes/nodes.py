"""Nodes: the machines, or containers of machines, over which the workers of an engine are spread.

With ``--nnodes`` each node starts its own part of the workers, by a command line of its own, and
the scheduler is on the first node. With Ray, workers may be on any machine of the cluster, and the
configuration does not tell where.
"""

import platform
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hybrid_pages import __version__ as own_version
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.config.settings import Settings, SettingsError
from hybrid_pages.vllm.config.support import UnsupportedError, reject
from hybrid_pages.vllm.messages import NodePlace

if TYPE_CHECKING:
    from vllm.config import ParallelConfig

_NOT_COMPARED = (
    "batch_copies",
    "copy_threads",
    "host_gb",
    "huge_pages",
    "kernel_below",
    "staging_mb",
)
"""The settings that may differ between nodes, since each worker uses them alone, and the budget,
whose slots are compared."""


@dataclass(frozen=True)
class Nodes:
    """The nodes of one engine core."""

    count: int = 1
    """How many there are; with Ray, the most there may be."""
    index: int = 0
    """The index of this node; 0 with Ray."""
    by_ray: bool = False

    @classmethod
    def of(cls, parallel: "ParallelConfig") -> "Nodes":
        """The nodes of an engine core with this configuration."""
        if parallel.distributed_executor_backend == "ray":
            return cls(parallel.world_size, 0, by_ray=True)
        return cls(parallel.nnodes_within_dp, parallel.node_rank_within_dp)

    @property
    def command_lines(self) -> int:
        """How many nodes are started by a command line of their own."""
        return 1 if self.by_ray else self.count

    @property
    def place(self) -> NodePlace:
        """The place of this process."""
        return NodePlace(self.index, boot_id(), platform.node())

    def is_elsewhere(self, place: NodePlace) -> bool:
        """Whether a process at a place is on another node than this one.

        Raises:
            UnsupportedError: it is on this node, and on another machine.
        """
        if place.node != self.index:
            return True
        here = boot_id()
        if place.boot == here:
            return False
        if self.by_ray:
            return True
        raise UnsupportedError(
            "expected scheduler and workers on one machine, whose memory they share, found boot "
            f"ids {here or 'unknown'} and {place.boot or 'unknown'}: place the engine on one "
            "machine, or start it on several with --nnodes or Ray"
        )


@cache
def boot_id() -> str:
    """An id of this machine until it boots again; empty if the system has none.

    Source: ``/proc/sys/kernel/random/boot_id``, see ``proc(5)``. Containers of a machine share it.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def require_nodes(nodes: Nodes, settings: Settings) -> None:
    """Rejects settings that an engine on several nodes cannot have.

    Raises:
        UnsupportedError: a tier below the host.
    """
    if nodes.command_lines > 1 and settings.lasting:
        reject([f"{settings.lasting}: {no_tiers_below(f'an engine on {nodes.count} nodes')}"])


def require_one_budget(host_gb: object, nodes: Nodes) -> None:
    """Rejects a budget that each node would choose for itself.

    Raises:
        SettingsError: it is ``"auto"``.
    """
    if host_gb == "auto" and nodes.command_lines > 1:
        raise SettingsError(
            f"host_gb: expected a number of GiB for the ranks of all {nodes.count} nodes together, "
            "found 'auto': each node would take a share of its own memory; give all of them the "
            "same number"
        )


def no_tiers_below(found: str) -> str:
    """Why there is no tier below the host on several nodes, and what to do."""
    return (
        "expected all workers on the scheduler's node, since a tier below the host reads and "
        f"writes their memory there, found {found}: leave it out, or run one engine on each node"
    )


def terms(settings: Settings) -> dict[str, str]:
    """What the scheduler half and all workers must have in common, with a name for errors."""
    compared = (each for each in asdict(settings).items() if each[0] not in _NOT_COMPARED)
    return {
        "hybrid-pages": own_version,
        "vllm": versions.installed(),
        "byte order": sys.byteorder,
        **{name: repr(value) for name, value in compared},
    }
