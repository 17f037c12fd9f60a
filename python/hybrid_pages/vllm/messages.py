"""Messages between the scheduler half and the worker halves; all of them pickle."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from hybrid_pages._core import StoreEntries

LoadEntry = tuple[int, list[int], list[int | None], list[int]]
"""(class index, arena slots, engine block ids in the order of the class's groups, the checksum of
each rank's shard, or none). Nothing is loaded into a block that is None."""

LoadEntryOfRank = tuple[int, list[int], list[int | None], int | None]
"""A :data:`LoadEntry` with the checksum of one rank's shard, None if it is not compared."""


@dataclass
class Report(KVConnectorHandshakeMetadata):
    """The geometries that a worker has read from its plan and from its tensors."""

    rank: int
    plan: str
    """The planned geometry, in canonical JSON."""
    geometry: str
    """The geometry found in the tensors, in canonical JSON."""
    machine: str
    """The boot id of the worker's machine; empty if the system names none."""
    plane: str
    """Path of this rank's plane of the arena."""
    alone: bool = False
    """Whether there is certainly no other connector beside."""
    ready: int = field(default=0, compare=False)
    """Slots, from the first on, whose memory was ready when it was handed over."""


class LoadJob(NamedTuple):
    """Entries to copy into the blocks of a waiting request: all, or one wave of them."""

    request: str
    entries: list[LoadEntry]
    rejected: str | None = None
    """Why it could not be planned: it fails, and copies nothing."""
    last: bool = True
    """Whether the request's load ends with it; vLLM hears of no wave before."""


@dataclass
class StepMetadata(KVConnectorMetadata):
    """One step's work for the workers."""

    half: str | None = None
    """Names the scheduler half that planned it; None if that has no cache."""
    stores: dict[int, StoreEntries] = field(default_factory=dict)
    """Entries to copy out of the engine and publish together, by job."""
    loads: Sequence[LoadJob] = ()
    idle: bool = False
    """No tokens run in this step, so waiting for a copy delays no request."""


class Outcome(NamedTuple):
    """The end of one rank's copies of one job."""

    rank: int
    error: str | None = None
    reason: str = ""
    nbytes: int = 0
    seconds: float = 0.0
    checksums: bytes = b""
    """Of each entry's shard, in the order of the job: eight bytes each, as :func:`packed` makes
    them; empty if there are none."""


def packed(checksums: Iterable[int]) -> bytes:
    """Checksums as an :class:`Outcome` has them."""
    return array("Q", checksums).tobytes()


@dataclass
class WorkerMetadata(KVConnectorWorkerMetadata):
    """Ended jobs of one step: stores by job, loads by request, an outcome per rank.

    A rank's report comes with its first metadata, so never after an outcome.
    """

    stores: dict[int, list[Outcome]] = field(default_factory=dict)
    loads: dict[str, list[Outcome]] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)
    ready: dict[int, int] = field(default_factory=dict)
    """Of a rank: slots, from the first on, whose memory is ready; left out while that stays."""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "WorkerMetadata":
        """Both ranks' outcomes, side by side."""
        if not isinstance(other, WorkerMetadata):
            raise TypeError(f"expected WorkerMetadata, found {type(other).__name__}")
        merged = WorkerMetadata(
            {job: list(outcomes) for job, outcomes in self.stores.items()},
            {request: list(outcomes) for request, outcomes in self.loads.items()},
            [*self.reports, *other.reports],
            self.ready | other.ready,
        )
        for job, outcomes in other.stores.items():
            merged.stores.setdefault(job, []).extend(outcomes)
        for request, outcomes in other.loads.items():
            merged.loads.setdefault(request, []).extend(outcomes)
        return merged
