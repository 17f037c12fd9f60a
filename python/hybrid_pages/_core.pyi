"""The Rust core: geometry, arena, copies, cache and lab. Every class is thread-safe.

The stubs stand by topic in `hybrid_pages/_stubs/`.
"""

from hybrid_pages._stubs.arena import (
    Arena,
)
from hybrid_pages._stubs.arrays import (
    ArrayView,
    array_marks,
)
from hybrid_pages._stubs.blocks import (
    BlockTables,
    PrefixKeys,
    StoreEntries,
    TableColumns,
    tail_key,
)
from hybrid_pages._stubs.cache import (
    Admission,
    Cache,
    Hints,
    Hit,
    LeaseEntry,
    ReadLease,
    Restore,
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
    started_cuda_devices,
)
from hybrid_pages._stubs.disk import (
    DISK_LATENCY_LIMITS_US,
    Disk,
    DiskTree,
    encrypt_key_ids,
    without_tenant_key,
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
    RemoteError,
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
    FleetRow,
    Link,
    ReplayRow,
    RouteRow,
    StoreLoad,
    Trace,
    replay_traces,
    route_trace,
    run_fleets,
)
from hybrid_pages._stubs.mooncake import (
    Mooncake,
)
from hybrid_pages._stubs.remote import (
    Remote,
)
from hybrid_pages._stubs.steps import (
    Run,
    RunRules,
    Stores,
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
    "REMOTE_FORMAT_VERSION",
    "ROUTES",
    "SEALED_DISK_FORMAT_VERSION",
    "Admission",
    "Arena",
    "ArenaError",
    "ArrayView",
    "BlockTables",
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
    "FleetRow",
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
    "Link",
    "Mooncake",
    "PageClass",
    "Pinning",
    "PrefixKeys",
    "ReadLease",
    "Remote",
    "RemoteError",
    "Removed",
    "ReplayRow",
    "Restore",
    "RouteRow",
    "Run",
    "RunRules",
    "Segment",
    "Span",
    "StoreEntries",
    "StoreLoad",
    "Stores",
    "TableColumns",
    "Trace",
    "TraceError",
    "TransferError",
    "WriteLease",
    "__version__",
    "array_marks",
    "checksum",
    "cuda_devices",
    "device_numa_node",
    "encrypt_key_ids",
    "replay_traces",
    "route_trace",
    "run_fleets",
    "started_cuda_devices",
    "tail_key",
    "without_tenant_key",
]

FORMAT_VERSION: int
DISK_FORMAT_VERSION: int
REMOTE_FORMAT_VERSION: int
SEALED_DISK_FORMAT_VERSION: int

__version__: str
