"""Prefix cache for hybrid models: attention pages and recurrent checkpoints outside GPU memory.

What a program needs to keep and find such a cache itself:

- :class:`Geometry` says what the bytes of one engine are made of, from :class:`Group`,
  :class:`Layer` and :class:`Segment`;
- :class:`Cache` says which prefixes are there and which slots hold them, through a
  :class:`ReadLease` or a :class:`WriteLease`;
- :class:`Arena` is the memory that the slots lie in, shared by the processes of a node;
- :class:`HostEngine` copies between an engine's memory and an arena, :class:`CudaEngine` between a
  GPU's and an arena; :mod:`hybrid_pages.cuda` finds devices, streams and layers;
- :class:`Disk` keeps entries below a cache, beyond the process; :class:`DiskTree` looks at them;
- :class:`Remote` and :class:`Mooncake` keep entries in a store that machines share.

:mod:`hybrid_pages.lab` says what a policy would have kept of recorded requests. Users of vLLM need
none of it: see :mod:`hybrid_pages.vllm`. Importing this package imports neither torch nor vLLM.
"""

from hybrid_pages._core import (
    Admission,
    Arena,
    ArenaError,
    BudgetError,
    Cache,
    Completion,
    CudaEngine,
    CudaError,
    Disk,
    DiskError,
    DiskTree,
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
    Mooncake,
    Pinning,
    ReadLease,
    Remote,
    RemoteError,
    Restore,
    Segment,
    TransferError,
    WriteLease,
    __version__,
    checksum,
)

__all__ = [
    "Admission",
    "Arena",
    "ArenaError",
    "BudgetError",
    "Cache",
    "Completion",
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
    "Mooncake",
    "Pinning",
    "ReadLease",
    "Remote",
    "RemoteError",
    "Restore",
    "Segment",
    "TransferError",
    "WriteLease",
    "__version__",
    "checksum",
]
