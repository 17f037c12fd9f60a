"""Which devices there are, or why there are none."""

from hybrid_pages._core import CudaDevice, CudaError, cuda_devices


def devices() -> list[CudaDevice]:
    """The devices that the driver shows to this process; empty where :func:`reason` says why."""
    try:
        return cuda_devices()
    except CudaError:
        return []


def is_available() -> bool:
    """Whether there is a driver and a device. Makes no context."""
    return reason() is None


def reason() -> str | None:
    """Why there is no CUDA here, or None if there is."""
    try:
        found = CudaDevice.count()
    except CudaError as error:
        return str(error)
    return None if found else "CUDA is not available: expected a device, found none"
