"""The errors that the package raises."""

class HybridPagesError(Exception):
    """Every error that hybrid-pages raises. Arguments of a wrong type are Python's TypeError."""

class GeometryError(HybridPagesError, ValueError):
    """A geometry that contradicts itself or the memory it is laid over."""

class InvalidArgumentError(HybridPagesError, ValueError):
    """An argument out of range or of the wrong length."""

class ForeignError(HybridPagesError):
    """Bytes that belong to another geometry, format or engine."""

class ArenaError(HybridPagesError):
    """The shared mapping could not be made, opened or used."""

class BudgetError(HybridPagesError):
    """A budget that cannot hold what was asked of it."""

class LeaseError(HybridPagesError):
    """A lease used after its end or against another cache."""

class TransferError(HybridPagesError):
    """A copy that did not happen, or whose bytes were not those that left the engine."""

class DiskError(HybridPagesError):
    """A disk's directory that cannot be used, or a copy from or to a disk that did not happen."""

class RemoteError(HybridPagesError):
    """A store that machines share and that cannot be used, or a copy from or to it that did not
    happen."""

class CudaError(TransferError):
    """No CUDA here, or a function of its driver that failed.

    call, code, name: of such a function: its name, the result's number and name; None for others.
    """

    call: str | None
    code: int | None
    name: str | None

class TraceError(HybridPagesError, ValueError):
    """A trace that can't be read, with the file and the line."""
