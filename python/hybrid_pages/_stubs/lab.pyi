"""Traces and their replay: names of ``hybrid_pages.lab``."""

import os
from collections.abc import Callable, Sequence
from typing import final

POLICIES: tuple[str, ...]
"""Names of the policies that `Cache` and `replay_traces` take."""

ROUTES: tuple[str, ...]
"""Names of the routing strategies that `route_trace` takes."""

@final
class Trace:
    """A recorded sequence of requests, each with the hashes of its full blocks."""

    @staticmethod
    def open(
        path: str | os.PathLike[str],
        *,
        block_tokens: int | None = None,
        skip_bad: bool = False,
        sessions: str = "given",
    ) -> Trace:
        """Read a trace of JSON lines, plain or compressed by gzip or zstd.

        There are two formats. That of Mooncake's traces (https://github.com/kvcache-ai/Mooncake)
        has an object per request with `timestamp` in ms, `input_length` and `output_length` in
        tokens, and `hash_ids`, one per block. A recording of hybrid-pages has these objects after a
        first line {"format": "hybrid-pages-trace", "version": 1, "block_tokens": N}.

        block_tokens: tokens per block; by default those of the recording, or 512.
        skip_bad: count broken lines, instead of rejecting the trace at the first one.
        sessions: the session ids that policies see. "given": those of the rows; "ignore": none;
        "derive": a request continues the session whose last prompt is the longest that its own
        prompt begins with, or begins a session; "returning": derived ids, but only of sessions with
        several requests.

        A row may have hints: `session`, `priority`, `retain` in seconds and `store`, see
        :class:`Hints`.

        Raises TraceError with the file, the line and the reason; InvalidArgumentError for a block
        size out of range and unknown `sessions`.
        """

    @property
    def block_tokens(self) -> int: ...
    @property
    def requests(self) -> int: ...
    @property
    def input_tokens(self) -> int:
        """The tokens of all prompts together."""

    @property
    def distinct_blocks(self) -> int:
        """How many different full blocks there are.

        The *dense footprint*, a page and a checkpoint for each of them, is (1 + ratio) times that.
        """

    @property
    def skipped(self) -> int:
        """How many broken lines were left out."""

@final
class Link:
    """The speed of the network to a remote store, and of an engine that computes instead."""

    def __new__(
        cls,
        *,
        latency: float,
        bandwidth: float,
        page_bytes: int,
        checkpoint_bytes: int,
        tokens_per_second: float,
    ) -> Link:
        """latency: seconds to the first byte. bandwidth: bytes per second that one engine gets.
        page_bytes: the size of the page of one block. checkpoint_bytes: the size of a checkpoint.
        tokens_per_second: how many prompt tokens an engine computes in a second.

        Raises InvalidArgumentError for a number out of range.
        """

    @property
    def latency(self) -> float: ...
    @property
    def bandwidth(self) -> float: ...
    @property
    def page_bytes(self) -> int: ...
    @property
    def checkpoint_bytes(self) -> int: ...
    @property
    def tokens_per_second(self) -> float: ...
    def break_even(self, block_tokens: int) -> int | None:
        """The shortest prefix, in tokens, that is faster to fetch with one checkpoint than to
        compute.

        None if the network is too slow for any prefix. Raises InvalidArgumentError for blocks of 0
        tokens.
        """

