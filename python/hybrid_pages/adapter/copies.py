"""Transfers of a copy engine, waited for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hybrid_pages._core import CudaEngine, HostEngine, LeaseEntry, TransferError


def finish(engine: HostEngine | CudaEngine, ticket: int) -> list[int]:
    """Waits for a transfer; the checksums of a store, in the order of its entries.

    Nothing else may poll the engine meanwhile.

    Raises:
        TransferError: a copy failed or, for a load, bytes are not those that were stored.
    """
    engine.wait(ticket)
    done = next(done for done in engine.poll() if done.ticket == ticket)
    if not done.ok:
        raise TransferError(done.error or "a copy failed and gave no reason")
    return done.checksums


def bulks(entries: Sequence[LeaseEntry], most: int) -> Iterator[list[LeaseEntry]]:
    """Entries in groups of one class and consecutive blocks, at most so many in each."""
    bulk: list[LeaseEntry] = []
    for entry in sorted(entries, key=lambda e: (e.class_index, e.block_index)):
        follows = bulk and (entry.class_index, entry.block_index) == (
            bulk[-1].class_index,
            bulk[-1].block_index + 1,
        )
        if bulk and not (follows and len(bulk) < most):
            yield bulk
            bulk = []
        bulk.append(entry)
    if bulk:
        yield bulk
