"""CUDA devices, and the streams of other libraries as the driver knows them."""

from hybrid_pages._core import CudaDevice, CudaError, InvalidArgumentError, cuda_devices

# Where torch, CuPy before 14 and numba keep the handle.
_ATTRIBUTES = ("cuda_stream", "ptr", "handle")


def stream_handle(stream: object = None) -> int:
    """The driver's handle (``CUstream``) of a stream.

    Args:
        stream: None for the default stream; a handle; anything with ``__cuda_stream__`` (a method
            or a property that gives version 0 and the handle,
            https://nvidia.github.io/cuda-python/cuda-core/latest/interoperability.html); a
            ``torch.cuda.Stream``; a ``cupy.cuda.Stream``.

    Raises:
        InvalidArgumentError: a protocol of another version, or a handle that can be none.
        TypeError: anything else.
    """
    if stream is None:
        return 0
    if isinstance(stream, int) and not isinstance(stream, bool):
        return _checked(stream)
    if (protocol := getattr(stream, "__cuda_stream__", None)) is not None:
        found = protocol() if callable(protocol) else protocol
        if not isinstance(found, tuple) or len(found) != 2 or found[0] != 0:
            raise InvalidArgumentError(f"__cuda_stream__: expected (0, handle), found {found!r}")
        return _checked(found[1])
    for name in _ATTRIBUTES:
        if isinstance(handle := getattr(stream, name, None), int):
            return _checked(handle)
    raise TypeError(
        "stream: expected None, a handle, a torch or CuPy stream, or an object with "
        f"__cuda_stream__, found a {type(stream).__name__}"
    )


def _checked(handle: object) -> int:
    number = int(handle) if hasattr(handle, "__int__") else -1
    if not 0 <= number < 1 << 64:
        raise InvalidArgumentError(f"stream: expected a handle, found {handle!r}")
    return number


def devices() -> list[CudaDevice]:
    """The devices that this process can use; none where :func:`reason` gives a reason."""
    try:
        return cuda_devices()
    except CudaError:
        return []


def is_available() -> bool:
    """Whether there are a driver and a device. Creates no CUDA context."""
    return reason() is None


def reason() -> str | None:
    """Why there is no CUDA here, or None if there is."""
    try:
        found = CudaDevice.count()
    except CudaError as error:
        return str(error)
    return None if found else "CUDA is not available: expected a device, found none"
