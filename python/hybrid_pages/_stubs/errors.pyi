"""The errors that the package raises."""

class HybridPagesError(Exception):
    """The base of all errors of hybrid-pages. Arguments of a wrong type raise TypeError."""

class GeometryError(HybridPagesError, ValueError):
    """A geometry contradicts itself, or does not fit the memory of the engine."""

class InvalidArgumentError(HybridPagesError, ValueError):
    """An argument is out of range or of the wrong length."""

class ForeignError(HybridPagesError):
    """Bytes or files belong to another geometry, format or program."""

class ArenaError(HybridPagesError):
    """The memory of an arena could not be made, opened or used."""

class BudgetError(HybridPagesError):
    """A budget cannot hold what was asked of it."""

class LeaseError(HybridPagesError):
    """A lease was used after its end, or with another cache."""

class TransferError(HybridPagesError):
    """A copy failed, or restored bytes differ from those that were stored."""

class DiskError(HybridPagesError):
    """The directory of a disk tier cannot be used, or a copy from or to it failed."""

class RemoteError(HybridPagesError):
    """A store that machines share cannot be used, or a copy from or to it failed."""

class CudaError(TransferError):
    """CUDA is not available, or a function of its driver failed.

    call: the name of the function. code, name: the number and the name of its result. All are None
    if no function failed.
    """

    call: str | None
    code: int | None
    name: str | None

class TraceError(HybridPagesError, ValueError):
    """A trace cannot be read. The message names the file and the line."""
