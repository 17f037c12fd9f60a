"""The lab: replays recorded requests, to see what a policy, a router or a fleet would have done.

:func:`replay_traces` compares policies and budgets on a :class:`Trace`, :func:`route_trace` ways to
route its requests to several engines, and :func:`run_fleets` fleets of engines over one remote
store. The command ``hybrid-pages lab`` has the same.
"""

from hybrid_pages._core import (
    POLICIES,
    ROUTES,
    FleetRow,
    Link,
    ReplayRow,
    RouteRow,
    StoreLoad,
    Trace,
    TraceError,
    replay_traces,
    route_trace,
    run_fleets,
)

__all__ = [
    "POLICIES",
    "ROUTES",
    "FleetRow",
    "Link",
    "ReplayRow",
    "RouteRow",
    "StoreLoad",
    "Trace",
    "TraceError",
    "replay_traces",
    "route_trace",
    "run_fleets",
]
