"""Traces and their replay."""

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
        """Of `hit_tokens`, what the host alone would not have found."""

    @property
    def disk_written_units(self) -> int: ...
    @property
    def disk_read_units(self) -> int: ...
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
    done: Callable[[ReplayRow], object] | None = None,
) -> list[ReplayRow]:
    """Replay every trace with every policy and budget on all cores, without the GIL.

    policies: names of `POLICIES`, and `bound`, a proven upper bound for any policy. Budgets are
    `fractions` of the dense footprint, then `units`. Rows come by trace, policy and budget, as
    given; each is shown to `done` on the calling thread when it is made. If `done` or a signal's
    handler raises, the rest is given up at once.

    disk: a tier below the host, as its share of the dense footprint and the name of its policy. It
    is written when entries are published.

    Raises InvalidArgumentError for an unknown policy, a ratio of 0 or a fraction out of range.
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
