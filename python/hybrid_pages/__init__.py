"""Prefix cache for hybrid models: attention pages and recurrent checkpoints outside GPU memory.

What a program needs to keep and find such a cache itself:

- :class:`Geometry` says what the bytes of one engine are made of, from :class:`Group`,
  :class:`Layer` and :class:`Segment`;
- :class:`Cache` says which prefixes are there and which slots hold them, through a
  :class:`ReadLease` or a :class:`WriteLease`;
- :class:`Arena` is the memory that the slots lie in, shared by the processes of a node;
- :class:`HostEngine` copies between an engine's memory and an arena, :class:`CudaEngine` between a
  GPU's and an arena; :mod:`hybrid_pages.cuda` finds devices, streams and layers;
- :class:`Trace` and :func:`replay_traces` say what a policy would have kept.

Users of vLLM need none of it: see :mod:`hybrid_pages.vllm`. Importing this package imports neither
torch nor vLLM.
"""

from hybrid_pages._core import (
    FORMAT_VERSION,
    POLICIES,
    ROUTES,
    Admission,
    Arena,
    ArenaError,
    ArrayView,
    BudgetError,
    Cache,
    Changes,
    Completion,
    CudaDevice,
    CudaEngine,
    CudaError,
    ForeignError,
    Geometry,
    GeometryError,
    Group,
    Hints,
    Hit,
    HostEngine,
    HybridPagesError,
    InvalidArgumentError,
    Layer,
    LayerMap,
    LeaseEntry,
    LeaseError,
    PageClass,
    ReadLease,
    Removed,
    ReplayRow,
    RouteRow,
    Segment,
    Span,
    Trace,
    TraceError,
    TransferError,
    WriteLease,
    __version__,
    checksum,
    cuda_devices,
    replay_traces,
    route_trace,
)

__all__ = [
    "FORMAT_VERSION",
    "POLICIES",
    "ROUTES",
    "Admission",
    "Arena",
    "ArenaError",
    "ArrayView",
    "BudgetError",
    "Cache",
    "Changes",
    "Completion",
    "CudaDevice",
    "CudaEngine",
    "CudaError",
    "ForeignError",
    "Geometry",
    "GeometryError",
    "Group",
    "Hints",
    "Hit",
    "HostEngine",
    "HybridPagesError",
    "InvalidArgumentError",
    "Layer",
    "LayerMap",
    "LeaseEntry",
    "LeaseError",
    "PageClass",
    "ReadLease",
    "Removed",
    "ReplayRow",
    "RouteRow",
    "Segment",
    "Span",
    "Trace",
    "TraceError",
    "TransferError",
    "WriteLease",
    "__version__",
    "checksum",
    "cuda_devices",
    "replay_traces",
    "route_trace",
]