@final
class ReplayRow:
    """The result of one policy on one trace with one budget.

    The unit of sizes is a page; a checkpoint has the size `ratio`.
    """

    @property
    def trace(self) -> int:
        """The index of the trace among those given."""

    @property
    def policy(self) -> str: ...
    @property
    def ratio(self) -> int: ...
    @property
    def budget_fraction(self) -> float:
        """The budget as a share of the dense footprint."""

    @property
    def budget_units(self) -> int: ...
    @property
    def requests(self) -> int: ...
    @property
    def input_tokens(self) -> int: ...
    @property
    def hit_tokens(self) -> int:
        """Prompt tokens that requests did not compute. For `bound`, the most any could reach."""

    @property
    def hit_rate(self) -> float:
        """hit_tokens / input_tokens."""

    @property
    def written_units(self) -> int: ...
    @property
    def disk_units(self) -> int:
        """The size of the disk; 0 without one."""

    @property
    def disk_hit_tokens(self) -> int:
        """The part of `hit_tokens` that the host alone would not have found."""

    @property
    def disk_written_units(self) -> int: ...
    @property
    def disk_read_units(self) -> int: ...
    @property
    def remote_admit(self) -> str | None:
        """How a remote store was used, "auto" or "all"; None without one, and for `bound`."""

    @property
    def remote_hit_tokens(self) -> int:
        """The part of `hit_tokens` that was fetched: the host alone would not have found it."""

    @property
    def remote_slow_tokens(self) -> int:
        """Tokens that the store had beyond the host in prefixes that are slower to fetch than to
        compute: "auto" computes them, "all" fetches them at a loss."""

    @property
    def remote_up_bytes(self) -> int: ...
    @property
    def remote_down_bytes(self) -> int: ...
    @property
    def remote_saved_seconds(self) -> float:
        """Seconds of computing that fetching saved, less the seconds that fetching took."""

    @property
    def state_share(self) -> float:
        """The part of the used room that checkpoints took, on average over requests."""

    @property
    def policy_us_per_request(self) -> float:
        """Microseconds of policy time per request, the lab's own bookkeeping included."""

    @property
    def metadata_bytes(self) -> int:
        """The memory that the policy used at the end, in bytes."""

def replay_traces(
    traces: Sequence[Trace],
    policies: Sequence[str],
    *,
    ratio: int,
    fractions: Sequence[float] = (),
    units: Sequence[int] = (),
    disk: tuple[float, str] | None = None,
    remote: Link | None = None,
    done: Callable[[ReplayRow], object] | None = None,
) -> list[ReplayRow]:
    """Replay every trace with every policy and budget on all cores, without the GIL.

    policies: names of `POLICIES`, and `bound`, a proven upper bound for any policy. Budgets are
    `fractions` of the dense footprint, then `units`. Rows are ordered by trace, policy and budget,
    as given. `done` gets each one as soon as it is made, on the calling thread. If `done` or a
    signal's handler raises, the rest is given up at once.

    disk: a tier below the host, as its share of the dense footprint and the name of its policy. It
    is written when entries are published.

    remote: an unbounded store below the host. Each policy then has rows for two ways to use it:
    "auto" uploads what a second request has passed, and fetches what is faster to fetch than to
    compute; "all" uploads everything that is published, and fetches everything that is found.

    Raises InvalidArgumentError for an unknown policy, a ratio of 0, a fraction out of range, and
    for both a disk and a remote store.
    """

@final
class RouteRow:
    """The result of one routing strategy on a trace."""

    @property
    def input_tokens(self) -> int: ...
    @property
    def hit_tokens(self) -> int:
        """Prompt tokens that requests did not compute."""

    @property
    def hit_rate(self) -> float:
        """hit_tokens / input_tokens."""

    @property
    def predicted_tokens(self) -> int:
        """Prompt tokens that the router expected the chosen engines to have."""

    @property
    def imbalance(self) -> float:
        """Tokens that the busiest engine computed, over the mean of all engines."""

def route_trace(
    trace: Trace, *, route: str, engines: int, policy: str, ratio: int, fraction: float
) -> RouteRow:
    """Send the requests of a trace to several engines, each with its part of the budget.

    route: one of `ROUTES`. "round-robin" takes turns. The others choose the engine where the
    request would end first, and differ in how much they expect it to compute: "load", the whole
    prompt; "sent", what was never sent there; "events", what the engine does not announce by
    :meth:`Cache.changes`. An engine is as fast as it has to be for its part of the trace, without
    hits. fraction: the budget of all engines together, as a share of the dense footprint.

    Raises InvalidArgumentError for an unknown name or a number out of range; BudgetError if an
    engine's part cannot hold a page and a checkpoint.
    """

