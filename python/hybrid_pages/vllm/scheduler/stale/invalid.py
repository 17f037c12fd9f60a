"""Blocks that another connector could not load, and everything that was computed from them.

A step may have gone on from such blocks before their failure is reported. vLLM forgets only a part
of the results (``Scheduler._update_requests_with_invalid_blocks``): it makes one request compute
each block again, counts it as computed for others that share it, and under asynchronous scheduling
goes on with a token of the step after. So this module follows the blocks through the requests that
hold them, including those that ended before the report.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from hybrid_pages.vllm import versions
from hybrid_pages.vllm.layout.grid import BlockGrid, Tables
from hybrid_pages.vllm.scheduler.requests.tracked import Tracked
from hybrid_pages.vllm.scheduler.stale.epochs import Epochs
from hybrid_pages.vllm.scheduler.store import StoreJobs

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool


class InvalidBlocks:
    """Follows invalid blocks, and remembers ended requests while a report may name their blocks.

    Args:
        grid: how vLLM cuts sequences into blocks and hashes.
        epochs: told which requests went on from invalid blocks.
        ahead: steps that the engine plans before it waits for the first of them.
    """

    def __init__(self, grid: BlockGrid, epochs: Epochs, ahead: int) -> None:
        self.grid, self.epochs = grid, epochs
        self._in_flight = max(ahead, versions.STEPS_IN_FLIGHT)
        self._updates: list[int] = []
        """How many updates may still report a failed load of another connector; empty for none."""
        self._ended: list[tuple[str, Tables, int]] = []
        """Blocks of requests that have ended, and how many updates are left that can name them."""
        self.waiting = False
        """Whether the next reports have to be counted, by :meth:`updated`."""

    @property
    def expected(self) -> bool:
        """Whether a load of another connector may still be reported as failed."""
        return bool(self._updates)

    def expect(self) -> None:
        """Called when a request has gone on from what another connector said it would load."""
        self._updates[:] = [self._in_flight]
        self.waiting = True

    def updated(self) -> None:
        """Called when the report of a step has come."""
        self._updates[:] = [left - 1 for left in self._updates if left > 1]
        self._ended[:] = [(name, held, left - 1) for name, held, left in self._ended if left > 1]
        self.waiting = bool(self._updates or self._ended)

    def ended(self, request_id: str, tables: Tables) -> None:
        """Called when a request ended with these blocks."""
        if self.expected:
            self._ended.append((request_id, tables, self._in_flight))

    def follow(
        self,
        blocks: Iterable[int],
        requests: Mapping[str, Tracked],
        tables: Mapping[str, Tables],
        pool: "BlockPool | None",
        stores: StoreJobs,
    ) -> None:
        """Keeps everything that was computed from invalid blocks from being published.

        Args:
            blocks: ids of the invalid blocks.
            requests: those that have not ended, by id.
            tables: the blocks of those requests.
            pool: vLLM's block pool, whose prefix cache loses the blocks.
            stores: stores under way, some of which may copy such blocks.
        """
        ended = {request_id: held for request_id, held, _ in self._ended}
        wrong, firsts = spread(blocks, {**ended, **tables}, self.grid.table_tokens)
        if pool is not None:
            versions.forget_blocks(pool, wrong)
        stores.void(firsts, wrong)
        for request_id, first in firsts.items():
            tracked = requests.get(request_id)
            if tracked is None:
                continue
            tracked.others = 0
            waits = tracked.run.position is None
            if waits and tracked.request.num_computed_tokens <= first:
                continue  # nothing was computed from them, and it computes them itself
            self.epochs.spoil(tracked, first // self.grid.hash_tokens)


def spread(
    invalid: Iterable[int], tables: Mapping[str, Tables], table_tokens: Sequence[int]
) -> tuple[set[int], dict[str, int]]:
    """Follows invalid blocks through the requests that hold them.

    Every block after an invalid one in a request was computed from it, and other requests may have
    found it in the engine's own cache, after another copy of the invalid one.

    Args:
        invalid: block ids.
        tables: block ids of requests, by group.
        table_tokens: of a block, by group.

    Returns:
        Every block that is wrong, and by request where the first one that it holds begins, in
        tokens.
    """
    wrong, holders = set(invalid), dict[str, int]()
    while True:
        before = len(wrong)
        for request_id, groups in tables.items():
            sized = list(zip(groups, table_tokens, strict=False))
            found = (i * n for ids, n in sized for i, block in enumerate(ids) if block in wrong)
            first = min(found, default=None)
            if first is not None:
                holders[request_id] = first
                wrong.update(block for ids, n in sized for block in ids[first // n :] if block)
        if len(wrong) == before:
            return wrong, holders
