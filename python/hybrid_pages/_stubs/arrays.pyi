"""Arrays of other libraries."""

from collections.abc import Sequence
from typing import final

@final
class ArrayView:
    """The memory of an array of another library: address, shape, strides in bytes, device.

    The view keeps the memory alive.

    array: an object with `__dlpack__` (https://dmlc.github.io/dlpack, version 1; the capsule stays
    valid) or `__cuda_array_interface__` (version 2 or 3).
    stream: handle of the stream that will use the array, 0 for the default one. A library with
    DLPack makes it wait for writes to the array.
    writable: whether a read-only array is rejected.

    Raises InvalidArgumentError if the library gives a copy of the array, or an impossible
    description, or if the array is read-only; TypeError for anything but an array; and whatever the
    array's library raises.
    """

    def __new__(
        cls, array: object, *, stream: int | None = None, writable: bool = True
    ) -> ArrayView: ...
    @property
    def address(self) -> int:
        """The address of the first item. Other items may have lower addresses."""

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
        """The number of the device; None if the array does not tell it."""

    @property
    def stream(self) -> int | None:
        """The stream that writes the contents, by `__cuda_array_interface__`.

        None if it names none.
        """

def array_marks(arrays: Sequence[object], *, samples: int = 0) -> bytes:
    """The address, dtype, shape and strides of each array, as bytes to be compared.

    Equal bytes mean the same memory read in the same way. As long as the memory is kept and not
    written to, they also mean the same values.

    arrays: objects whose `__dlpack__` takes `dl_device`, in memory that the host can read.
    samples: how many elements of each array, evenly spread, are part of the bytes, too.

    Raises InvalidArgumentError for memory that the host cannot read, and what `ArrayView` raises.
    """
