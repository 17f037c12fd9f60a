"""Steps of an engine, and stores of what they complete."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol, TypeVar, final

from hybrid_pages._stubs.cache import Cache, Hints, PrefixKeys, StoreEntries, TableColumns
from hybrid_pages._stubs.geometry import Geometry

class _Tracked(Protocol):
    quiet_from: int
    quiet_until: int
    @property
    def run(self) -> Run: ...

_Outcome = TypeVar("_Outcome")
_Request = TypeVar("_Request", bound=_Tracked)

@final
class Run:
    """What the steps of one request fill, and which states they leave behind.

    A run begins where the engine schedules a request behind what it has from caches, and ends when
    the request ends or is preempted. A `request` has `request_id`, `num_prompt_tokens`,
    `num_tokens`, `num_computed_tokens` and a list of `block_hashes`, as vLLM's has.
    """

    def __new__(cls, request: object, keys: PrefixKeys, namespace: int) -> Run: ...
    namespace: int
    """Of a cache, as `Cache.namespace` gave it."""
    hints: Hints | None
    stores: bool
    """Whether its request wants to be stored."""
    stale: bool
    """Whether it goes on from bytes that may be wrong: none of it is published."""
    steered: bool
    """Whether it has to be told of each step before that is planned."""
    offered_blocks: int
    """Leading blocks whose pages were offered to the cache."""
    position: int | None
    """Tokens after the last step planned in this run; None before the first."""
    def want(self, boundaries: Iterable[int]) -> None:
        """Add boundaries that get a checkpoint."""

    def take_back(self, first: int) -> None:
        """Tokens from the block `first` on were taken back: their pages will be written again."""

    def restart(self) -> None:
        """Forget what the request had computed: the engine has freed its blocks."""

@final
class RunRules:
    """How an engine cuts prompts into blocks and steps, and which states are wanted."""

    def __new__(
        cls,
        block_tokens: int,
        stride: int,
        groups: Sequence[tuple[int, int]],
        mode: Literal["none", "adaptive", "align", "all"],
        *,
        carries: Callable[..., bool],
        processed: Callable[..., int],
        pin: Callable[..., None],
        unpin: Callable[..., None],
        known: Callable[..., int] | None = None,
        exports_states: bool = False,
        drops_last_block: bool = False,
        drafts: bool = False,
        narrow: bool = False,
    ) -> RunRules:
        """block_tokens: tokens of a block, which has `stride` hashes.

        groups: of each recurrent group, its block table and that table's columns of a block, of
        which the last one has the state. carries(block, hash, table, tokens): whether the engine
        knows a block by a hash. processed(request): its tokens that are computed for certain.
        pin(pool, blocks) keeps blocks from being given to others, and unpin(pool, blocks) lets go
        of them. known(request): how many keys it has, if its hashes don't say that.

        exports_states: kernels hand over a prefill's last state from inside its last step, which
        begins, with `drops_last_block`, a block earlier. drafts: the last tokens of a step may be
        drafts. narrow: some window is narrower than a block.

        Raises InvalidArgumentError for blocks without tokens or hashes, and for another mode.
        """

@final
class Stores:
    """Plans stores of what steps complete, and publishes what every rank has copied.

    `engine` stands for the engine's objects in every call: `tables(request_id)` gives block tables,
    `bound_pool.blocks` is a list of all blocks, and `skipped(reason, entries)`,
    `not_planned(tracked, error)`, `not_copied(outcome, first)` and `not_published(job, error)` take
    notes. `read_keys(tracked)` is called where `known` says how many keys there are. What goes
    wrong with one request or job is noted; anything else is raised.
    """

    def __new__(
        cls,
        geometry: Geometry,
        cache: Cache,
        columns: TableColumns,
        rules: RunRules,
        *,
        writes: bool = True,
    ) -> Stores:
        """writes: whether anything is stored; if not, runs are followed all the same."""

    def __len__(self, /) -> int:
        """Jobs in flight."""

    def step(
        self,
        engine: object,
        begins: Callable[[_Request, int, int], None],
        requests: dict[str, _Request],
        scheduled: dict[str, int],
        offered: dict[str, list[tuple[int, int, int]]],
    ) -> list[tuple[_Request, int, StoreEntries]]:
        """Plan what a step completes: jobs, each with its request, its number and its entries.

        requests: those that are followed, by id. scheduled: tokens of the step by request. offered:
        states that the engine hands over by request, each as its group, block and tokens. begins
        is called before a step of a request that doesn't just go on, with its first token and how
        many there are. Steps of a request that go on one behind the other from `quiet_from` tokens,
        and end before `quiet_until`, need not be told, but then
        `Run.position` has to be set before any other call with the request.
        """

    def report(
        self, engine: object, tracked: _Request
    ) -> tuple[_Request, int, StoreEntries] | None:
        """Plan what accepted drafts have completed."""

    def finish(
        self, engine: object, tracked: _Request, tables: Sequence[Sequence[object]]
    ) -> tuple[_Request, int, StoreEntries] | None:
        """Plan what is left of a request that has ended with these block tables."""

    def void(self, wrong: Callable[..., bool]) -> None:
        """Publish nothing of the jobs in flight for which `wrong(request_id, blocks)` is true."""

    def drop_jobs(self, engine: object, jobs: Sequence[int]) -> None:
        """Give up jobs that no worker was told of."""

    def ended(
        self, engine: object, outcomes: dict[int, list[_Outcome]], trusted: bool
    ) -> tuple[list[int], int, float]:
        """Take ranks' outcomes by job, and publish, if `trusted`, what all of them have copied.

        An outcome has `rank`, `error`, `nbytes`, `seconds` and `checksums`: eight bytes of each
        entry, in the machine's order, or none. Returns the jobs that are not in flight, and
        bytes and seconds of what was published.
        """
