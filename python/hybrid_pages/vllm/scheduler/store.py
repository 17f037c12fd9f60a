"""Stores: from filled blocks to published entries.

Blocks fill, their entries are reserved, the engine's source blocks are pinned, every rank copies,
the lease commits, the pins go. A failure anywhere costs that store alone. The core does all of it,
in one call per step and one per report. Its questions to the engine go through this module.
"""

from collections.abc import Callable, Container, Iterator
from typing import TYPE_CHECKING

from hybrid_pages import Cache, Geometry
from hybrid_pages._core import StoreEntries
from hybrid_pages._core import Stores as Core
from hybrid_pages.adapter.errors import EngineError
from hybrid_pages.vllm.config.settings import CheckpointMode
from hybrid_pages.vllm.layout.grid import Tables
from hybrid_pages.vllm.messages import Outcome
from hybrid_pages.vllm.metrics import Figures
from hybrid_pages.vllm.scheduler.requests.keys import Keys
from hybrid_pages.vllm.scheduler.requests.tails import can_have_tails
from hybrid_pages.vllm.scheduler.requests.tracked import Tracked
from hybrid_pages.vllm.scheduler.requests.turns import Turns
from hybrid_pages.vllm.scheduler.spare import Spare
from hybrid_pages.vllm.versions import aborted, logger

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_utils import KVCacheBlock


def _no_tables(request_id: str) -> Tables:
    raise EngineError("expected vLLM's cache manager at start, found none")


def _ignore(error: Exception) -> None:
    """Does nothing: nobody has asked to be told."""


