"""Runs targets of the Makefile one by one, and writes how each ended into a file of results.

    long.py TARGET...      # `make test-long`; exit 1 where one of them fails

A result has the date, the commit, the machine, the exit status, and what pytest and cargo counted.
Targets that do not run keep the result that they had. Needs Python 3.11.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benches" / "results" / "test-long.json"
# The last line of pytest, and cargo's line for each file of tests.
_SUMMARY = re.compile(r"^=* ?(\d+ \w+(?:, \d+ \w+)*) in [\d.]+s|^test result: \w+\. (.*)", re.M)
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed)")


def counted(text: str) -> dict[str, int]:
    """How many tests passed, failed and so on, over all summaries in what was printed."""
    found: Counter[str] = Counter()
    for pytest, cargo in _SUMMARY.findall(text):
        for number, outcome in _COUNT.findall(pytest or cargo):
            found[outcome] += int(number)
    return {outcome: number for outcome, number in found.items() if number}


def run(target: str) -> tuple[int, str]:
    """Makes a target, shows what it prints, and gives its status and that."""
    lines = []
    with subprocess.Popen(
        ["make", target], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as made:
        for line in made.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    return made.returncode, "".join(lines)


def processor() -> str:
    """The processor's name, as the system says it."""
    try:
        found = re.search(r"^model name\s*: (.+)", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return found[1] if found else "unknown"


def machine() -> str:
    """What this runs on, in a few words."""
    return f"{processor()}, {os.cpu_count()} cores"


def described() -> str:
    """The commit of this tree, and whether its files differ from it, but for files of results."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    files = ["--", ".", ":!benches/results", ":!docs/evidence.md"]
    same = subprocess.run(["git", "diff", "--quiet", "HEAD", *files], cwd=ROOT).returncode == 0
    return f"{commit}{'' if same else '-dirty'}" if commit else "unknown"


def main(targets: Sequence[str]) -> int:
    """Runs all of them, however the first ones end."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    failed = False
    for target in targets:
        began = time.monotonic()
        status, text = run(target)
        failed |= status != 0
        results[target] = {
            "date": datetime.date.today().isoformat(),
            "commit": described(),
            "machine": machine(),
            "arguments": os.environ.get("PYTEST_ARGS", ""),
            "minutes": round((time.monotonic() - began) / 60),
            "status": status,
            "tests": counted(text),
        }
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
