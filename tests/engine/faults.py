"""Faults to inject at each step of a transfer's path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from harness import Engine, patched
from hybrid_pages.vllm.messages import Outcome, WorkerMetadata


class Injected(Exception):
    """The error of an injected fault."""


def fail(*_: Any, **__: Any) -> Any:
    """Raises, whatever it is called with."""
    raise Injected("an injected fault")


class Breaking:
    """An object whose named methods raise and whose others work."""

    def __init__(self, inner: Any, *broken: str) -> None:
        self._inner, self._broken = inner, broken

    def __getattr__(self, name: str) -> Any:
        return fail if name in self._broken else getattr(self._inner, name)

    def __len__(self) -> int:
        return len(self._inner)


def _broken(owner: Callable[[Engine], Any], attribute: str, *methods: str) -> Any:
    @contextmanager
    def fault(engine: Engine) -> Iterator[None]:
        target = owner(engine)
        with patched(target, attribute, Breaking(getattr(target, attribute), *methods)):
            yield

    return fault


@contextmanager
def checksums_that_are_missing(engine: Engine) -> Iterator[None]:
    """Publishing raises after every rank has copied: a worker reports too few checksums."""
    outcome = engine.worker._outcome

    def short(done: Any, reason: str) -> Outcome:
        return outcome(done, reason)._replace(checksums=b"short")

    with patched(engine.worker, "_outcome", short):
        yield


@contextmanager
def no_tables(engine: Engine) -> Iterator[None]:
    """vLLM names no blocks."""
    with patched(engine.half.connection.stores, "tables", fail):
        yield


@contextmanager
def no_engine(engine: Engine) -> Iterator[None]:
    """A worker whose caches are not registered."""
    engine.worker.unregister()
    try:
        yield
    finally:
        engine.worker.restore()


def bad(done: Any) -> Any:
    """The completion of the same copy, had it failed."""
    return SimpleNamespace(
        ticket=done.ticket, ok=False, error="injected", bytes=0, seconds=0.0, checksums=[]
    )


@contextmanager
def copies_that_fail(engine: Engine) -> Iterator[None]:
    """Every copy ends, and ends badly."""
    poll = engine.worker._poll

    def failed() -> list[Any]:
        return [bad(done) for done in poll()]

    with patched(engine.worker, "_poll", failed):
        yield


@contextmanager
def foreign_worker_metadata(engine: Engine) -> Iterator[None]:
    """Beside the true outcomes a worker reports a store and a load that were not asked for."""
    take = engine.worker.take_metadata

    def odd() -> WorkerMetadata:
        metadata = take() or WorkerMetadata()
        metadata.stores[10**9] = [Outcome(0)]
        metadata.loads["nobody"] = [Outcome(0)]
        return metadata

    with patched(engine.worker, "take_metadata", odd):
        yield


LOOKUP = {
    "match raises": (_broken(lambda e: e.half.connection, "loads", "match"), "lookup"),
    "lookup raises": (
        _broken(lambda e: e.half.connection.loads.restores.lookups, "cache", "lookup"),
        "lookup",
    ),
    "acquire raises": (_broken(lambda e: e.half.connection.loads, "cache", "acquire"), "lookup"),
}
STORE = {
    "reading the block tables raises": (no_tables, "store_plan"),
    "pinning raises": (_broken(lambda e: e.half.connection.stores, "pool", "blocks"), "store_plan"),
    "there is no engine": (no_engine, "store_start"),
    "submitting raises": (_broken(lambda e: e.worker, "engine", "store"), "store_start"),
    "the copy fails": (copies_that_fail, "store"),
    "checksums are missing": (checksums_that_are_missing, "publish"),
    "a worker reports nonsense": (foreign_worker_metadata, "worker_metadata"),
}
LOAD = {
    "there is no engine": (no_engine, "load_start"),
    "submitting raises": (_broken(lambda e: e.worker, "engine", "load"), "load_start"),
    "the copy fails": (copies_that_fail, "load"),
}
