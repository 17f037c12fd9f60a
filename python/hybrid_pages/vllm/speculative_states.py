"""States of engines that speculate: a step's last tokens may be drafts.

vLLM counts drafts as computed until they are rejected, so the end of a step proves nothing unless
all its tokens are known. In an answer the worker copies the state of a boundary to the boundary's
own column when the accepted tokens reach it, after sampling. So a state is taken when the report of
that step has come: the next step's allocation frees the column. The scratch columns behind the
running one are never looked at.

Facts: ``vllm/v1/worker/mamba_utils.py``, ``postprocess_mamba_fused_kernel``.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hybrid_pages.vllm import versions
from hybrid_pages.vllm.grid import Tables
from hybrid_pages.vllm.states import Offer, State, States
from hybrid_pages.vllm.tracking import Late, Tracked

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool


class SpeculativeStates(States):
    """Finds states behind tokens that are accepted, and no others."""

    def advance(self, tracked: Tracked, start: int, end: int) -> int:
        """Notes a step of a request over the tokens [start, end), some of which may be drafts."""
        known = tracked.request.num_tokens
        if tracked.position is None:
            tracked.prefilled = start + 1
        elif start < tracked.position:
            tracked.ends.clear()
        tracked.position = min(end, known)
        if start < known - 1:
            tracked.prefilled = tracked.position
        if self._ends_at_boundary(tracked, end):
            tracked.ends.add(end // self.grid.block_tokens)
        return tracked.position

    def due(self, tracked: Tracked, end: int, offers: Sequence[Offer], *, may_want: bool) -> bool:
        """As in the base class, for a state that may be wanted or not."""
        found = bool(offers) or self._ends_at_boundary(tracked, end)
        return bool(self.groups) and (found or self._next(tracked) <= end)

    def quiet_until(self, tracked: Tracked, end: int) -> int:
        """0: each step says which of its tokens are known."""
        return 0

    def overwritten(self, tracked: Tracked, start: int, end: int) -> bool:
        """As in the base class.

        Kernels export a state from inside every step of a prompt, into the block that the worker
        has before the last one. vLLM reserves one only in the last step. In another one that ends
        two blocks further, the worker still has the one scratch block there, which the scheduler
        has just made the block of the running state. In the first step of a run the worker has no
        scratch block yet. (``MambaManager._needs_internal_checkpoint``)
        """
        n, request = self.grid.overwritten, tracked.request
        prefill_end = max(request.num_prompt_tokens, request.num_tokens - 1)
        if not n or tracked.position is None or end >= prefill_end:
            return False
        return (end - 1) // n - (start - 1) // n == 2

    def find(
        self,
        tracked: Tracked,
        start: int,
        end: int,
        tables: Tables,
        offers: Sequence[Offer],
        pool: "BlockPool",
    ) -> list[State]:
        """As in the base class. If the step may reach a boundary, notes the column that its state
        will be in: should it be the last step of the request, vLLM frees the column before it tells
        of the end."""
        boundary = self._next(tracked) // self.grid.block_tokens
        if boundary * self.grid.block_tokens <= end:
            tracked.late = Late(boundary, self._here(tables, boundary))
        return super().find(tracked, start, end, tables, offers, pool)

    def _next(self, tracked: Tracked) -> int:
        """The first boundary, in tokens, that is not certainly computed."""
        n = self.grid.block_tokens
        return (versions.processed(tracked.request) // n + 1) * n

    def reports_from(self, tracked: Tracked) -> int:
        """How many tokens have to be accepted, at least, to complete something, if nothing is left
        of those that are; 0 if that may be with any."""
        boundary = versions.processed(tracked.request) // self.grid.block_tokens
        return 0 if boundary > self.keys.known(tracked.request) else self._next(tracked)

    def reached(self, tracked: Tracked) -> int:
        """The boundary, in blocks, that the accepted tokens of an answer have newly reached; 0 if
        none.

        Until ``prefilled`` steps compute several known tokens: they pass boundaries without leaving
        a state, or leave another one in the column.
        """
        boundary = versions.processed(tracked.request) // self.grid.block_tokens
        new = boundary > tracked.reached and self.groups and tracked.position is not None
        in_answer = boundary * self.grid.block_tokens >= tracked.prefilled
        return boundary if new and in_answer else 0

    def final(self, tracked: Tracked) -> int | None:
        """Tokens of an ended request whose pages are filled; None if its blocks prove nothing."""
        request, end = tracked.request, tracked.position
        if end is None or request.num_computed_tokens < end:
            return None  # preempted meanwhile, or tokens were taken back
        return max(end, min(versions.processed(request), request.num_tokens))

    def find_late(self, tracked: Tracked, tables: Tables, pool: "BlockPool") -> State | None:
        """The state of the boundary that accepted tokens have newly reached, if any."""
        boundary = self.reached(tracked)
        if not boundary or boundary > self.keys.known(tracked.request):
            return None
        tracked.reached = boundary
        late, tracked.late = tracked.late, None
        here = self._here(tables, boundary)
        if late is not None and late.boundary == boundary:
            for group, block in late.blocks.items():
                # A column that was freed may be another request's, unless it carries its hash.
                if not here[group] and self._carries(pool, group, block, tracked.request, boundary):
                    here[group] = block
        return self._state(boundary, {}, here, tracked.request, pool)

    def _proven(self, tracked: Tracked, boundary: int, start: int, end: int) -> bool:
        if boundary > self.keys.known(tracked.request):
            return False  # the next report makes it known
        tokens = boundary * self.grid.block_tokens
        accepted = tracked.prefilled <= tokens <= versions.processed(tracked.request)
        return accepted or super()._proven(tracked, boundary, start, end)

    def _columns(self, tracked: Tracked, end: int, tables: Tables) -> dict[int, Mapping[int, int]]:
        boundary = end // self.grid.block_tokens
        known = boundary <= self.keys.known(tracked.request)
        if not boundary or not known or not self._ends_at_boundary(tracked, end):
            return {}
        tracked.reached = max(tracked.reached, boundary)
        return {boundary: self._here(tables, boundary)}

    def _ends_at_boundary(self, tracked: Tracked, end: int) -> bool:
        """Whether a step ends on a boundary and none of its tokens is a draft."""
        return end % self.grid.block_tokens == 0 and end <= tracked.request.num_tokens
