"""Restores of requests that ``hybrid-pages verify --url`` sends to an engine that serves.

Each has one source. Tiers before it give up what they have of the prompt, if the source has all of
it: then the prompt can come from there alone.
"""

from typing import Any

from hybrid_pages import ReadLease
from hybrid_pages.vllm.processes.engine_cores import EngineCores
from hybrid_pages.vllm.scheduler.loads.load import Loads
from hybrid_pages.vllm.scheduler.requests.check import OWN, CheckRequest
from hybrid_pages.vllm.scheduler.requests.tracked import Tracked


def begin(loads: Loads, tracked: Tracked, check: CheckRequest) -> None:
    """Makes a request's source the only one, before the request is looked up."""
    if check.source == OWN:
        tracked.skips_loads = True
    elif check.source in _below(loads):
        left = _leave_to(loads, tracked, check.source, inside=True)
        if not left:
            _leave_to(loads, tracked, check.source, inside=False)


def drop(loads: Loads, tracked: Tracked) -> None:
    """Drops from every tier what the host has of a request's prompt, and all that hangs from it."""
    lease = _lease(loads, tracked, inside=True)
    if lease is not None:
        loads.cache.invalidate(lease)
        lease.release()


def told(loads: Loads, check: CheckRequest, cores: EngineCores) -> dict[str, Any]:
    """What the answer says of the request."""
    return {
        "source": check.source,
        "hit_tokens": dict(check.hits),
        "loaded_bytes": check.loaded_bytes * loads.ranks,
        "failed": check.failed,
        "block_tokens": loads.grid.block_tokens,
        "states": "recurrent" in loads.kinds,
        "tiers": ["host", *_below(loads)],
        "engine": cores.index,
        "engines": cores.total,
    }


def _below(loads: Loads) -> list[str]:
    return [str(tier["name"]) for tier in loads.cache.tiers()]


def _leave_to(loads: Loads, tracked: Tracked, tier: str, *, inside: bool) -> int:
    lease = _lease(loads, tracked, inside=inside)
    if lease is None:
        return 0
    left = loads.cache.leave_to(lease, tier)
    lease.release()
    return left


def _lease(loads: Loads, tracked: Tracked, *, inside: bool) -> ReadLease | None:
    """A lease on what the host has of a prompt. inside: also of a tail."""
    lookups = loads.restores.lookups
    place = lookups.look_up(tracked, 0, tracked.request.num_tokens - 1).host
    return loads.cache.acquire(
        tracked.run.namespace,
        tracked.keys,
        first=0,
        limit=place.whole,
        tail=place.tail if inside else None,
    )
