"""What gpu_paging.py does not ask of a GPU: who waits for whom, and memory that comes and goes.

Each measurement runs in a process of its own, so that one that fails, hangs or breaks the device
costs nothing else. It needs the package and the driver, and torch for one measurement alone. Over
the mock of the driver (HYBRID_PAGES_LIBCUDA) it shows that it runs. Writes JSON to
`benches/results/` and to the folder that OUT names; wrong bytes and measurements that fail are
faults.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hybrid_pages import cuda
from paging import latency, mapped, neighbours, questions, results
from paging.driver import Driver, Missing

LONGEST = 40
"""Seconds that one measurement may take."""

MEASUREMENTS: dict[str, Callable[[Driver, bool], neighbours.Found]] = {
    "copy": latency.copy,
    "persistent": latency.persistent,
    "mapped": mapped.round_trip,
    "remapped": mapped.remapped,
    "unmapped-copies": mapped.unmapped_copies,
    "capture": neighbours.capture,
    "pinning": neighbours.pin,
    "expandable": mapped.expandable,
    # The last: it may break what a device has of this process.
    "unmapped-kernels": mapped.unmapped_kernels,
}
_MARK = "found: "


class Stopped(BaseException):
    """Somebody wants this process to end; what was measured is written first."""


def stop(*_: object) -> None:
    raise Stopped


def measure(name: str, tiny: bool) -> None:
    """Runs one measurement in this process, and prints what it found."""
    driver = Driver()
    machine = driver.describe()
    try:
        values, facts = MEASUREMENTS[name](driver, tiny)
    except Missing as why:
        values, facts = {}, {"not measured": str(why)}
    found = {"values": values, "facts": facts, "machine": machine}
    print(_MARK + json.dumps(found), flush=True)


def run(name: str, dry: bool, seconds: float) -> tuple[dict[str, Any], str | None]:
    """Runs one measurement in another process. Returns what it found, and why it failed."""
    words = [sys.executable, __file__, "--measure", name, *(["--dry-run"] if dry else [])]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    try:
        said, _ = process.communicate(timeout=seconds)
        why = f"ended with {process.returncode}" if process.returncode else None
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        why = f"stopped after {seconds:.0f} s"
    finally:
        # Also where this process is to end.
        process.kill()
        process.wait()
    lines = [line for line in said.splitlines() if line.strip()]
    found = [line for line in lines if line.startswith(_MARK)]
    if not found:
        return {}, f"{why or 'found nothing'}: {lines[-1] if lines else 'it said nothing'}"
    text = found[-1].removeprefix(_MARK)
    # Nobody reads more digits than these.
    return json.loads(text, parse_float=lambda one: float(f"{float(one):.4g}")), why


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--budget", type=float, default=120, help="seconds for all of it (120)")
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, help="these alone")
    parser.add_argument("--results", type=Path, default=results.RESULTS, help="where JSON goes")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes: shows that it runs")
    parser.add_argument("--measure", choices=MEASUREMENTS, help=argparse.SUPPRESS)
    parser.add_argument("--probe", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = parse()
    if options.probe:
        neighbours.probe()
        return 0
    if options.measure:
        measure(options.measure, options.dry_run)
        return 0
    if why := cuda.reason():
        print(f"gpu_first_hour: skipped: {why}")
        return 0
    signal.signal(signal.SIGTERM, stop)
    begin = time.perf_counter()
    answers: dict[str, float] = {}
    facts: dict[str, Any] = {}
    failed: dict[str, str] = {}
    machine: dict[str, Any] = {"device": "unknown"}
    left_out = list(options.only or MEASUREMENTS)
    try:
        while left_out:
            name, left = left_out[0], options.budget - (time.perf_counter() - begin)
            if left <= 0:
                break
            found, why = run(name, options.dry_run, min(LONGEST, left))
            if why:
                failed[name] = why
                print(f"{name}: FAILED: {why}", flush=True)
            if found:
                answers |= found["values"]
                facts[name] = found["facts"]
                machine = found["machine"]
                print(
                    f"{name}: {json.dumps(found['values'])} {json.dumps(facts[name])}", flush=True
                )
            left_out.pop(0)
    except Stopped:
        failed["all of it"] = "it was told to end"
    figures = {
        **results.facts(),
        **machine,
        "seconds": time.perf_counter() - begin,
        "answers": answers,
        "facts": facts,
        "failed": failed,
        "left_out": left_out,
    }
    print("\n" + questions.table(answers))
    if options.dry_run:
        print("a dry run: the answers are of the machinery alone")
    if left_out:
        print(f"the budget left out: {', '.join(left_out)}")
    for path in results.write(
        figures, "gpu-first-hour", results.folders(options.results, options.dry_run)
    ):
        print(f"wrote {path}")
    print(questions.summary(answers, failed))
    return 1 if failed or questions.is_wrong(answers) else 0


if __name__ == "__main__":
    sys.exit(main())
