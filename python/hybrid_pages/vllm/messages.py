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
"""One entry of a load: its class index, arena slots, engine block ids in the order of the class's
groups, and the checksums of all ranks' shards, or none. Nothing is loaded into a block that is
None."""

LoadEntryOfRank = tuple[int, list[int], list[int | None], int | None]
"""A :data:`LoadEntry` with the checksum of one rank's shard; None for no comparison."""


class NodePlace(NamedTuple):
    """The place of a process of an engine."""

    node: int
    """The index of its node, as given by ``--node-rank``; 0 if there is none."""
    boot: str
    """The boot id of its machine; empty if the system has none."""
    host: str
    """The name of its machine, for errors."""

    def __str__(self) -> str:
        return f"node {self.node}, host {self.host}"


@dataclass
class Report(KVConnectorHandshakeMetadata):
    """A worker's report: its geometries, and its plane of the arena."""

    rank: int
    plan: str
    """The planned geometry, in canonical JSON."""
    geometry: str
    """The geometry found in the tensors, in canonical JSON."""
    place: NodePlace
    """The place of the worker."""
    plane: str
    """Path of this rank's plane of the arena, for processes of its node."""
    made: str
    """A name that no other plane has had or will have."""
    slots: tuple[int, int]
    """How many slots the plane has, and the bytes of a slot in the planes of all ranks."""
    terms: dict[str, str]
    """The versions and settings of the worker that all ranks must have in common."""
    alone: bool = False
    """Whether it is certain that the engine has no other connector."""
    whole_only: str | None = None
    """The first layer whose pages can only be stored whole, since it is not known where a token
    lies in them; None if there is none."""
    ready: int = field(default=0, compare=False)
    """How many slots, from 0 on, were ready when the report was made."""


class LoadJob(NamedTuple):
    """Entries to copy into the blocks of a waiting request: all, or those of one wave."""

    request: str
    entries: list[LoadEntry]
    rejected: str | None = None
    """Why the load could not be planned, so that it fails without a copy; None if it could."""
    last: bool = True
    """Whether it is the last wave of the request's load.

    vLLM hears that the load has ended when its last wave has.
    """


@dataclass
class StepMetadata(KVConnectorMetadata):
    """One step's work for the workers."""

    half: str | None = None
    """The name of the scheduler half that planned the step; None if it has no cache."""
    stores: dict[int, StoreEntries] = field(default_factory=dict)
    """Entries to copy out of the engine and publish together, by job."""
    loads: Sequence[LoadJob] = ()
    block_copies: Sequence[tuple[int, int]] = ()
    """The blocks that vLLM copies before the step, from and to."""
    idle: bool = False
    """Whether no tokens run in this step, so that waiting for a copy delays no request."""


class Outcome(NamedTuple):
    """The result of one rank's copies for one job."""

    rank: int
    error: str | None = None
    reason: str = ""
    nbytes: int = 0
    seconds: float = 0.0
    checksums: bytes = b""
    """The checksums of the entries' shards, in the order of the job, from :func:`packed`; empty if
    there are none."""


def packed(checksums: Iterable[int]) -> bytes:
    """Packs checksums for an :class:`Outcome`: eight bytes each."""
    return array("Q", checksums).tobytes()


@dataclass
class WorkerMetadata(KVConnectorWorkerMetadata):
    """Jobs that have ended since the last step: stores by job, loads by request, with an outcome
    per rank.

    A rank's report comes with its first metadata, so never after an outcome.
    """

    stores: dict[int, list[Outcome]] = field(default_factory=dict)
    loads: dict[str, list[Outcome]] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)
    ready: dict[int, int] = field(default_factory=dict)
    """How many slots, from 0 on, are ready, by rank. Only changes are sent."""
    unpinned: dict[int, int] = field(default_factory=dict)
    """How many of the ready slots could not be pinned, by rank; sent with those that are ready."""

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "WorkerMetadata":
        """The outcomes of two sets of ranks together."""
        if not isinstance(other, WorkerMetadata):
            raise TypeError(f"expected WorkerMetadata, found {type(other).__name__}")
        merged = WorkerMetadata(
            {job: list(outcomes) for job, outcomes in self.stores.items()},
            {request: list(outcomes) for request, outcomes in self.loads.items()},
            [*self.reports, *other.reports],
            self.ready | other.ready,
            self.unpinned | other.unpinned,
        )
        for job, outcomes in other.stores.items():
            merged.stores.setdefault(job, []).extend(outcomes)
        for request, outcomes in other.loads.items():
            merged.loads.setdefault(request, []).extend(outcomes)
        return merged
