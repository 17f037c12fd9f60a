"""Traces and their replay: names of ``hybrid_pages.lab``."""

import os
from collections.abc import Callable, Sequence
from typing import final

POLICIES: tuple[str, ...]
"""Names of the policies that `Cache` and `replay_traces` take."""

ROUTES: tuple[str, ...]
"""Names of the ways to route that `route_trace` takes."""

@final
class Trace:
    """Requests in order of arrival, each with the hashes of its full blocks."""

    @staticmethod
    def open(
        path: str | os.PathLike[str],
        *,
        block_tokens: int | None = None,
        skip_bad: bool = False,
        sessions: str = "given",
    ) -> Trace:
        """Read JSON lines, plain, gzip or zstd.

        Two formats: that of Mooncake's traces (https://github.com/kvcache-ai/Mooncake), an object
        per request with `timestamp` in ms, `input_length` and `output_length` in tokens and
        `hash_ids`, one per block; and a recording of hybrid-pages, the same after a first line
        {"format": "hybrid-pages-trace", "version": 1, "block_tokens": N}.

        block_tokens: tokens per block; by default what a recording says, else 512.
        skip_bad: count broken lines instead of rejecting the trace for the first.
        sessions: whose ids the policies see. "given": those of the rows; "ignore": none; "derive":
        every request gets one, a request goes on in the session whose last prompt is the longest
        that its own begins with; "returning": the same, for sessions of several requests alone.

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
        """Tokens of all prompts."""

    @property
    def distinct_blocks(self) -> int:
        """Different full blocks: times (1 + ratio) they are the dense footprint."""

    @property
    def skipped(self) -> int:
        """Broken lines that were left out."""

@final
class Link:
    """The network to a remote store and an engine's speed: costs of fetching and of computing."""

    def __new__(
        cls,
        *,
        latency: float,
        bandwidth: float,
        page_bytes: int,
        checkpoint_bytes: int,
        tokens_per_second: float,
    ) -> Link:
        """latency: seconds to the first byte. bandwidth: bytes per second of one engine.
        page_bytes: of the page of one block. tokens_per_second: prompt tokens that an engine
        computes.

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
        """Least tokens of a prefix that are faster to fetch, with one checkpoint, than to compute.

        None if the network is too slow for any. Raises InvalidArgumentError for blocks of 0 tokens.
        """

@final
class ReplayRow:
    """The outcome of one policy on one trace with one budget.

    Units are sizes: a page has size 1, a checkpoint size `ratio`.
    """

    @property
    def trace(self) -> int:
        """Place of the trace among those given."""

    @property
    def policy(self) -> str: ...
    @property
    def ratio(self) -> int: ...
    @property
    def budget_fraction(self) -> float:
        """Share of the dense footprint."""

    @property
    def budget_units(self) -> int: ...
    @property
    def requests(self) -> int: ...
    @property
    def input_tokens(self) -> int: ...
    @property
    def hit_tokens(self) -> int:
        """Tokens that requests resumed over; for `bound`, what no policy can exceed."""

    @property
    def hit_rate(self) -> float:
        """hit_tokens / input_tokens."""

    @property
    def written_units(self) -> int: ...
    @property
    def disk_units(self) -> int:
        """Room of the disk; 0 without one."""

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
        """Seconds of computing that what was fetched saved, less those of fetching it."""

    @property
    def state_share(self) -> float:
        """Share of the taken room that checkpoints took, on average over requests."""

    @property
    def policy_us_per_request(self) -> float:
        """Microseconds per request, the lab's own bookkeeping included."""

    @property
    def metadata_bytes(self) -> int:
        """Memory that the policy held at the end."""

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
    `fractions` of the dense footprint, then `units`. Rows come by trace, policy and budget, as
    given; each is shown to `done` on the calling thread when it is made. If `done` or a signal's
    handler raises, the rest is given up at once.

    disk: a tier below the host, as its share of the dense footprint and the name of its policy. It
    is written when entries are published.

    remote: an unbounded store below the host. A policy has a row per way to use it and budget:
    first "auto", where what a second request has passed goes up, and what is faster to fetch than
    to compute comes down; then "all", where everything that is published goes up and everything
    that is found comes down.

    Raises InvalidArgumentError for an unknown policy, a ratio of 0, a fraction out of range, and
    for both a disk and a remote store.
    """

@final
class RouteRow:
    """The outcome of one way to route a trace's requests to engines."""

    @property
    def input_tokens(self) -> int: ...
    @property
    def hit_tokens(self) -> int:
        """Tokens that requests resumed over."""

    @property
    def hit_rate(self) -> float:
        """hit_tokens / input_tokens."""

    @property
    def predicted_tokens(self) -> int:
        """Tokens that the router took the chosen engines to have."""

    @property
    def imbalance(self) -> float:
        """Tokens that the busiest engine computed, over the mean of all engines."""

def route_trace(
    trace: Trace, *, route: str, engines: int, policy: str, ratio: int, fraction: float
) -> RouteRow:
    """Send the requests of a trace to several engines, each with its part of the budget.

    route: one of `ROUTES`. "round-robin"; else to the engine where a request would end first, which
    has this much more to compute: "load", the whole prompt; "sent", what was never sent there;
    "events", what the engine does not announce, as :meth:`Cache.changes` tells it. An engine is as
    fast as it has to be for its part of the trace, without hits. fraction: the budget of all
    engines together, as a share of the dense footprint.

    Raises InvalidArgumentError for an unknown name or a number out of range; BudgetError if an
    engine's part cannot hold a page and a checkpoint.
    """

@final
class StoreLoad:
    """Requests to a remote store and bytes, per second."""

    @property
    def looks(self) -> float:
        """Lookups that found their index old: each lists, and gets the tables of new packs."""

    @property
    def lists(self) -> float:
        """Replies with `list_keys` keys at most: a look takes several if it finds more."""

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
        """Bytes of entries that were got, without tables."""

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
        """How they used the store, "auto" or "all"; None for not at all."""

    @property
    def copies(self) -> float:
        """Copies of the trace that ran at once."""

    @property
    def seconds(self) -> float:
        """Seconds that are counted."""

    @property
    def requests(self) -> int: ...
    @property
    def input_tokens(self) -> int: ...
    @property
    def hit_tokens(self) -> int:
        """Tokens that requests resumed over."""

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
        """Seconds of computing that fetching saved, less those of fetching."""

    @property
    def imbalance(self) -> float:
        """Tokens that the busiest engine computed over their mean, all the time."""

    @property
    def load(self) -> StoreLoad:
        """Requests and bytes per second, on average."""

    @property
    def most(self) -> StoreLoad:
        """The highest count of each in any one second."""

    @property
    def packs(self) -> int:
        """Objects in the store at the end."""

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
    all). They get as many copies of the trace as they could just compute without a hit; with
    `share`, blocks that ten of its sessions pass are the same in all copies. host_units: room of
    each engine's host, in pages. stale: ms after which a lookup looks for new packs. overlap: a
    list begins so many ms before the last one. list_keys: keys in a reply to it. retention: ms
    after which packs are deleted. lasts: only so many ms of the trace. done is called with the
    requests that ran since, and about how many run in all.

    Raises InvalidArgumentError for an unknown name or a number out of range; BudgetError if a host
    cannot hold a page and a checkpoint.
    """