class StoreJobs:
    """The stores of one engine: plans them and publishes what every rank has copied.

    Args:
        geometry: the layout of entries.
        cache: where entries go.
        keys: makes the keys of prefixes.
        mode: which checkpoints are wanted.
        figures: counts what is not stored.
        spare: tells how many free blocks vLLM can do without.
        writes: whether this engine stores at all.
        in_steps: whether the stores of a step end before the next step begins.
    """

    def __init__(
        self,
        geometry: Geometry,
        cache: Cache,
        keys: Keys,
        mode: CheckpointMode,
        figures: Figures,
        spare: Spare,
        *,
        writes: bool = True,
        in_steps: bool = False,
    ) -> None:
        self.cache, self.keys, self.grid, self.figures = cache, keys, keys.grid, figures
        self._spare = spare
        known = keys.known if keys.names_next else None
        rules = self.grid.rules(geometry, mode, known, stores_in_steps=in_steps)
        self.has_tails = self.grid.wants_tails(geometry, mode)
        """Whether states inside blocks are of use to the model, and the mode wants them."""
        self.no_tails = self.grid.no_tails or "unconfirmed"
        """Why no state inside a block is stored; empty if they are. Until all ranks have reported,
        it is not known where a token lies in their pages."""
        columns = self.grid.columns(geometry)
        self.core = Core(geometry, cache, columns, rules, writes=writes)
        """Plans a store of all that a step completes of each request: pages of filled blocks, and
        states that are wanted. Nothing of a request stays reserved or pinned if its plan fails.
        """
        self.tables: Callable[[str], Tables] = _no_tables
        """Gives all blocks that vLLM holds for a request, including those not reported as computed;
        for this step only."""
        self.closed: Callable[[Exception], None] = _ignore
        """Called when a panic has closed the cache."""
        self.pool: BlockPool | None = None
        """vLLM's block pool."""
        self.unsent: dict[int, StoreEntries] = {}
        """Jobs of requests that have ended, for the next step's metadata."""
        self.turns = Turns()
        """The ends of answers."""
        self._ahead: set[int] = set()
        """Jobs that were ended before their reports arrived."""

    def __len__(self) -> int:
        """Stores whose source blocks are pinned."""
        return len(self.core)

    # ---- what to store

    def reported(self, tracked: Tracked) -> bool:
        """Plans a store of what accepted drafts have completed.

        The job goes with the next step, whose allocation frees the blocks of a window that is
        narrower than a block of ours. Returns whether there is one.
        """
        if self.keys.changed(tracked):
            return False
        return self._add(self.core.report(self, tracked))

    def finish(self, tracked: Tracked, tables: Tables) -> None:
        """Plans a store of a request's end: the last blocks, whose keys are known only now, and the
        running state, wherever it stands.

        The job goes with the next step, behind the one in flight: that one still advances the
        state, to the tokens that vLLM counts as computed.
        """
        if self.has_tails and self.grid.no_tails and tracked.run.position is not None:
            self.skipped_tail(self.grid.no_tails)
        if self.keys.changed(tracked):
            return
        planned = self.core.finish(self, tracked, tables)
        stored = planned[1] if self._add(planned) and planned is not None else None
        if self.has_tails and (stored is not None or tracked.drops):
            self._tell_policy(tracked, stored or ())
        for end, tail in tracked.tails.items():
            if end in (tracked.run.position, tracked.left_at) and not aborted(tracked.request):
                others = tracked.prompt_ends - tracked.shared
                answered = tracked.request.num_output_tokens > 1
                self.turns.ended(tail, answered=answered, others=others)

    def _tell_policy(self, tracked: Tracked, stored: StoreEntries | tuple[()]) -> None:
        """Tells the policy what becomes of the tails of an ended request: those that it has left
        for other prompts keep their worth when a prompt goes on from there, and those that its own
        end supersedes go first, if that end is stored."""
        n, end = self.grid.block_tokens, tracked.run.position or 0
        namespace, keys = tracked.run.namespace, tracked.keys
        if not can_have_tails(tracked.request):
            return
        for tokens in sorted(tracked.shared):
            if tokens % n:
                tail = self._tail_key(tracked, tokens)
                self.cache.continue_tail(namespace, keys, tail, limit=tokens // n)
        if tracked.drops:  # The next turn goes on from inside the prompt.
            end = tracked.left_at
            ends_here = not end % n or end in tracked.tails
        else:
            ends_here = not end % n or any(tokens is not None for *_, tokens in stored)
        if aborted(tracked.request) or not ends_here:
            return
        for tokens, tail in self._left_behind(tracked, end):
            self.cache.supersede(namespace, keys, tail, limit=tokens // n)

    def _left_behind(self, tracked: Tracked, end: int) -> Iterator[tuple[int, bytes]]:
        """The tails that a request's end supersedes, each with its place in tokens: the end of the
        turn before, and those of the prompts of both, if the conversation goes on from answers."""
        goes_on, n = False, self.grid.block_tokens
        prompts = set[int]()
        for tokens in sorted(tracked.began - tracked.shared):
            if tokens % n and tokens < end:
                tail = self._tail_key(tracked, tokens)
                others = self.turns.supersede(tail)
                if others is not None:
                    goes_on = True
                    prompts |= others
                    yield tokens, tail
        if goes_on:
            prompts |= tracked.prompt_ends
            tracked.prompt_ends = set()
        for own in sorted(prompts - tracked.shared):
            if own % n and own < end:
                yield own, self._tail_key(tracked, own)

    def _add(self, planned: tuple[int, StoreEntries] | None) -> bool:
        if planned is not None:
            job, entries = planned
            self.unsent[job] = entries
        return planned is not None

    # ---- what the core asks and says meanwhile

    def read_keys(self, tracked: Tracked) -> None:
        """Brings the keys of a request up to date, where they are not vLLM's own."""
        self.keys.of(tracked)

    def can_spare(self, blocks: int) -> bool:
        """Whether vLLM can do without so many free blocks until a store has ended."""
        return self._spare.has(blocks)

    def skipped(self, reason: str, entries: int) -> None:
        """Called when entries are not stored, with the reason."""
        self.figures.count("skipped_entries", entries, reason)

    def tail_key(self, tracked: Tracked, tokens: int) -> bytes | None:
        """The key of the tail that ends after ``tokens``, behind the blocks whose keys were read,
        and is offered to the cache; None for a request that has no tails."""
        reason = self.no_tails or ("" if can_have_tails(tracked.request) else "embeddings")
        if reason:
            self.skipped_tail(reason)
            return None
        if tracked.drops and tokens > tracked.request.num_prompt_tokens:
            self.skipped_tail("dropped")
            return None
        tracked.tails[tokens] = self._tail_key(tracked, tokens)
        return tracked.tails[tokens]

    def _tail_key(self, tracked: Tracked, tokens: int) -> bytes:
        blocks, rest = divmod(tokens, self.grid.block_tokens)
        return self.keys.tails(tracked, blocks, [rest])[0]

    def skipped_tail(self, reason: str) -> None:
        """Called when a request's tail is not stored, with the reason."""
        self.figures.count("skipped_tails", label=reason)

    def not_planned(self, tracked: Tracked, error: Exception) -> None:
        """Called when the store of what a step completes could not be planned."""
        if self._is_closed(error):
            return
        name = tracked.request.request_id
        logger.error("a store of request %s could not be planned", name, exc_info=error)
        self.figures.count("failures", label="store_plan")

    def not_copied(self, outcome: Outcome, first: bool) -> None:
        """Called when a rank has not copied; ``first``: whether it is the first of its job."""
        logger.warning("a store failed on rank %d: %s", outcome.rank, outcome.error)
        if first:
            self.figures.count("failures", label=outcome.reason)

    def not_in_flight(self, job: object) -> None:
        """Called when a worker has reported a job that it was not given, or had ended."""
        if isinstance(job, int) and job in self._ahead:
            self._ahead.discard(job)
            return
        logger.error("a worker reported store %r, which is not in flight", job)
        self.figures.count("failures", label="worker_metadata")

    def not_published(self, job: int, error: Exception) -> None:
        """Called when a job that every rank has copied could not be published."""
        if self._is_closed(error):
            return
        logger.error("publishing store %d failed", job, exc_info=error)
        self.figures.count("failures", label="publish")

    def _is_closed(self, error: Exception) -> bool:
        closed = self.cache.failure() is not None
        if closed:
            self.closed(error)
        return closed

    # ---- from the engine's blocks to published entries

    def void(self, requests: Container[str], blocks: Container[int] = ()) -> None:
        """Publishes nothing of the stores under way that belong to these requests or copy these
        blocks."""

        def is_wrong(request_id: str, pins: "list[KVCacheBlock]") -> bool:
            return request_id in requests or any(block.block_id in blocks for block in pins)

        self.core.void(is_wrong)

    def take_unsent(self) -> dict[int, StoreEntries]:
        """The jobs for the next step's metadata, which are sent with it."""
        taken = self.unsent.copy()
        self.unsent.clear()
        return taken

    def drop_unsent(self) -> None:
        """Drops the jobs that were not sent to the workers."""
        self.core.drop_jobs(self, list(self.take_unsent()))

    def ended(self, outcomes: dict[int, list[Outcome]], *, trusted: bool = True) -> None:
        """Takes ranks' outcomes, by job; publishes the jobs that all of them have copied.

        Args:
            outcomes: by job, of one or more ranks.
            trusted: whether all ranks have confirmed the geometry, and the connector
                has not stopped. If not, nothing is published.
        """
        self.core.ended(self, outcomes, trusted)

    def ahead_of_reports(self, outcomes: dict[int, list[Outcome]]) -> dict[int, list[Outcome]]:
        """The outcomes of one rank whose jobs are in flight. Each may be reported again."""
        self._ahead = set(outcomes)
        return {job: each for job, each in outcomes.items() if job in self.core}

    def count(self) -> None:
        """Brings what was copied and published into the figures."""
        nbytes, seconds = self.core.take_copied()
        if nbytes:
            self.figures.stored(nbytes, seconds)
