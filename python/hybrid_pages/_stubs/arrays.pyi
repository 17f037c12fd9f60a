"""Arrays of other libraries."""

from collections.abc import Sequence
from typing import final

@final
class ArrayView:
    """Where an array of another library lies: address, shape, strides in bytes, device.

    array: with `__dlpack__` (https://dmlc.github.io/dlpack, version 1; the capsule is not used up)
    or `__cuda_array_interface__` (version 2 or 3). Its library hands out the memory itself, which
    is kept as long as the view.
    stream: handle of the stream that will use the array, 0 for the default one; DLPack's libraries
    make it wait for what is still being written.

    Raises InvalidArgumentError for a copy, a read-only array if it is to be writable, and for any
    description that makes no sense; TypeError for what is no array; whatever the array's library
    raises.
    """

    def __new__(
        cls, array: object, *, stream: int | None = None, writable: bool = True
    ) -> ArrayView: ...
    @property
    def address(self) -> int:
        """Of the first item; others may lie before it."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def device_type(self) -> str:
        """cpu, cuda, cuda_host (pinned) or cuda_managed."""

    @property
    def device_id(self) -> int | None:
        """The device's number; None if the array does not say."""

    @property
    def stream(self) -> int | None:
        """The stream after which the contents are there, by `__cuda_array_interface__`."""

def array_marks(arrays: Sequence[object], *, samples: int = 0) -> bytes:
    """What tells arrays from others: address, dtype, shape and strides of each, in their order.

    Equal bytes mean the same memory, read in the same way; as long as somebody keeps it, and
    nobody writes there, also the same values.

    arrays: with a `__dlpack__` that takes `dl_device`, in memory that the host can read.
    samples: so many elements of each array, spread evenly, are read and are part of it.

    Raises InvalidArgumentError for memory that the host cannot read, and what `ArrayView` raises.
    """
