"""A copy engine between the worker half and the real one: late, deterministic, able to fail.

A job's bytes move only some polls after it was submitted, so a source block that is not kept alive
is overwritten first, and a load may end long after its request has gone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hybrid_pages import HostEngine, TransferError

Fault = Literal["submit", "before", "torn", "after"]
"""Where a job fails: when submitted, before a byte moves, halfway, or after the last byte."""


@dataclass
class Completion:
    """As the real engine's."""

    ticket: int
    ok: bool
    error: str | None
    bytes: int
    seconds: float
    checksums: list[int]


@dataclass
class Job:
    """A submitted job that has not been reported."""

    kind: str
    entries: Sequence[Any]
    due: int
    fault: Fault | None


@dataclass
class Script:
    """The fate of jobs; one script serves all ranks of an engine."""

    delay: Callable[[str], int] = lambda kind: 0
    """Polls that a job of this kind waits before its bytes move."""
    fault: Callable[[str], Fault | None] = lambda kind: None
    """How a job of this kind fails, if it does."""
    log: list[tuple[str, Sequence[Any]]] = field(default_factory=list)
    """Every job submitted: kind ("store" or "load") and entries."""
    faults: int = 0
    """Jobs that were made to fail."""

    def of(self, kind: str) -> list[Sequence[Any]]:
        """The entries of every job of a kind, in order of submission."""
        return [entries for logged, entries in self.log if logged == kind]


def random_script(
    rng: random.Random, *, longest_delay: int = 0, failing: float = 0.0, kinds: str = "store load"
) -> Script:
    """Delays up to `longest_delay` polls and, with probability `failing`, a fault of any kind."""
    faults: tuple[Fault, ...] = ("submit", "before", "torn", "after")

    def fault(kind: str) -> Fault | None:
        return rng.choice(faults) if kind in kinds and rng.random() < failing else None

    return Script(delay=lambda kind: rng.randint(0, longest_delay), fault=fault)


class Copies:
    """Stands in for HostEngine in a worker half."""

    def __init__(self, script: Script, *args: Any, **kwargs: Any) -> None:
        self._engine = HostEngine(*args, **kwargs)
        self._script = script
        self._jobs: dict[int, Job] = {}
        self._done: list[Completion] = []
        self._polls = self._tickets = 0

    def store(self, entries: Sequence[Any]) -> int:
        return self._submit("store", entries)

    def load(self, entries: Sequence[Any]) -> int:
        return self._submit("load", entries)

    def _submit(self, kind: str, entries: Sequence[Any]) -> int:
        self._script.log.append((kind, list(entries)))
        fault = self._script.fault(kind)
        self._script.faults += fault is not None
        if fault == "submit":
            raise TransferError(f"injected: the {kind} was rejected")
        self._tickets += 1
        due = self._polls + self._script.delay(kind)
        self._jobs[self._tickets] = Job(kind, list(entries), due, fault)
        return self._tickets

    def poll(self) -> list[Completion]:
        for ticket in [ticket for ticket, job in self._jobs.items() if job.due <= self._polls]:
            self._run(ticket)
        self._polls += 1
        done, self._done = self._done, []
        return done

    def wait(self, ticket: int, timeout: float | None = None) -> bool:
        if timeout is None and ticket in self._jobs:
            self._run(ticket)
        return ticket not in self._jobs

    def close(self) -> None:
        for ticket in list(self._jobs):
            self._run(ticket)
        self._engine.close()

    @property
    def in_flight(self) -> int:
        return len(self._jobs)

    def _run(self, ticket: int) -> None:
        job = self._jobs.pop(ticket)
        if job.fault == "before":
            return self._fail(ticket, job)
        entries = job.entries
        if job.fault == "torn":
            entries = entries[: len(entries) // 2]
        done = self._copy(job.kind, entries) if entries else None
        if job.fault is not None or done is None:
            return self._fail(ticket, job)
        self._done.append(
            Completion(ticket, done.ok, done.error, done.bytes, done.seconds, done.checksums)
        )

    def _copy(self, kind: str, entries: Sequence[Any]) -> Any:
        ticket = getattr(self._engine, kind)(entries)
        assert self._engine.wait(ticket, None)
        (done,) = self._engine.poll()
        return done

    def _fail(self, ticket: int, job: Job) -> None:
        error = f"injected: the {job.kind} failed ({job.fault})"
        self._done.append(Completion(ticket, False, error, 0, 0.0, []))
