"""Compiles the kernels for every GPU they are shipped for, and compares or writes the result.

`make kernels` writes `images/` and `images/report.json`; `make check-kernels` compiles again and
compares byte for byte. NVRTC does the work: neither a GPU, nor a driver, nor nvcc is needed.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

SOURCE = "paging.cu"
HEADERS = ("digest.cuh", "paging.h")
KERNELS = ("hybrid_pages_gather", "hybrid_pages_scatter", "hybrid_pages_digest")
# Beside the architecture.
OPTIONS = ("--std=c++17",)
# A cubin runs on GPUs of its major version and at least its minor one; that of Tegra (sm_87) on
# Tegra alone, and no other there. PTX runs on all GPUs from its own version on.
CUBINS = ("sm_75", "sm_80", "sm_87", "sm_90", "sm_100", "sm_120")
PTX = "compute_80"

FOLDER = Path(__file__).parent
IMAGES = FOLDER / "images"
REPORT = "report.json"


class BuildError(Exception):
    """Why there are no images."""


class Nvrtc:
    """The functions of NVRTC that are needed, by its documentation (docs.nvidia.com/cuda/nvrtc)."""

    def __init__(self, place: Path) -> None:
        """Loads the library `place`, or the one under the folder `place`."""
        found = [place] if place.is_file() else sorted(place.rglob("libnvrtc.so.12"))
        if not found:
            raise BuildError(
                f"no libnvrtc.so.12 under {place}: install requirements/kernels.txt there, "
                "as `make kernels` does"
            )
        try:
            self._library = ctypes.CDLL(str(found[0]))
        except OSError as error:
            raise BuildError(f"cannot load {found[0]}: {error}") from error
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def compile(self, architecture: str) -> tuple[bytes, str]:
        """The image for `sm_<n>` (a cubin) or `compute_<n>` (PTX), and the compiler's log."""
        program = ctypes.c_void_p()
        names = (ctypes.c_char_p * len(HEADERS))(*(name.encode() for name in HEADERS))
        headers = (ctypes.c_char_p * len(HEADERS))(*(_source(name) for name in HEADERS))
        self._call(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            _source(SOURCE),
            SOURCE.encode(),
            len(HEADERS),
            headers,
            names,
        )
        try:
            words = [*OPTIONS, f"--gpu-architecture={architecture}", "--ptxas-options=-v"]
            options = (ctypes.c_char_p * len(words))(*(word.encode() for word in words))
            result = self._library.nvrtcCompileProgram(program, len(words), options)
            log = self._bytes("ProgramLog", program).rstrip(b"\0").decode()
            if result != 0:
                raise BuildError(f"{architecture}: {SOURCE} does not compile:\n{log}")
            return self._bytes("CUBIN" if architecture in CUBINS else "PTX", program), log
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _bytes(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            text = self._library.nvrtcGetErrorString(result).decode()
            raise BuildError(f"{name} failed: {text} ({result})")


def _source(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def usage(log: str) -> dict[str, dict[str, int]]:
    """Resources of each kernel, from a log of `--ptxas-options=-v`."""
    kernels = {}
    for part in log.split("Compiling entry function ")[1:]:
        name = part.split("'")[1]
        numbers = {
            "registers": r"Used (\d+) registers",
            "shared_bytes": r"(\d+) bytes smem",
            "stack_bytes": r"(\d+) bytes stack frame",
            "spill_store_bytes": r"(\d+) bytes spill stores",
            "spill_load_bytes": r"(\d+) bytes spill loads",
        }
        found = {key: re.search(pattern, part) for key, pattern in numbers.items()}
        missing = [key for key, match in found.items() if match is None]
        if missing:
            raise BuildError(f"the compiler's log says nothing of {', '.join(missing)}:\n{log}")
        kernels[name] = {key: int(match[1]) for key, match in found.items() if match is not None}
    if sorted(kernels) != sorted(KERNELS):
        raise BuildError(f"expected the kernels {', '.join(KERNELS)}; the log has:\n{log}")
    return dict(sorted(kernels.items()))


def compile_all(nvrtc: Nvrtc) -> dict[str, bytes]:
    """The files of `images/`, the report among them."""
    files: dict[str, bytes] = {}
    images: dict[str, Any] = {}
    for architecture in CUBINS:
        image, log = nvrtc.compile(architecture)
        name = f"{architecture}.cubin"
        files[name] = image
        images[name] = {"sha256": _sha256(image), "kernels": usage(log)}
        print(f"    {name}: {len(image)} bytes", flush=True)
    image, _ = nvrtc.compile(PTX)
    text = image.rstrip(b"\0")
    name = f"{PTX}.ptx"
    files[name] = text
    images[name] = {"sha256": _sha256(text)}
    print(f"    {name}: {len(text)} bytes", flush=True)

    version = re.search(rb"release \d+\.\d+, V([\d.]+)", text)
    if version is None:
        raise BuildError("the PTX does not say which compiler made it")
    report = {
        "sources": {name: _sha256(_source(name)) for name in (SOURCE, *HEADERS)},
        "nvrtc": version[1].decode(),
        "options": list(OPTIONS),
        "images": images,
    }
    files[REPORT] = (json.dumps(report, indent=2) + "\n").encode()
    refuse_spills(report)
    return files


def refuse_spills(report: dict[str, Any]) -> None:
    """Raises if a kernel keeps anything in memory that belongs into registers."""
    for image, facts in report["images"].items():
        for kernel, numbers in facts.get("kernels", {}).items():
            for key in ("stack_bytes", "spill_store_bytes", "spill_load_bytes"):
                if numbers[key]:
                    raise BuildError(
                        f"{image}: {kernel} has {key} = {numbers[key]}; expected 0. "
                        "Give the kernel less to hold at a time"
                    )


def compare(files: dict[str, bytes]) -> None:
    """Raises unless `images/` holds these files and no others."""
    there = {path.name for path in IMAGES.iterdir()} if IMAGES.is_dir() else set()
    wrong = [f"{name} should not be there" for name in sorted(there - files.keys())]
    for name, data in files.items():
        if name not in there:
            wrong.append(f"{name} is missing")
        elif (IMAGES / name).read_bytes() != data:
            wrong.append(f"{name} differs")
    if wrong:
        raise BuildError(
            f"csrc/images/ is not what csrc/ compiles to: {'; '.join(wrong)}. "
            "Run `make kernels` and commit what it writes"
        )


def main() -> None:
    """Builds or, with `--check`, compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--nvrtc", type=Path, required=True, help="libnvrtc.so.12, or a folder over it"
    )
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    words = parser.parse_args()
    try:
        files = compile_all(Nvrtc(words.nvrtc))
        if words.check:
            compare(files)
        else:
            IMAGES.mkdir(exist_ok=True)
            for path in IMAGES.iterdir():
                path.unlink()
            for name, data in files.items():
                (IMAGES / name).write_bytes(data)
    except BuildError as error:
        sys.exit(f"{Path(__file__).name}: {error}")


if __name__ == "__main__":
    main()
