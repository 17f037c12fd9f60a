"""What each operation of each tier costs for a block, as prompts and stores grow.

Runs `tier_sizes.rs` over a disk, over a directory that engines share, over a real S3 server and
over a real Mooncake Store, both on loopback. Without a network of its own there is no Mooncake
Store: run it by `make bench-tiers`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from overhead.s3_server import s3_server

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "mooncake"))
from real_mooncake import MASTER, Store, why_not

from hybrid_pages.mooncake import command

CARGO = [
    "cargo",
    "bench",
    "--locked",
    "--package",
    "hybrid-pages-remote",
    "--bench",
    "tier_sizes",
    "--",
]
TIERS = "disk", "directory", "s3", "mooncake"
VALUES = 2 << 30
"""Bytes that the Mooncake Store has for values."""


def run(program: list[str], *words: str) -> None:
    subprocess.run([*program, *words], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tiers", nargs="*", metavar="TIER", help=f"of {', '.join(TIERS)} (all)")
    parser.add_argument("--quick", action="store_true", help="no stores above 2^14 entries")
    parser.add_argument("--program", help="a bench that is built already")
    given = parser.parse_args()
    quick = ["--quick"] if given.quick else []
    program = [given.program, *quick] if given.program else [*CARGO, *quick]
    for tier in given.tiers or TIERS:
        if tier == "s3":
            with s3_server() as url:
                run(program, url)
        elif tier == "mooncake":
            if reason := why_not():
                sys.exit(reason)
            with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store:
                store.add(VALUES)
                run(program, "mooncake", MASTER, *command())
        else:
            run(program, tier)


if __name__ == "__main__":
    main()
