"""What a release says of its version: in the crates, the lock file, the changelog and the tag.

    python release/version.py check [TAG]   # every place says the same; exit 1 where they differ
    python release/version.py notes         # the changelog's section, for the release's page

Without a tag the changelog may still say Unreleased. Needs Python 3.11 and no package.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
# Semantic Versioning, as far as cargo and PyPI agree on it: 1.2.3, 1.2.3-rc.1.
VERSION = re.compile(r"\d+\.\d+\.\d+(?:-(?:alpha|beta|rc)\.\d+)?")
HEADING = re.compile(r"^## \[(?P<name>[^\]]+)\](?: - (?P<date>\d{4}-\d\d-\d\d))?$", re.M)


def versions(root: Path) -> dict[str, str]:
    """The version that each place states: both in Cargo.toml, and each crate's in Cargo.lock."""
    manifest = tomllib.loads((root / "Cargo.toml").read_text())
    lock = tomllib.loads((root / "Cargo.lock").read_text())
    found = {
        "Cargo.toml [package]": manifest["package"]["version"],
        "Cargo.toml [workspace.package]": manifest["workspace"]["package"]["version"],
    }
    for crate in lock["package"]:
        if "source" not in crate:
            found[f"Cargo.lock {crate['name']}"] = crate["version"]
    return found


def sections(root: Path) -> list[tuple[str, str | None, str]]:
    """The changelog's sections, newest first: version or Unreleased, date, text."""
    text = (root / "CHANGELOG.md").read_text()
    found = list(HEADING.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    return [
        (match["name"], match["date"], text[match.end() : end].strip())
        for match, end in zip(found, ends, strict=False)
    ]


def problems(root: Path = ROOT, tag: str | None = None) -> list[str]:
    """What disagrees, each with what was expected, what was found and where."""
    places = versions(root)
    version = places["Cargo.toml [package]"]
    found = [
        f"{place}: expected {version}, as in Cargo.toml, found {other}"
        for place, other in places.items()
        if other != version
    ]
    if not VERSION.fullmatch(version):
        found.append(f"Cargo.toml: expected a version such as 1.2.3 or 1.2.3-rc.1, found {version}")
    if "version" not in tomllib.loads((root / "pyproject.toml").read_text())["project"]["dynamic"]:
        found.append(
            "pyproject.toml: expected a dynamic version, which maturin reads in Cargo.toml"
        )
    changes = sections(root)
    if not changes:
        return [*found, "CHANGELOG.md: expected a heading such as `## [Unreleased]`, found none"]
    newest, date, text = changes[0]
    if newest == "Unreleased":
        released = [name for name, *_ in changes[1:]]
        if tag is None and version in released:
            found.append(f"Cargo.toml: expected a version after {version}, which CHANGELOG.md has")
    elif newest != version:
        found.append(f"CHANGELOG.md: expected {version} or Unreleased first, found {newest}")
    elif date is None or not text:
        found.append(f"CHANGELOG.md: expected `## [{version}] - YYYY-MM-DD`, and changes below it")
    if tag is not None:
        if tag != f"v{version}":
            found.append(f"the tag: expected v{version}, as in Cargo.toml, found {tag}")
        if newest != version:
            found.append(f"CHANGELOG.md: expected {version} first in a release, found {newest}")
    return found


def notes(root: Path = ROOT) -> str:
    """The changelog's section of the version that Cargo.toml states, else the first one."""
    version = versions(root)["Cargo.toml [package]"]
    changes = sections(root)
    return next((text for name, _, text in changes if name == version), changes[0][2])


def main(words: list[str]) -> int:
    match words:
        case ["notes"]:
            print(notes())
            return 0
        case ["check"] | ["check", _]:
            found = problems(tag=words[1] if words[1:] else None)
            print("\n".join(found) or f"version {versions(ROOT)['Cargo.toml [package]']}")
            return 1 if found else 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
