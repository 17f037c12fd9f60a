"""Steps of an engine, and stores of what they complete."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol, TypeVar, final

from hybrid_pages._stubs.blocks import PrefixKeys, StoreEntries, TableColumns
from hybrid_pages._stubs.cache import Cache, Hints
from hybrid_pages._stubs.geometry import Geometry

class _Tracked(Protocol):
    @property
    def run(self) -> Run: ...

_Outcome = TypeVar("_Outcome")
_Request = TypeVar("_Request", bound=_Tracked)

@final
class Run:
    """Follows the steps of one request: the blocks they fill and the states they leave behind.

    A run begins when the engine schedules a request after the tokens that caches gave it, and ends
    when the request ends or is preempted. A `request` has `request_id`, `num_prompt_tokens`,
    `num_tokens`, `num_computed_tokens` and a list of `block_hashes`, as vLLM's has.
    """

    def __new__(cls, request: object, keys: PrefixKeys, namespace: int) -> Run: ...
    namespace: int
    """The number of the request's namespace, from `Cache.namespace`."""
    hints: Hints | None
    stores: bool
    """Whether the request's entries are to be stored."""
    stale: bool
    """Whether the run goes on from bytes that may be wrong; then nothing of it is published."""
    steered: bool
    """Whether `begins` of :meth:`Stores.step` is called before every step of the run."""
    offered_blocks: int
    """Leading blocks whose pages were offered to the cache."""
    @property
    def position(self) -> int | None:
        """Tokens after the last step planned in this run; None before the first."""

    @property
    def quiet_until(self) -> int:
        """Steps that go on from `position` and end before this many tokens complete nothing, unless
        the engine hands something over in them; 0 if every step is looked at."""

    @property
    def wanted(self) -> list[int]:
        """Boundaries that get a checkpoint, if there is a state."""

    @property
    def passed_over(self) -> list[int]:
        """Boundaries of the answer whose states were there, were not wanted, and are not stored."""

    def want(self, boundaries: Iterable[int]) -> None:
        """Add boundaries that get a checkpoint."""

    def want_tails(self, tokens: Iterable[int]) -> None:
        """Add numbers of tokens of the request: a step that ends at one of them leaves a tail."""

    def take_back(self, first: int) -> None:
        """Note that tokens from block `first` on were taken back: their pages are written anew."""

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
        take: Callable[..., Sequence[object]],
        known: Callable[..., int] | None = None,
        exports_states: bool = False,
        drops_last_block: bool = False,
        drafts: bool = False,
        narrow: bool = False,
        tails: Literal["never", "handed_over", "in_steps", "copied"] = "never",
    ) -> RunRules:
        """block_tokens: tokens of a block, which has `stride` hashes.

        groups: for each recurrent group, the index of its block table and how many engine blocks a
        block has there; the last one has the state. carries(block, hash, table, tokens): whether
        the engine knows a block by a hash. processed(request): how many of its tokens are certainly
        computed. pin(pool, blocks) keeps blocks from being given to others, take(pool, count) gives
        free ones that nobody else gets, and unpin(pool, blocks) lets go of both. known(request):
        how many keys it has, if its hashes don't say that.

        exports_states: kernels hand over a prefill's last state from inside its last step, which
        begins, with `drops_last_block`, a block earlier. drafts: the last tokens of a step may be
        drafts. narrow: some window is narrower than a block. tails: where states inside blocks are
        stored: where a run wants one and the engine hands it over; also where requests end, and
        after the steps for which a run wants one. "copied": stores outlast their step, so that the
        state after a step is copied to blocks that are taken. With drafts, or a window that is
        narrower than a block, never.

        Raises InvalidArgumentError for blocks without tokens, for hashes that do not divide a
        block, and for an unknown mode.
        """

@final
class Stores:
    """Plans stores of what steps complete, and publishes what every rank has copied.

    `engine` stands for the engine's objects in every call: `tables(request_id)` gives block tables,
    `pool.blocks` is a list of all blocks, `tail_key(tracked, tokens)` gives the key of a tail, or
    None for a request that has none, `can_spare(blocks)` says whether the engine can do without so
    many free blocks until a store has ended, and `skipped(reason, entries)`,
    `skipped_tail(reason)`, `not_planned(tracked, error)`, `not_copied(outcome, first)`,
    `not_published(job, error)` and `not_in_flight(job)` are told what happened.
    `read_keys(tracked)` is called if the rules have a `known`. An error of one request or job is
    told in this way; any other is raised.
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
        """writes: whether anything is stored. Runs are followed in any case."""

    def __len__(self, /) -> int:
        """Jobs in flight."""

    def __contains__(self, job: int, /) -> bool:
        """Whether a job is in flight."""

    def step(
        self,
        engine: object,
        requests: dict[str, _Request],
        scheduled: dict[str, int],
        state: object,
        *,
        begins: Callable[[_Request, int, int], None],
        planned: Callable[[_Request], None] | None = None,
    ) -> dict[int, StoreEntries]:
        """Plan stores of what a step completes. Returns the entries to copy, by job.

        requests: those that are followed, by id. scheduled: tokens of the step by request. state:
        has `boundary_state_offloads`, the states that the engine hands over by request, each as its
        group, block and tokens, and `req_ids`, the requests that have blocks. begins is called
        before a step of a request that doesn't just go on, with its first token and how many there
        are, and planned with each request that gets a job.
        """

    def report(self, engine: object, tracked: _Request) -> tuple[int, StoreEntries] | None:
        """Plan a store of what accepted drafts have completed. Returns the job, if there is one."""

    def finish(
        self, engine: object, tracked: _Request, tables: Sequence[Sequence[object]]
    ) -> tuple[int, StoreEntries] | None:
        """Plan a store of what is left of a request that has ended with these block tables."""

    def void(self, wrong: Callable[..., bool]) -> None:
        """Publish nothing of the jobs in flight for which `wrong(request_id, blocks)` is true."""

    def drop_jobs(self, engine: object, jobs: Sequence[int]) -> None:
        """Give up jobs that were sent to no worker."""

    def ended(self, engine: object, outcomes: dict[int, list[_Outcome]], trusted: bool) -> None:
        """Take the ranks' outcomes, by job. If `trusted`, publish what all ranks have copied.

        A job keeps its slots and blocks until every rank has reported once. If an outcome makes no
        sense, nothing of its job is published. An outcome whose `rank` cannot be read counts as
        that of one missing rank.

        An outcome has `rank`, `error`, `nbytes`, `seconds` and `checksums`: eight bytes per entry,
        in the machine's byte order, or none.
        """

    def take_copied(self) -> tuple[int, float]:
        """Bytes that were published since the last call, and the seconds that copies of them took,
        summed over ranks."""