@final
class StoreLoad:
    """The load on a remote store: requests and bytes per second."""

    @property
    def looks(self) -> float:
        """Lookups with an old index: each lists the store and gets the tables of new packs."""

    @property
    def lists(self) -> float:
        """List requests, with at most `list_keys` keys in a reply."""

    @property
    def table_gets(self) -> float:
        """GET requests for the tables that say what is in a pack."""

    @property
    def data_gets(self) -> float: ...
    @property
    def puts(self) -> float: ...
    @property
    def table_bytes(self) -> float: ...
    @property
    def down_bytes(self) -> float:
        """Bytes of entries that were fetched, without tables."""

    @property
    def up_bytes(self) -> float: ...

@final
class FleetRow:
    """Results of a fleet of engines over one remote store, in the second half of the time."""

    @property
    def engines(self) -> int: ...
    @property
    def route(self) -> str: ...
    @property
    def admit(self) -> str | None:
        """How the engines used the store, "auto" or "all"; None for not at all."""

    @property
    def copies(self) -> float:
        """How many copies of the trace ran at once."""

    @property
    def seconds(self) -> float:
        """How many seconds the counts cover."""

    @property
    def requests(self) -> int: ...
    @property
    def input_tokens(self) -> int: ...
    @property
    def hit_tokens(self) -> int:
        """Prompt tokens that requests did not compute."""

    @property
    def hit_rate(self) -> float:
        """hit_tokens / input_tokens."""

    @property
    def remote_hit_tokens(self) -> int:
        """The part of `hit_tokens` that was fetched."""

    @property
    def remote_slow_tokens(self) -> int:
        """Tokens that the store had beyond the host in prefixes that are faster to compute."""

    @property
    def saved_seconds(self) -> float:
        """Seconds of computing that fetching saved, less the seconds that fetching took."""

    @property
    def imbalance(self) -> float:
        """Tokens that the busiest engine computed, over the mean of all, in the whole time."""

    @property
    def load(self) -> StoreLoad:
        """Requests and bytes per second, on average."""

    @property
    def most(self) -> StoreLoad:
        """The highest value of each count in any one second."""

    @property
    def packs(self) -> int:
        """The number of objects in the store at the end."""

    @property
    def entries(self) -> int:
        """Entries in the store at the end: as many as the index of every engine holds."""

    @property
    def stored_bytes(self) -> int: ...

def run_fleets(
    trace: Trace,
    fleets: Sequence[tuple[int, str, str | None]],
    *,
    link: Link,
    policy: str,
    ratio: int,
    host_units: int,
    pack_bytes: int,
    stale: int,
    overlap: int,
    list_keys: int,
    retention: int | None = None,
    share: bool = True,
    lasts: int | None = None,
    done: Callable[[int, int], object] | None = None,
) -> list[FleetRow]:
    """Run fleets of engines over one remote store each, on all cores, without the GIL.

    fleets: engines, one of `ROUTES`, and how they use the store ("auto", "all", None for not at
    all). Each fleet gets as many copies of the trace as it could just compute without a hit; with
    `share`, blocks that ten sessions of the trace pass are the same in all copies. host_units: room
    of each engine's host, in pages. stale: ms after which a lookup looks for new packs. overlap:
    each listing begins this many ms before the last one. list_keys: keys in one reply to a listing.
    retention: ms after which packs are deleted. lasts: how many ms of the trace are run. done:
    called with the number of requests that ran since the last call, and about how many run in all.

    Raises InvalidArgumentError for an unknown name or a number out of range; BudgetError if a host
    cannot hold a page and a checkpoint.
    """
