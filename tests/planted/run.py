#!/usr/bin/env python3
"""Plants the faults of faults.py, one at a time, in a copy of this tree, and tells which the tests
find. Every fault must be found; without one, the same tests must pass.

    run.py [--venvs FOLDER] [WORD ...]      only faults whose suite is WORD, or whose name has it

Python tests run with the built library of this tree; faults in Rust are compiled in the copy. Logs
and the copy stay in .cache/planted/.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fault import Fault, file_of

from faults import FAULTS

ROOT = Path(__file__).parents[2]
SCRATCH = ROOT / ".cache" / "planted"
TREE = SCRATCH / "tree"
CORE = "python/hybrid_pages/_core.abi3.so"
VENVS = {
    "python": ".venv-light",
    "batch": ".venv",
    "scheduler": ".venv",
    "transformers": ".venv",
    "mlx": ".venv-mlx",
}


def copy_tree() -> None:
    """Copies what git knows or would add; files that have not changed keep their times, so that
    cargo compiles nothing again."""
    names = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(names, cwd=ROOT, check=True, capture_output=True, text=True)
    wanted = {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    if (ROOT / CORE).exists():
        wanted.add(CORE)
    for path in list(TREE.rglob("*")):
        if path.is_file() and str(path.relative_to(TREE)) not in wanted:
            path.unlink()
    for name in wanted:
        source, target = ROOT / name, TREE / name
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            target.chmod(source.stat().st_mode)


def in_python(suite: str, faults: Sequence[Fault], venvs: Path) -> Iterator[tuple[str, str]]:
    """What becomes of each fault of a folder of tests; the first line is of none."""
    worker = subprocess.Popen(
        [venvs / VENVS[suite] / "bin" / "python", TREE / "tests/planted/worker.py", suite],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=TREE,
        env=os.environ | {"PYTHONPATH": str(TREE / "python"), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert worker.stdin is not None and worker.stdout is not None
    json.dump([fault.name for fault in faults], worker.stdin)
    worker.stdin.close()
    for line in worker.stdout:
        name, outcome = json.loads(line)
        yield name, outcome
    worker.wait()


def in_rust(crate: str, faults: Sequence[Fault]) -> Iterator[tuple[str, str]]:
    """What becomes of each fault of a crate; the first line is of none."""
    tests = sorted({test for fault in faults for test in fault.tests})
    yield "", "passes" if _cargo(crate, tests, "none") == 0 else "fails"
    for fault in faults:
        file = file_of(fault, TREE)
        whole = file.read_text()
        file.write_text(whole.replace(fault.find, fault.replace))
        try:
            code = _cargo(crate, fault.tests, fault.slug)
        finally:
            file.write_text(whole)
        yield fault.name, {0: "passes", 101: "fails"}.get(code, "does not compile")


def _cargo(crate: str, tests: Sequence[str], log: str) -> int:
    """The code that the last test of these ended with that failed; 1 if nothing compiles."""
    target = os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))
    much = {"HYBRID_PAGES_FUZZ": "2000", "HYBRID_PAGES_RESTORES": "20000"}
    settings = os.environ | {"CARGO_TARGET_DIR": target} | much
    worst = 0
    with (SCRATCH / f"{log}.log").open("w") as out:
        for test in tests:
            binary, _, name = test.partition("::")
            which = ["--lib"] if binary == "lib" else ["--test", binary]
            words = ["cargo", "test", "--locked", "--quiet", "-p", crate, *which]
            for more in (["--no-run"], ["--", name] if name else []):
                done = subprocess.run(
                    [*words, *more], cwd=TREE, stdout=out, stderr=subprocess.STDOUT, env=settings
                )
                if done.returncode and more == ["--no-run"]:
                    return 1
                worst = done.returncode or worst
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venvs", type=Path, default=ROOT, help="where .venv and the others are")
    parser.add_argument("words", nargs="*")
    given = parser.parse_args()
    chosen = [
        fault
        for fault in FAULTS
        if not given.words or any(w == fault.suite or w in fault.name for w in given.words)
    ]
    copy_tree()
    missed, began = 0, time.monotonic()
    for suite in dict.fromkeys(fault.suite for fault in chosen):
        faults = [fault for fault in chosen if fault.suite == suite]
        if suite in VENVS:
            outcomes = in_python(suite, faults, given.venvs)
        else:
            outcomes = in_rust(suite, faults)
        left = {"", *(fault.name for fault in faults)}
        for name, outcome in outcomes:
            left.discard(name)
            right = outcome == ("fails" if name else "passes")
            missed += not right
            said = f"{suite}: {name or 'without a fault'}"
            print(f"{'ok    ' if right else 'MISSED'} {said}: {outcome}", flush=True)
        for name in left:
            missed += 1
            print(f"MISSED {suite}: {name or 'without a fault'}: not run", flush=True)
    print(f"{len(chosen)} faults, {missed} missed, {time.monotonic() - began:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
