"""Follows the engine's steps: finds what is unusual, and plans stores of what they complete."""

from typing import TYPE_CHECKING

from hybrid_pages._core import StoreEntries
from hybrid_pages.vllm.scheduler.connection import Connection
from hybrid_pages.vllm.scheduler.requests.tracked import Tracked
from hybrid_pages.vllm.scheduler.stale.epochs import Epochs
from hybrid_pages.vllm.scheduler.stale.invalid import InvalidBlocks

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


class Steps:
    """Follows requests from step to step.

    Args:
        connection: cache, stores and loads.
        requests: those that have not ended, by id.
        epochs: told what each run goes on from.
        invalid: told when a run goes on from what another connector has loaded.
    """

    def __init__(
        self,
        connection: Connection,
        requests: dict[str, Tracked],
        epochs: Epochs,
        invalid: InvalidBlocks,
    ) -> None:
        self.connection, self.requests = connection, requests
        self.epochs, self.invalid, self.grid = epochs, invalid, connection.grid
        self._drafted = True
        """Whether the worker runs the draft layers in this step, if there are any."""

    def stores(self, output: "SchedulerOutput") -> dict[int, StoreEntries]:
        """The stores of everything that a step completes, by job."""
        state = output.kv_connector_block_state
        if state is None:
            return {}
        connection, scheduled = self.connection, output.num_scheduled_tokens
        if self.grid.drafter_tokens is not None:
            self._drafted = self._is_drafted(scheduled, self.grid.drafter_tokens)
        stores = connection.stores
        return stores.core.step(
            stores,
            self.requests,
            scheduled,
            state,
            begins=self.begins,
            planned=connection.stored,
        )

    def _is_drafted(self, scheduled: dict[str, int], longest: int) -> bool:
        """Whether the worker runs draft layers in a step. It leaves them out for all requests if
        one request is too long for them."""
        return all(
            tracked.request.num_computed_tokens + new_tokens <= longest
            for request_id, new_tokens in scheduled.items()
            if (tracked := self.requests.get(request_id)) is not None
        )

    def begins(self, tracked: Tracked, start: int, new_tokens: int) -> None:
        """Called for a step that does not just go on from the one before: a run begins, tokens were
        taken back, the step may have to end at a stop, or some of its tokens may be drafts."""
        connection, position = self.connection, tracked.run.position
        if position is None:
            self._scheduled(tracked, start)
        elif start < position or (self.grid.drafts and connection.keys.changed(tracked)):
            self._taken_back(tracked, start)
        if self.grid.drafts and new_tokens:
            lost = position is not None and self._is_overwritten(tracked, start, start + new_tokens)
            if lost or not self._drafted:
                self.epochs.distrust(tracked, start // self.grid.hash_tokens)
        if tracked.stops or tracked.ends:
            connection.checkpoints.stepped(tracked, start + new_tokens)

    def _is_overwritten(self, tracked: Tracked, start: int, end: int) -> bool:
        """Whether vLLM itself leaves a wrong state after this step, with which the request goes on.

        Kernels export a state from inside every step of a prompt, into the block that the worker
        has before the last one. vLLM reserves that block only in the last step. In a step before it
        that ends two blocks further, the worker still has the one scratch block there, which the
        scheduler has just made the block of the running state. In the first step of a run the
        worker has no scratch block yet. (``MambaManager._needs_internal_checkpoint``)
        """
        n, request = self.grid.overwritten, tracked.request
        prefill_end = max(request.num_prompt_tokens, request.num_tokens - 1)
        if not n or end >= prefill_end:
            return False
        return (end - 1) // n - (start - 1) // n == 2

    def _scheduled(self, tracked: Tracked, start: int) -> None:
        """Called when a run of a request begins after ``start`` tokens."""
        if self.connection.loads.scheduled(tracked, start):
            self.invalid.expect()
        if tracked.reads_cache is not None:
            tracked.request.skip_reading_prefix_cache = not tracked.reads_cache
            tracked.reads_cache = None
        tracked.began.add(start)
        local_tokens = start - tracked.loaded
        tracked.prompt_tokens = tracked.request.num_prompt_tokens
        if self.grid.lookahead:
            # It is unknown what came after vLLM's own blocks when draft layers computed them.
            tracked.run.offered_blocks = -(-local_tokens // self.grid.block_tokens)
        keys = -(-local_tokens * self.grid.stride // self.grid.block_tokens)
        hit = tracked.request.block_hashes[: max(0, keys)]
        self.epochs.scheduled(tracked, hit, self.requests.values())
        if self.connection.events is not None:
            self.connection.events.begins(tracked)

    def _taken_back(self, tracked: Tracked, start: int) -> None:
        """Called when tokens from ``start`` on were taken back: a session that streams its input
        goes on with others. Their pages are written again, but a state that includes them stays
        wrong, and so does what a draft layer has computed from the first of them."""
        tracked.prompt_tokens = tracked.request.num_prompt_tokens
        tracked.keys.clear()
        first = max(start - self.grid.lookahead, 0) // self.grid.block_tokens
        tracked.run.take_back(first)
        if self.connection.checkpoints.recurrent or self.grid.lookahead:
            self.epochs.distrust(tracked, first * self.grid.stride)

    def reported(self) -> None:
        """Called when a step is reported: plans stores of what accepted drafts have completed."""
        connection = self.connection
        for tracked in self.requests.values():
            try:
                planned = connection.stores.reported(tracked)
            except Exception as error:
                connection.stores.not_planned(tracked, error)
            else:
                if planned and connection.events is not None:
                    connection.events.note(tracked)
