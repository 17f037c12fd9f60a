"""A request as the scheduler half follows it, from its arrival to its end."""

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from hybrid_pages import ReadLease

if TYPE_CHECKING:
    from vllm.v1.request import Request


class Lookup(NamedTuple):
    """What the last lookup of a request found, in tokens."""

    local: int
    """vLLM's own prefix hit."""
    restorable: int
    """Depth of the joint hit."""
    paged: int
    """Depth to which attention pages are there, with or without a state to resume from."""


@dataclass
class Tracked:
    """One request."""

    request: "Request"
    namespace: int
    stored_blocks: int = 0
    """Leading blocks already offered to the cache."""
    lease: ReadLease | None = None
    """Held from the lookup until vLLM allocates blocks for it, or the next lookup."""
    lookup: Lookup | None = None
    """The last lookup, until it is counted."""
    wanted: set[int] = field(default_factory=set)
    """Boundaries, in blocks, that get a checkpoint if a step ends there."""
    stops: set[int] = field(default_factory=set)
    """Those of them at which the engine is asked to end a step."""
    arrival: float = 0.0
    """When it came, on the monotonic clock, if requests are recorded."""
    refused: bool = False
    """A load of this request failed: from then on it is computed."""

    def drop_lease(self) -> None:
        """Lets go of what the last lookup held."""
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.release()


def namespace_identity(request: "Request") -> bytes:
    """What a request's bytes depend on beyond its block hashes.

    vLLM's hashes cover tokens, salt, images and the adapter's name; an adapter of the same name
    with another id or path is another adapter.
    """
    lora = request.lora_request
    if lora is None:
        return b""
    return json.dumps([lora.lora_name, lora.lora_int_id, lora.lora_path]).encode()
