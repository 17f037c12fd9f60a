"""What a planted fault is, and where it is planted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """``suite``: a folder of tests/ whose tests run with pytest, or a crate's name."""

    name: str
    find: str
    replace: str
    suite: str
    tests: tuple[str, ...]
    """Files of the folder, or ``file::function``; of a crate, ``binary::words`` of names of tests,
    where ``lib`` is the crate itself."""

    @property
    def slug(self) -> str:
        """Its name, as that of a file."""
        return re.sub("[^a-z0-9]+", "-", self.name.lower())


def sources(root: Path) -> Iterator[Path]:
    """All files in which a fault may be planted."""
    yield from sorted(root.glob("python/hybrid_pages/**/*.py"))
    yield from sorted(root.glob("rust/**/*.rs"))


def file_of(fault: Fault, root: Path) -> Path:
    """The file that has the fault's text, which is there once.

    Raises:
        LookupError: no file has it, or several places.
    """
    found = {path: path.read_text().count(fault.find) for path in sources(root)}
    (path, count), *others = sorted(found.items(), key=lambda item: -item[1])
    if count != 1 or any(more for _, more in others):
        places = [f"{path.relative_to(root)} ({n})" for path, n in found.items() if n]
        raise LookupError(f"{fault.name!r}: expected its text once, found it in {places}")
    return path
