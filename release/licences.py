"""The licences of the crates inside a wheel, as each crate states them: THIRD-PARTY-LICENSES.txt.

    python release/licences.py     # writes the file; `make licences`

Crates are those that cargo resolves for the library on all machines that have wheels, macros that
run while it compiles included. Each crate's own licence and notice files are copied whole; equal
texts are told once. Needs Python 3.11, cargo and the crates that Cargo.lock names.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "THIRD-PARTY-LICENSES.txt"
TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
STATES = re.compile(r"(un)?licen[cs]e|copying|copyright|notice", re.IGNORECASE)
LINE = "-" * 80

HEAD = """\
THIRD-PARTY LICENSES

The wheels of hybrid-pages hold compiled code of the crates below. Each is listed with the licence
that it states, and its licence and notice files follow. `make licences` writes this file.

The wheels also hold code of Rust's standard library, Copyright (c) The Rust Project Contributors,
used under Apache-2.0, and of LLVM's libunwind and compiler-rt, Copyright (c) the LLVM contributors,
used under Apache-2.0 WITH LLVM-exception. The text of Apache-2.0 is in LICENSE.
"""


class Crate(NamedTuple):
    """A crate from a registry: what it states, and the folder that its source is in."""

    name: str
    version: str
    licence: str
    folder: Path


def _cargo(*words: str) -> str:
    return subprocess.run(
        ["cargo", *words, "--locked"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def crates(targets: Sequence[str] = TARGETS) -> list[Crate]:
    """The crates from elsewhere that are in the library on one of these, by name and version."""
    inside = set()
    for target in targets:
        words = ["--package", "hybrid-pages-python", "--target", target, "--edges", "normal"]
        tree = _cargo("tree", *words, "--prefix", "none", "--format", "{p}")
        inside |= {tuple(line.split()[:2]) for line in tree.splitlines()}
    platforms = [word for target in targets for word in ("--filter-platform", target)]
    packages = json.loads(_cargo("metadata", "--format-version", "1", *platforms))["packages"]
    return sorted(
        Crate(package["name"], package["version"], package["license"] or "", folder)
        for package in packages
        if package["source"] and (package["name"], f"v{package['version']}") in inside
        for folder in [Path(package["manifest_path"]).parent]
    )


def texts(crate: Crate) -> list[str]:
    """The licence and notice files of a crate, without spaces at the ends of lines.

    Raises:
        SystemExit: it has none.
    """
    files = sorted(file for file in crate.folder.iterdir() if STATES.match(file.name))
    found = [file.read_text(encoding="utf-8") for file in files if file.is_file()]
    if not found:
        raise SystemExit(
            f"expected a licence file in {crate.name} {crate.version}, found none in {crate.folder}"
        )
    return ["\n".join(line.rstrip() for line in text.strip("\n").splitlines()) for text in found]


def document(found: list[Crate]) -> str:
    """The whole file: the crates and what they state, then each text and whose it is."""
    users: dict[str, list[Crate]] = {}
    shown: dict[str, str] = {}
    for crate in found:
        for text in texts(crate):
            # Files that differ in how lines are broken are one text.
            key = " ".join(text.split())
            shown.setdefault(key, text)
            users.setdefault(key, []).append(crate)
    lines = [HEAD]
    lines += [f"    {crate.name} {crate.version}: {crate.licence}" for crate in found]
    for key, whose in users.items():
        names = dict.fromkeys(f"{crate.name} {crate.version}" for crate in whose)
        lines += ["", LINE, f"Of {', '.join(names)}:", "", shown[key]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(document(crates()), encoding="utf-8")
