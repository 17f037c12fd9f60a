"""A step of the engine: what it completes of each request, and the stores of that."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from hybrid_pages.vllm.connection import Connection
from hybrid_pages.vllm.epochs import Epochs
from hybrid_pages.vllm.invalid import InvalidBlocks
from hybrid_pages.vllm.log import logger
from hybrid_pages.vllm.messages import StoreJob
from hybrid_pages.vllm.states import Offer
from hybrid_pages.vllm.tracking import Tracked

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


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
        requests: Mapping[str, Tracked],
        epochs: Epochs,
        invalid: InvalidBlocks,
    ) -> None:
        self.half, self.requests, self.epochs, self.invalid = half, requests, epochs, invalid
        self.grid, self.figures = half.grid, half.figures

    def stores(self, output: "SchedulerOutput") -> list[StoreJob]:
        """The stores of everything that a step completes."""
        jobs: list[StoreJob] = []
        state = output.kv_connector_block_state
        if state is None:
            return jobs
        offers = state.boundary_state_offloads
        drafted = self.grid.drafter_tokens is None or self._drafted(output)
        for request_id, new_tokens in output.num_scheduled_tokens.items():
            tracked = self.requests.get(request_id)
            if tracked is None:
                continue
            start = tracked.request.num_computed_tokens
            end = start + new_tokens
            if end < tracked.quiet_until and start == tracked.position and request_id not in offers:
                tracked.position = end
                continue
            jobs += self._plan(tracked, new_tokens, offers.get(request_id, ()), drafted)
        for request_id, offered in offers.items():
            # A hand-over may come for a request that is not scheduled in this step.
            if request_id in output.num_scheduled_tokens or request_id not in state.req_ids:
                continue
            tracked = self.requests.get(request_id)
            # Without a position it waits, and what is handed over was loaded.
            if tracked is not None and tracked.position is not None:
                jobs += self._plan(tracked, 0, offered, drafted)
        return jobs

    def _plan(
        self, tracked: Tracked, new_tokens: int, offers: Sequence[Offer], drafted: bool
    ) -> Iterable[StoreJob]:
        """The store of what a step over so many tokens completes, if that is anything."""
        half, request = self.half, tracked.request
        start = request.num_computed_tokens
        try:
            if tracked.position is None:
                self._scheduled(tracked, start)
            elif start < tracked.position or (self.grid.drafts and half.keys.changed(tracked)):
                self._taken_back(tracked, start)
            if self.grid.drafts and new_tokens:
                lost = half.stores.states.overwritten(tracked, start, start + new_tokens)
                if lost or not drafted:
                    self.epochs.distrust(tracked, start // self.grid.hash_tokens)
            if tracked.stops:
                half.checkpoints.stepped(tracked, start + new_tokens)
            if not half.may_store:
                half.stores.states.advance(tracked, start, start + new_tokens)
                return ()
            job = half.stores.plan(tracked, new_tokens, offers, half.tables)
        except Exception:
            logger.exception("a store of request %s could not be planned", request.request_id)
            self.figures.count("failures", label="store_plan")
            return ()
        if job is None:
            return ()
        if half.events is not None:
            half.events.note(tracked)
        return (job,)

    def _drafted(self, output: "SchedulerOutput") -> bool:
        """Whether a step computes its draft layers, if there are any: the worker leaves them out
        for all of its requests if one is too long for them."""
        longest = self.grid.drafter_tokens
        return longest is None or all(
            tracked.request.num_computed_tokens + new_tokens <= longest
            for request_id, new_tokens in output.num_scheduled_tokens.items()
            if (tracked := self.requests.get(request_id)) is not None
        )

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
            tracked.offered_blocks = -(-local_tokens // self.grid.block_tokens)
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
        tracked.reports_from = 0
        first = max(start - self.grid.lookahead, 0) // self.grid.block_tokens
        tracked.offered_blocks = min(tracked.offered_blocks, first)
        if self.half.checkpoints.recurrent or self.grid.lookahead:
            self.epochs.distrust(tracked, first * self.grid.stride)

    def reported(self) -> None:
        """The report of a step has come: plans stores of what accepted drafts have completed."""
        for name, tracked in self.requests.items():
            try:
                planned = self.half.stores.reported(tracked, self.half.tables)
            except Exception:
                logger.exception("a store of request %s could not be planned", name)
                self.figures.count("failures", label="store_plan")
            else:
                if planned and self.half.events is not None:
                    self.half.events.note(tracked)
