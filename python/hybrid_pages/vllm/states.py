"""Finds the state block that holds the state of exactly one boundary, and proves it.

The engine overwrites a state block as its request goes on, so a block's index in the table proves
nothing. Two things prove a boundary: a step of this run ended there, or the step runs past it and
the kernels export it. The block is then the one in the table where the step ended, or one that vLLM
hands over and that still carries the boundary's hash: hand-overs also name blocks that were freed,
and given to others, meanwhile.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hybrid_pages import Geometry
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.grid import Tables
from hybrid_pages.vllm.keys import Keys
from hybrid_pages.vllm.tracking import Late, Tracked

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.request import Request

_NOTHING: dict[int, Any] = {}

Offer = tuple[int, int, int]
"""(vLLM's group, block, tokens): a state that vLLM hands over."""


class State(NamedTuple):
    """The state of one boundary."""

    boundary: int
    """In blocks."""
    blocks: Mapping[int, int]
    """The state block of each recurrent group; a group is left out if its block is not known."""
    kept: Callable[[], bool]
    """Whether vLLM keeps it itself, under its hash, in this step."""


class States:
    """Follows the steps of requests and finds the states that they leave behind."""

    def __init__(self, geometry: Geometry, keys: Keys) -> None:
        self.keys, self.grid = keys, keys.grid
        self.groups = [
            group for item in geometry.classes if item.kind == "recurrent" for group in item.groups
        ]
        places = [self.grid.groups[group] for group in self.groups]
        self._places = [
            (group, place.table, place.per_block)
            for group, place in zip(self.groups, places, strict=True)
        ]
        """Of each recurrent group: table, and columns of a block, whose last one has the state."""
        self._of_table = {table: group for group, table, _ in self._places}

    def advance(self, tracked: Tracked, start: int, end: int) -> int:
        """Notes a step of a request over the tokens [start, end); how many are filled then."""
        n = self.grid.block_tokens
        if start != tracked.position:
            tracked.ends.clear()
            tracked.late = None
        tracked.position = end
        if end > start and end % n == 0:
            tracked.ends.add(end // n)
        return end

    def due(self, tracked: Tracked, end: int, offers: Sequence[Offer], *, may_want: bool) -> bool:
        """Whether :meth:`find` may find something that is wanted; after most steps there is
        nothing. ``may_want``: whether a state at ``end`` may be wanted."""
        at_boundary = may_want and end % self.grid.block_tokens == 0
        return bool(self.groups) and (at_boundary or bool(offers) or tracked.late is not None)

    def quiet_until(self, tracked: Tracked, end: int) -> int:
        """Where a request that has nothing left to store after ``end`` tokens may have again, if
        it is only decoding until there; 0 if that may be at once."""
        boundary = end // self.grid.block_tokens
        if boundary > self.keys.known(tracked.request):
            return 0  # its key is still to come
        return (boundary + 1) * self.grid.block_tokens

    def overwritten(self, tracked: Tracked, start: int, end: int) -> bool:
        """Whether vLLM itself leaves a wrong state behind this step, with which the request goes
        on."""
        return False

    def find(
        self,
        tracked: Tracked,
        start: int,
        end: int,
        tables: Tables,
        offers: Sequence[Offer],
        pool: "BlockPool",
    ) -> list[State]:
        """The proven states of this step, which are whole once its forward pass is over."""
        request = tracked.request
        columns = self._columns(tracked, end, tables)
        offered = self._handed_over(offers, columns, request, pool) if offers else _NOTHING
        boundaries = sorted({*offered, *columns}) if offered else columns
        return [
            self._state(
                boundary,
                offered.get(boundary, _NOTHING),
                columns.get(boundary, _NOTHING),
                request,
                pool,
            )
            for boundary in boundaries
            if self._proven(tracked, boundary, start, end)
        ]

    def _handed_over(
        self,
        offers: Iterable[Offer],
        columns: Mapping[int, Mapping[int, int]],
        request: "Request",
        pool: "BlockPool",
    ) -> dict[int, dict[int, int]]:
        """What vLLM hands over and still has under its hash: the block by boundary and group.
        Without those that ``columns`` have: they prove no more."""
        found: dict[int, dict[int, int]] = {}
        for table, block, tokens in offers:
            boundary, rest = divmod(tokens, self.grid.block_tokens)
            group = self._of_table.get(table)
            if group is None or rest or columns.get(boundary, _NOTHING).get(group) == block:
                continue
            if self._carries(pool, group, block, request, boundary):
                found.setdefault(boundary, {})[group] = block
        return found

    def final(self, tracked: Tracked) -> int | None:
        """Tokens of an ended request whose pages are filled; None if its blocks prove nothing."""
        end = tracked.position
        if end is None or end != tracked.request.num_computed_tokens:
            return None  # preempted meanwhile, or tokens were taken back
        return end

    def find_late(self, tracked: Tracked, tables: Tables, pool: "BlockPool") -> State | None:
        """The state of a request that has ended before the key of its last boundary was known."""
        late, tracked.late = tracked.late, None
        if (
            late is None
            or late.boundary > self.keys.known(tracked.request)
            or not self._holds(tables, late)
        ):
            return None
        return self._state(late.boundary, {}, late.blocks, tracked.request, pool)

    def _proven(self, tracked: Tracked, boundary: int, start: int, end: int) -> bool:
        """Whether the step over the tokens [start, end), or an earlier one, made a state there."""
        if boundary in tracked.ends:
            return True
        n = self.grid.block_tokens
        furthest = n * (2 if self.grid.drops_last_block else 1)
        tokens = boundary * n
        return self.grid.exports_states and start + n <= tokens < end <= tokens + furthest

    def _columns(self, tracked: Tracked, end: int, tables: Tables) -> dict[int, Mapping[int, int]]:
        """Blocks by boundary and group where steps ended: the last step, and an earlier one whose
        boundary had no key then."""
        columns: dict[int, Mapping[int, int]] = {}
        known, late = self.keys.known(tracked.request), tracked.late
        if late is not None:
            if not self._holds(tables, late):
                tracked.late = None
            elif late.boundary <= known:
                columns[late.boundary], tracked.late = late.blocks, None
        boundary, rest = divmod(end, self.grid.block_tokens)
        if boundary and not rest:
            here = self._here(tables, boundary)
            if boundary <= known:
                columns[boundary] = here
            else:
                tracked.late = Late(boundary, here)
        return columns

    def _state(
        self,
        boundary: int,
        offered: Mapping[int, int],
        here: Mapping[int, int],
        request: "Request",
        pool: "BlockPool",
    ) -> State:
        blocks = {}
        for group in self.groups:
            ours = here.get(group, 0)
            block = offered.get(group, ours)
            if block and (not ours or ours == block):  # two different blocks prove nothing
                blocks[group] = block

        def kept() -> bool:
            return bool(blocks) and all(
                group in offered or self._carries(pool, group, block, request, boundary)
                for group, block in blocks.items()
            )

        return State(boundary, blocks, kept)

    def _carries(
        self, pool: "BlockPool", group: int, block: int, request: "Request", boundary: int
    ) -> bool:
        """Whether vLLM still knows a block as the state of a request's boundary."""
        index = boundary * self.grid.stride - 1
        if not 0 <= index < len(request.block_hashes):
            return False
        tokens, table = boundary * self.grid.block_tokens, self.grid.groups[group].table
        return versions.carries(pool.blocks[block], request.block_hashes[index], table, tokens)

    def _here(self, tables: Tables, boundary: int) -> dict[int, int]:
        """The blocks that the tables have where the state of a boundary belongs, by group; 0 is
        none."""
        found = {}
        for group, table, per_block in self._places:
            blocks, column = tables[table], boundary * per_block - 1
            block = blocks[column] if column < len(blocks) else 0
            found[group] = block if isinstance(block, int) else block.block_id
        return found

    def _holds(self, tables: Tables, late: Late) -> bool:
        """Whether a request still has the blocks where it had reached a boundary."""
        return 0 not in late.blocks.values() and self._here(tables, late.boundary) == late.blocks
