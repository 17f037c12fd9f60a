"""CUDA devices, and the streams of other libraries as the driver knows them."""

import os
import subprocess
import sys
from multiprocessing.spawn import get_executable

from hybrid_pages import _core
from hybrid_pages._core import (
    CudaDevice,
    CudaError,
    InvalidArgumentError,
    cuda_devices,
    started_cuda_devices,
)

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
    """The devices that this process can use; none where :func:`reason` gives a reason.

    Starts the driver. Processes that fork off later cannot use it.
    """
    try:
        return cuda_devices()
    except CudaError:
        return []


def is_available() -> bool:
    """Whether there are a driver and a device, see :func:`reason`."""
    return reason() is None


def reason() -> str | None:
    """Why there is no CUDA here, or None if there is.

    Creates no CUDA context, and does not start the driver, so that a process may still fork and use
    CUDA in its children. Where nobody has started the driver in this process, a short-lived child
    process asks it. Only a program that is no Python interpreter, such as a frozen one, asks the
    driver itself, which starts it: as a child, such a program would do all its work once more.
    """
    try:
        found = started_cuda_devices()
        if found is None and not _can_ask_elsewhere():
            found = CudaDevice.count()
    except CudaError as error:
        return str(error)
    if found is None:
        return _asked_elsewhere()
    return None if found else _NO_DEVICE


_NO_DEVICE = "CUDA is not available: expected a device, found none"
# Loads the binding alone: that takes milliseconds.
_ASK = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("hybrid_pages._core", sys.argv[1])
core = module_from_spec(spec)
spec.loader.exec_module(core)
try:
    found = core.CudaDevice.count()
except core.CudaError as error:
    found = error
print(f"\\nhybrid-pages: {found}")
"""
_ANSWER = "\nhybrid-pages: "
# Set for the child process, which must not ask in yet another one.
_ASKING = "HYBRID_PAGES_ASKS_DRIVER"
# The driver may set up many devices first.
_ASK_SECONDS = 120
# Environments in which a child process has found a device: asking takes up to a second.
_found: set[tuple[str | None, ...]] = set()


def _can_ask_elsewhere() -> bool:
    """Whether this process knows an interpreter that it can start."""
    known = bool(get_executable()) and _core.__file__ is not None
    return known and not getattr(sys, "frozen", False) and _ASKING not in os.environ


def _asked_elsewhere() -> str | None:
    """:func:`reason`, as another process finds it."""
    names = ("HYBRID_PAGES_LIBCUDA", "CUDA_VISIBLE_DEVICES")
    environment = tuple(os.environ.get(name) for name in names)
    if environment in _found:
        return None
    command = [get_executable(), "-I", "-S", "-c", _ASK, _core.__file__]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ASK_SECONDS,
            check=False,
            env=os.environ | {_ASKING: "1"},
        )
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return f"CUDA is not available: a process that asks the driver failed: {error}"
    # Libraries that every process loads may print, too.
    noise, _, rest = done.stdout.partition(_ANSWER)
    said = rest.partition("\n")[0].strip()
    if done.returncode != 0 or not said:
        why = done.stderr.strip() or noise.strip() or f"exit status {done.returncode}"
        return f"CUDA is not available: a process that asks the driver failed: {why}"
    if not said.isdecimal():
        return said
    if int(said) == 0:
        return _NO_DEVICE
    _found.add(environment)
    return None
