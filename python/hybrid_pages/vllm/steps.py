"""Steps of the engine: what is unusual about one, and the stores of what it completes."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hybrid_pages.vllm.connection import Connection
from hybrid_pages.vllm.epochs import Epochs
from hybrid_pages.vllm.invalid import InvalidBlocks
from hybrid_pages.vllm.messages import StoreJob
from hybrid_pages.vllm.tracking import Tracked

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import KVConnectorBlockState, SchedulerOutput


class Steps:
    """Follows requests from step to step.

    Args:
        half: cache, stores and loads.
        requests: those that have not ended, by id.
        epochs: told what each run goes on from.
        invalid: told when a run goes on from what another connector has loaded.
    """

    def __init__(
        self,
        half: Connection,
        requests: dict[str, Tracked],
        epochs: Epochs,
        invalid: InvalidBlocks,
    ) -> None:
        self.half, self.requests, self.epochs, self.invalid = half, requests, epochs, invalid
        self.grid = half.grid
        self._drafted = True
        """Whether this step computes its draft layers, if there are any."""

    def stores(self, output: "SchedulerOutput") -> list[StoreJob]:
        """The stores of everything that a step completes."""
        half, state = self.half, output.kv_connector_block_state
        if state is None:
            return []
        requests, offers, scheduled = self.requests, state.boundary_state_offloads, dict[str, int]()
        for request_id, new_tokens in output.num_scheduled_tokens.items():
            tracked = requests.get(request_id)
            if tracked is None:
                continue
            start = tracked.request.num_computed_tokens
            end, goes_on = start + new_tokens, start == tracked.quiet_from
            if end < tracked.quiet_until and goes_on and request_id not in offers:
                tracked.quiet_from = end
            else:
                tracked.wake()
                scheduled[request_id] = new_tokens
        if not (scheduled or offers):
            return []
        if self.grid.drafter_tokens is not None:
            self._drafted = self._is_drafted(scheduled, self.grid.drafter_tokens)
        handed_over = dict(_present(state, scheduled)) if offers else {}
        for request_id in handed_over:
            if (tracked := requests.get(request_id)) is not None:
                tracked.wake()
        planned = half.stores.core.step(half.stores, self._begins, requests, scheduled, handed_over)
        if half.events is not None:
            for tracked, _, _ in planned:
                half.events.note(tracked)
        return [StoreJob(job, entries) for _, job, entries in planned]

    def _is_drafted(self, scheduled: dict[str, int], longest: int) -> bool:
        """The worker leaves the draft layers out of a step, for all of its requests, if one of them
        is too long for them."""
        return all(
            tracked.request.num_computed_tokens + new_tokens <= longest
            for request_id, new_tokens in scheduled.items()
            if (tracked := self.requests.get(request_id)) is not None
        )

    def _begins(self, tracked: Tracked, start: int, new_tokens: int) -> None:
        """A step of a request does not just go on from the one before: a run begins, tokens were
        taken back, it may have to end at a stop, or some of its tokens may be drafts."""
        half, position = self.half, tracked.run.position
        if position is None:
            self._scheduled(tracked, start)
        elif start < position or (self.grid.drafts and half.keys.changed(tracked)):
            self._taken_back(tracked, start)
        if self.grid.drafts and new_tokens:
            lost = position is not None and self._is_overwritten(tracked, start, start + new_tokens)
            if lost or not self._drafted:
                self.epochs.distrust(tracked, start // self.grid.hash_tokens)
        if tracked.stops:
            half.checkpoints.stepped(tracked, start + new_tokens)

    def _is_overwritten(self, tracked: Tracked, start: int, end: int) -> bool:
        """Whether vLLM itself leaves a wrong state behind this step, with which the request goes
        on.

        Kernels export a state from inside every step of a prompt, into the block that the worker
        has before the last one. vLLM reserves one only in the last step. In another one that ends
        two blocks further, the worker still has the one scratch block there, which the scheduler
        has just made the block of the running state. In the first step of a run the worker has no
        scratch block yet. (``MambaManager._needs_internal_checkpoint``)
        """
        n, request = self.grid.overwritten, tracked.request
        prefill_end = max(request.num_prompt_tokens, request.num_tokens - 1)
        if not n or end >= prefill_end:
            return False
        return (end - 1) // n - (start - 1) // n == 2

    def _scheduled(self, tracked: Tracked, start: int) -> None:
        """A run of a request begins, behind ``start`` tokens."""
        if self.half.loads.scheduled(tracked, start):
            self.invalid.expect()
        if tracked.reads_cache is not None:
            tracked.request.skip_reading_prefix_cache = not tracked.reads_cache
            tracked.reads_cache = None
        local_tokens = start - tracked.loaded
        tracked.prompt_tokens = tracked.request.num_prompt_tokens
        if self.grid.lookahead:
            # Nobody knows what came after vLLM's own blocks when their draft layers were computed.
            tracked.run.offered_blocks = -(-local_tokens // self.grid.block_tokens)
        keys = -(-local_tokens * self.grid.stride // self.grid.block_tokens)
        hit = tracked.request.block_hashes[: max(0, keys)]
        self.epochs.scheduled(tracked, hit, self.requests.values())
        if self.half.events is not None:
            self.half.events.begins(tracked)

    def _taken_back(self, tracked: Tracked, start: int) -> None:
        """Tokens from ``start`` on were taken back: a session that streams its input goes on with
        others. Their pages are written again, but a state that includes them stays wrong, and so
        does what a draft layer has computed from the first of them."""
        tracked.prompt_tokens = tracked.request.num_prompt_tokens
        tracked.keys.clear()
        first = max(start - self.grid.lookahead, 0) // self.grid.block_tokens
        tracked.run.take_back(first)
        if self.half.checkpoints.recurrent or self.grid.lookahead:
            self.epochs.distrust(tracked, first * self.grid.stride)

    def reported(self) -> None:
        """The report of a step has come: plans stores of what accepted drafts have completed."""
        half = self.half
        for tracked in self.requests.values():
            try:
                planned = half.stores.reported(tracked)
            except Exception as error:
                half.stores.not_planned(tracked, error)
            else:
                if planned and half.events is not None:
                    half.events.note(tracked)


def _present(
    state: "KVConnectorBlockState", scheduled: dict[str, int]
) -> "Iterator[tuple[str, list[tuple[int, int, int]]]]":
    """What is handed over of requests that have blocks."""
    for request_id, offered in state.boundary_state_offloads.items():
        if request_id in scheduled or request_id in state.req_ids:
            yield request_id, offered
