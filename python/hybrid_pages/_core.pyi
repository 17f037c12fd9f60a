"""The Rust core: geometry, arena, copies, cache and lab. Every class is thread-safe.

The stubs stand by topic in `hybrid_pages/_stubs/`.
"""

from hybrid_pages._stubs.arena import (
    Arena,
)
from hybrid_pages._stubs.arrays import (
    ArrayView,
)
from hybrid_pages._stubs.cache import (
    Admission,
    Cache,
    Hints,
    Hit,
    LeaseEntry,
    ReadLease,
    Restore,
    StoreEntries,
    TableColumns,
    WriteLease,
)
from hybrid_pages._stubs.changes import (
    Changes,
    Removed,
    Span,
)
from hybrid_pages._stubs.cuda import (
    CudaDevice,
    CudaEngine,
    Pinning,
    cuda_devices,
    device_numa_node,
)
from hybrid_pages._stubs.disk import (
    DISK_LATENCY_LIMITS_US,
    Disk,
    DiskTree,
)
from hybrid_pages._stubs.errors import (
    ArenaError,
    BudgetError,
    CudaError,
    DiskError,
    ForeignError,
    GeometryError,
    HybridPagesError,
    InvalidArgumentError,
    LeaseError,
    TraceError,
    TransferError,
)
from hybrid_pages._stubs.geometry import (
    Geometry,
    Group,
    Layer,
    PageClass,
    Segment,
)
from hybrid_pages._stubs.lab import (
    POLICIES,
    ROUTES,
    ReplayRow,
    RouteRow,
    Trace,
    replay_traces,
    route_trace,
)
from hybrid_pages._stubs.transfer import (
    Completion,
    HostEngine,
    LayerMap,
    checksum,
)

__all__ = [
    "DISK_FORMAT_VERSION",
    "DISK_LATENCY_LIMITS_US",
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
    "Disk",
    "DiskError",
    "DiskTree",
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
    "Pinning",
    "ReadLease",
    "Removed",
    "ReplayRow",
    "Restore",
    "RouteRow",
    "Segment",
    "Span",
    "StoreEntries",
    "TableColumns",
    "Trace",
    "TraceError",
    "TransferError",
    "WriteLease",
    "__version__",
    "checksum",
    "cuda_devices",
    "device_numa_node",
    "replay_traces",
    "route_trace",
]

FORMAT_VERSION: int
DISK_FORMAT_VERSION: int

__version__: str
