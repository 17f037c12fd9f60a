"""The distributions in dist/, and what their files say."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
WHEELS = sorted(DIST.glob("*.whl"))
LIBRARY = "hybrid_pages/_core.abi3.so"
# What manylinux promises on every system.
PROMISED = re.compile(r"lib(c|m|dl|rt|pthread|gcc_s)\.so\.\d+|ld-linux-[\w-]+\.so\.\d")


def contents(wheel: Path, suffix: str) -> dict[str, bytes]:
    """The files of a wheel whose names end so, by what is before it."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name.endswith(suffix)}


def library(wheel: Path) -> bytes:
    """The compiled core in a wheel."""
    (found,) = contents(wheel, LIBRARY).values()
    return found


def needs(compiled: bytes) -> tuple[set[str], tuple[int, ...]]:
    """The libraries that a compiled one needs, and the newest glibc that its symbols name."""
    elf = ELFFile(io.BytesIO(compiled))
    dynamic = elf.get_section_by_name(".dynamic")
    libraries = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}
    named = {
        auxiliary.name
        for section in elf.iter_sections()
        if isinstance(section, GNUVerNeedSection)
        for _, auxiliaries in section.iter_versions()
        for auxiliary in auxiliaries
    }
    versions = [re.fullmatch(r"GLIBC_([\d.]+)", name) for name in named]
    return libraries, max(tuple(map(int, found[1].split("."))) for found in versions if found)


def bill(wheel: Path) -> dict[str, Any]:
    """The bill of materials inside a wheel."""
    (found,) = contents(wheel, ".cyclonedx.json").values()
    return json.loads(found)
