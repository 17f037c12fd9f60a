"""What a release's page has beside the distributions in dist/: their hashes, and the changes.

dist/requirements.txt is for `pip install --require-hashes -r`: pip takes the distribution that fits
its machine. Needs Python 3.11 and no package.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path

from version import ROOT, notes, versions


def requirements(dist: Path, version: str) -> str:
    """A pinned requirement with the hash of every distribution in the folder.

    Raises:
        SystemExit: there is none, or one of another version.
    """
    files = sorted([*dist.glob("*.whl"), *dist.glob("*.tar.gz")])
    if not files:
        raise SystemExit(f"expected distributions in {dist}, found none: make wheel sdist")
    # PyPI's spelling of a pre-release: 1.2.3rc1.
    spelt = version.replace("-rc.", "rc").replace("-beta.", "b").replace("-alpha.", "a")
    if others := [file.name for file in files if not file.name.startswith(f"hybrid_pages-{spelt}")]:
        raise SystemExit(f"expected distributions of {spelt} in {dist}, found {', '.join(others)}")
    lines = [f"hybrid-pages=={spelt}"]
    for file in files:
        lines.append(f"    --hash=sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}")
    return " \\\n".join(lines) + "\n"


def shown(text: str, version: str, repository: str) -> str:
    """The changes as a page of GitHub shows them: it breaks lines where the text does, and links
    lead nowhere but from the repository's address, which may be empty."""
    text = re.sub(r"(?<=\S)\n *(?=[^\s#|-])", " ", text)
    if not repository:
        return text
    return re.sub(r"\]\((?![a-z]+:|#)", f"]({repository}/blob/v{version}/", text)


def main() -> None:
    dist, version = ROOT / "dist", versions(ROOT)["Cargo.toml [package]"]
    text = requirements(dist, version)
    (dist / "requirements.txt").write_text(text)
    name = os.environ.get("GITHUB_REPOSITORY", "")
    server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
    written = shown(notes(), version, name and f"{server}/{name}")
    (dist / "notes.md").write_text(written + "\n")
    print(text, end="")


if __name__ == "__main__":
    sys.exit(main())
