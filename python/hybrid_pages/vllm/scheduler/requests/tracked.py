"""A request as the scheduler half follows it, from its arrival to its end."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from hybrid_pages import ReadLease, Restore
from hybrid_pages._core import PrefixKeys, Run
from hybrid_pages.vllm.scheduler.requests.hints import NOTHING, RequestHints

if TYPE_CHECKING:
    from vllm.v1.request import Request


class Lookup(NamedTuple):
    """The result of a request's last lookup, in tokens."""

    local: int
    """vLLM's own prefix hit."""
    restorable: int
    """Depth of the joint hit of the host, which can be loaded now."""
    paged: int
    """Depth to which attention pages are there, with or without a state to resume from."""
    missing: str | None = None
    """Why pages reach deeper than the joint hit."""


class Reload(NamedTuple):
    """A request's adapter will be loaded again in place when the request is scheduled."""

    generation: int
    files: tuple[object, ...] | None
    """Marks of its files, which change when the files are written again."""


@dataclass(slots=True)
class Tracked:
    """One request.

    A *run* begins where the engine schedules the request behind what it has from caches, and ends
    when the request ends or is preempted.
    """

    run: Run
    """What its steps fill, and which states they leave behind."""
    request: "Request"
    keys: PrefixKeys
    """Those that were read: see :mod:`hybrid_pages.vllm.scheduler.requests.keys`."""
    lease: ReadLease | None = None
    """Held from the lookup until vLLM allocates blocks for it, or the next lookup."""
    restore: Restore | None = None
    """Reads tiers below for this request, from the lookup until vLLM allocates blocks for it."""
    answer: int = 0
    """Tokens up to which it sends an earlier answer again whose state there was not kept."""
    lookup: Lookup | None = None
    """The last lookup, until the request is scheduled."""
    counted: bool = False
    """Whether a lookup of this request was counted; one that was preempted is looked up again."""
    stops: set[int] = field(default_factory=set)
    """Boundaries, in blocks, at which the engine is asked to end a step."""
    hints: RequestHints = NOTHING
    arrival: float = 0.0
    """When it came, on the monotonic clock, if requests are recorded."""
    skips_loads: bool = False
    """Nothing is loaded: a load of this request failed, or this engine only stores."""
    waits_until: float = math.inf
    """When to stop waiting for a tier below, on the monotonic clock. Infinite before the wait;
    minus infinite after one that took too long."""
    waits: bool = False
    """Whether the engine was told to ask again, in its last lookup."""
    depths: Sequence[tuple[str, int]] | None = None
    """How deep the joint hit was of the host, and with each tier below, by name and in blocks, when
    it began to wait for them; until it is scheduled."""
    asks_until: float = math.inf
    """When to stop waiting for a tier that asks what there is, on the monotonic clock. Infinite
    before the wait; minus infinite after it, until the request is scheduled."""
    not_worth: tuple[int, int, int] | None = None
    """The last lookup for which tiers below were not read, as computing is faster: blocks that the
    engine had, the joint hit, and that of the host."""
    offered: bool = False
    """Whether vLLM was offered a load in its last lookup, and has not admitted it."""
    left_out: bool = False
    """Whether its load was left out of that lookup, since others have no room for it."""
    refused: bool = False
    """No load is offered until it is scheduled: vLLM can't admit it."""
    waits_for: int | None = None
    """The last of the loads that have to make room for its own, see
    :class:`~hybrid_pages.vllm.scheduler.loads.parked.Parked`."""
    loaded: int = 0
    """Tokens that this run has from the cache."""
    prompt_tokens: int = 0
    """Tokens of its prompt, which grows if it is a session that streams its input."""
    wrong_from: int = 0
    """The first block, in a run that is stale, that may hold wrong bytes."""
    spoiled: bool = False
    """It has gone on from blocks that another connector could not load."""
    others: int = 0
    """Tokens that another connector said it had, until it is known whether it could load them."""
    reads_cache: bool | None = None
    """Whether the request asked to read caches, while it is kept from reading them."""
    reload: Reload | None = None
    engine_fork: int = 0
    """The fork that vLLM itself found, in tokens; it may lie inside a block."""

    @classmethod
    def of(cls, request: "Request", namespace: int, keys: PrefixKeys) -> "Tracked":
        """A new request."""
        return cls(Run(request, keys, namespace), request, keys)

    @property
    def stale(self) -> bool:
        """This run goes on from bytes that a reset has declared old, or that are not those of its
        tokens any more: none of it is published."""
        return self.run.stale

    def steer(self, stops: set[int]) -> None:
        """Adds boundaries, in blocks, that get a checkpoint, and at which the engine is asked to
        end a step."""
        if stops:
            self.stops |= stops
            self.run.want(stops)
            self.run.steered = True

    def restart(self) -> None:
        """Forgets all that was known of the request's blocks: the engine has freed them."""
        self.run.restart()
        self.loaded = 0
        self.spoiled = False

    def drop_lease(self) -> None:
        """Releases the lease of the last lookup."""
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.release()

    def drop_restore(self) -> None:
        """Gives up what tiers below are read for."""
        restore, self.restore = self.restore, None
        if restore is not None:
            restore.end()


def namespace_identity(request: "Request", generation: int = 0) -> bytes:
    """Everything that a request's bytes depend on beyond its block hashes.

    vLLM's hashes cover tokens, salt, images and the adapter's name; an adapter of the same name
    with another id or path is another adapter, and so is one that was loaded again in place.

    Args:
        request: vLLM's request.
        generation: how often its adapter was loaded again.
    """
    lora = request.lora_request
    if lora is None:
        return b""
    names = [lora.lora_name, lora.lora_int_id, lora.lora_path]
    return json.dumps([*names, generation] if generation else names).encode()
