"""The data of a request in the scheduler half, from its arrival to its end."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from hybrid_pages import ReadLease, Restore
from hybrid_pages._core import PrefixKeys, Run
from hybrid_pages.vllm.scheduler.requests.check import CheckRequest
from hybrid_pages.vllm.scheduler.requests.hints import NOTHING, RequestHints

if TYPE_CHECKING:
    from vllm.v1.request import Request


class Lookup(NamedTuple):
    """The result of a request's last lookup, in tokens."""

    local: int
    """The whole blocks of vLLM's own prefix hit."""
    hit: int
    """The length of vLLM's own prefix hit, which may end inside a block."""
    restorable: int
    """The joint hit of the host, which can be loaded now."""
    paged: int
    """How far the attention pages exist, with or without a state to resume from."""
    missing: str | None = None
    """Why the joint hit is shorter than the pages; None if it is not."""
    held: int = 0
    """How far vLLM's own pages reach, if they are deeper than its joint hit; 0 if not."""


class Place(NamedTuple):
    """A place to resume from: a boundary, or inside a block where a tail ends."""

    tokens: int
    whole: int
    """How many whole blocks it has."""
    tail: bytes | None = None
    """The key of the tail behind them."""

    @property
    def blocks(self) -> int:
        """How many blocks it has for the cache, which counts a tail as one."""
        return self.whole + (self.tail is not None)

    def after(self, blocks: int, block_tokens: int) -> "Place":
        """The place after so many of its blocks."""
        return self if blocks == self.blocks else Place(blocks * block_tokens, blocks)


class Reload(NamedTuple):
    """The LoRA of a request, which will be loaded again in place when the request is scheduled."""

    generation: int
    files: tuple[object, ...] | None
    """Marks of the LoRA's files, which change when the files are written again."""


@dataclass(slots=True)
class Tracked:
    """One request.

    A *run* begins when the engine schedules the request after the tokens that caches gave it, and
    ends when the request ends or is preempted.
    """

    run: Run
    """The core's record of the blocks that steps fill and the states that they leave."""
    request: "Request"
    keys: PrefixKeys
    """The keys that were read: see :mod:`hybrid_pages.vllm.scheduler.requests.keys`."""
    lease: ReadLease | None = None
    """The lease of the last lookup, held until vLLM allocates blocks or looks up again."""
    restore: Restore | None = None
    """The restore from tiers below, from the lookup until vLLM allocates blocks."""
    place: Place | None = None
    """Where the lease or the restore lets the request resume; kept until it is looked up again."""
    answer: int = 0
    """The deepest boundary of the prompt, in tokens, that lies in an earlier answer and whose state
    was not kept. 0 for none."""
    lookup: Lookup | None = None
    """The last lookup, until the request is scheduled."""
    counted: bool = False
    """Whether a lookup of the request was counted. A preempted request is looked up again."""
    stops: set[int] = field(default_factory=set)
    """Boundaries, in blocks, at which the engine is asked to end a step."""
    ends: set[int] = field(default_factory=set)
    """Tokens of the request, most inside blocks, after which the engine is asked to end a step."""
    hints: RequestHints = NOTHING
    check: CheckRequest | None = None
    """What ``hybrid-pages verify --url`` asks for, if the request is one of its own."""
    arrival: float = 0.0
    """When the request arrived, on the monotonic clock, if requests are recorded."""
    known: int = 0
    """How many blocks of the prompt were known when its prefix was first looked up."""
    skips_loads: bool = False
    """Whether nothing is loaded, since a load of the request failed or the engine only stores."""
    waits_until: float = math.inf
    """When to stop waiting for a tier below, on the monotonic clock. Infinite before the wait;
    minus infinite after one that took too long."""
    waits: bool = False
    """Whether the last lookup told the engine to ask again."""
    depths: Sequence[tuple[str, int]] | None = None
    """The joint hits in tokens, by tier, when the request began to wait for tiers below. Kept until
    it is scheduled."""
    asks_until: float = math.inf
    """When to stop waiting for a tier that has asked its store, on the monotonic clock. Infinite
    before the wait; minus infinite after it, until the request is scheduled."""
    comes_until: float = math.inf
    """When to stop waiting for stores under way, on the monotonic clock. Infinite before the wait;
    minus infinite after it, until the request is scheduled."""
    awaits: int = 0
    """How many of its tokens there will be when these stores have ended; 0 if it does not wait."""
    not_worth: tuple[int, int, int] | None = None
    """The last lookup that did not read tiers below because computing is faster: the tokens that
    the engine had, the joint hit, and that of the host."""
    offered: bool = False
    """Whether the last lookup offered a load or a tail in the pool that vLLM has not admitted."""
    left_out: bool = False
    """Whether the last lookup offered no load because parked requests leave no room for it."""
    refused: bool = False
    """Whether no load is offered before the request is scheduled, since vLLM cannot admit it."""
    pages: int = 0
    """With how many tokens of vLLM's own pages, without a state, the request was to begin when vLLM
    looked it up last; 0 if it was to begin with vLLM's joint hit."""
    engine_tail: Place | None = None
    """Where the tail in vLLM's pool ends with which the request is to begin; None if it is to begin
    with whole blocks."""
    joint_only: bool = False
    """Whether the request begins with vLLM's joint hit, since nothing could be loaded behind
    deeper pages."""
    waits_for: int | None = None
    """The last of the loads that have to make room for the request's own, see
    :class:`~hybrid_pages.vllm.scheduler.loads.parked.Parked`."""
    loaded: int = 0
    """How many tokens this run has from the cache."""
    prompt_tokens: int = 0
    """How many tokens the prompt has. It grows if the request streams its input."""
    wrong_from: int = 0
    """The first block of a stale run that may have wrong bytes."""
    spoiled: bool = False
    """Whether the request has gone on from blocks that another connector could not load."""
    others: int = 0
    """How many tokens another connector has promised, until their loads have ended."""
    reads_cache: bool | None = None
    """Whether the request asked to read caches, if it is kept from that now."""
    reload: Reload | None = None
    engine_fork: int = 0
    """The fork that vLLM itself found, in tokens; it may lie inside a block."""
    fork: int = 0
    """Where the prompt leaves an earlier one inside a block, in tokens; 0 if it is not known."""
    shared: set[int] = field(default_factory=set)
    """Where tails end that the request leaves for other prompts, in tokens."""
    tails: dict[int, bytes] = field(default_factory=dict)
    """The keys of the tails that were offered to the cache, by where they end, in tokens."""
    began: set[int] = field(default_factory=set)
    """Where the request's runs began, in tokens."""
    left_at: int = 0
    """After how many tokens the next prompt is expected to leave this one; 0 if it is not known."""
    drops: bool = False
    """Whether the next prompt is expected to go on from there, and not from the answer."""
    prompt_ends: set[int] = field(default_factory=set)
    """At how many tokens states are made at the end of its prompt, if only the request's own answer
    is expected to go on from there."""

    @classmethod
    def of(cls, request: "Request", namespace: int, keys: PrefixKeys) -> "Tracked":
        """A new request."""
        return cls(Run(request, keys, namespace), request, keys)

    @property
    def stale(self) -> bool:
        """Whether this run is stale: nothing of it is published any more.

        It goes on from bytes that a reset has outdated, or that are not of its tokens any more.
        """
        return self.run.stale

    def steer(self, stops: set[int]) -> None:
        """Adds boundaries, in blocks, that get a checkpoint and end a step of the engine."""
        if stops:
            self.stops |= stops
            self.run.want(stops)
            self.run.steered = True

    def steer_inside(self, ends: set[int]) -> None:
        """Adds numbers of tokens, inside blocks, that end a step of the engine and get a state."""
        if ends:
            self.ends |= ends
            self.run.want_tails(ends)
            self.run.steered = True

    def end_step(self, tokens: int) -> None:
        """Adds a number of tokens that ends a step of the engine and gets no state by that."""
        self.ends.add(tokens)
        self.run.steered = True

    def restart(self) -> None:
        """Forgets the request's blocks, which the engine has freed."""
        self.run.restart()
        self.loaded = 0
        self.spoiled = False

    def drop_lease(self) -> None:
        """Releases the lease of the last lookup."""
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.release()

    def drop_restore(self) -> None:
        """Ends the restore from tiers below."""
        restore, self.restore = self.restore, None
        if restore is not None:
            restore.end()


def namespace_identity(request: "Request", generation: int = 0) -> bytes:
    """Everything that a request's bytes depend on besides its block hashes.

    vLLM's hashes cover tokens, salt, images and the name of the LoRA. A LoRA of the same name with
    another id or path is another one, and so is one that was loaded again in place.

    Args:
        request: vLLM's request.
        generation: how often its LoRA was loaded again.
    """
    lora = request.lora_request
    if lora is None:
        return b""
    names = [lora.lora_name, lora.lora_int_id, lora.lora_path]
    return json.dumps([*names, generation] if generation else names).encode()
