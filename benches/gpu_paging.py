"""Paging between a GPU's caches and pinned host memory: how near to the bus, beside what is there.

Pieces of 16 KiB to 3 MiB, 16 to 4,096 of them, out, in and both at once, on an idle GPU and beside
a matmul that never ends. Ours (as it chooses, and each way) beside one pinned copy of as
many bytes (the limit), the driver's batch copy, torch, CuPy, and vLLM's kernel where there is one.
Writes JSON and a picture to `benches/results/` and to the folder that OUT names. A slow GPU fails
nothing; wrong bytes and transfers that fail do, and the rest is measured all the same.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from hybrid_pages import cuda
from paging import beside, claims, report, results
from paging.cases import GIB, KIB, LAYERS, MIB, SIZES, Case, cases
from paging.machine import DryMachine, Machine
from paging.methods import LIMIT, METHODS, OURS, Method, Missing, Ours
from paging.place import Buffers, Place

SKIPPED, FAILED = 0, 1
BUSY_SIZES = (16 * KIB, 64 * KIB, MIB)
WINDOW_SECONDS = 0.06


class Stopped(BaseException):
    """Somebody wants this process to end; what was measured is written first."""


def stop(*_: object) -> None:
    raise Stopped


class Bench:
    """Runs cases and keeps rows."""

    def __init__(self, machine: Machine, chosen: list[Case], methods: list[str], rounds: int):
        self.machine, self.cases, self.methods, self.rounds = machine, chosen, methods, rounds
        self.rows: list[report.Row] = []
        self.missing: dict[str, str] = {}
        self.faults: list[str] = []
        """What our own part did wrong. The rest is measured all the same: GPUs are rare."""
        self.left_out: list[str] = []
        self.buffers = Buffers(machine, max(case.nbytes for case in chosen))
        self._places: dict[int, Place] = {}

    def place(self, size: int) -> Place:
        if size not in self._places:
            most = max(case.count for case in self.cases if case.size == size)
            self._places[size] = Place(self.machine, self.buffers, size, most)
        return self._places[size]

    def run(self, budget: float) -> None:
        """The most telling cases first; what the budget does not reach is named."""
        begin = time.perf_counter()
        for number, case in enumerate(self.cases, 1):
            used = time.perf_counter() - begin
            if used > budget:
                self.left_out = [str(case) for case in self.cases[number - 1 :]]
                break
            try:
                cells = [self.measure(case, name) for name in self._methods()]
            except Stopped:
                self.left_out = [str(case) for case in self.cases[number - 1 :]]
                break
            found = "  ".join(f"{row.method} {row.gb_per_s:.1f}" for row in cells if row)
            print(f"{used:4.0f} s  {number}/{len(self.cases)}  {case}  {found}", flush=True)

    def _methods(self) -> list[str]:
        return [name for name in self.methods if name not in self.missing]

    def measure(self, case: Case, name: str) -> report.Row | None:
        try:
            method = METHODS[name](self.place(case.size), case)
            seconds, slowdown = (
                self._busy(case, method) if case.busy else (self._time(method), None)
            )
        except Exception as error:
            # What a driver or a library refuses is named in the results.
            self.missing[name] = str(error) if isinstance(error, Missing) else repr(error)
            if name in OURS and not isinstance(error, Missing):
                self.faults.append(f"{name}, {case}: {error!r}")
            return None
        if seconds is None:
            return None
        nbytes = case.nbytes * (2 if case.direction == "both" else 1)
        limit = next((r for r in self.rows if r.case == case and r.method == LIMIT), None)
        speed = nbytes / seconds / 1e9
        share = speed / limit.gb_per_s if limit else None
        self.rows.append(report.Row(case, name, seconds, speed, share, slowdown))
        return self.rows[-1]

    def _time(self, method: Method) -> float:
        """Seconds of a round, the median."""
        for _ in range(2):
            method()
        samples = []
        for _ in range(self.rounds):
            begin = time.perf_counter()
            method()
            samples.append(time.perf_counter() - begin)
        return statistics.median(samples)

    def _busy(self, case: Case, method: Method) -> tuple[float | None, float]:
        """Seconds of a round beside the matmul, and how much slower the matmul ran for it."""
        begin = time.perf_counter()
        method()
        window = max(WINDOW_SECONDS, 4 * (time.perf_counter() - begin))
        self.machine.busy(window, method)
        rounds, ratios = [], []
        for _ in range(3):
            alone, _ = self.machine.busy(window, None)
            beside, done = self.machine.busy(window, method)
            ratios.append(beside / alone - 1)
            rounds.append(beside / done if done else math.inf)
        seconds = statistics.median(rounds)
        return (seconds if math.isfinite(seconds) else None), statistics.median(ratios)


def order(case: Case) -> tuple[int, int, int]:
    """Many pieces first, idle before busy, few pieces last."""
    stage = 1 if case.busy else 0 if case.count >= 1024 or case.nbytes >= 256 * MIB else 2
    return stage, case.size, -case.count


def _ends(chosen: list[Case]) -> tuple[int, int]:
    """The smallest pieces, and the largest of about 1 MiB at most."""
    sizes = sorted({case.size for case in chosen})
    return sizes[0], max(size for size in sizes if size <= MIB)


def _of(chosen: list[Case], size: int) -> list[Case]:
    return [case for case in chosen if case.size == size and case.direction == "store"]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--budget", type=float, default=240, help="seconds for all cases (240)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of an idle case (7)")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="KIB", help="sizes of pieces")
    parser.add_argument("--only", nargs="+", choices=list(METHODS), help="these methods alone")
    parser.add_argument(
        "--results", type=Path, default=results.RESULTS, help="where JSON and PNG go"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON, not the tables")
    parser.add_argument(
        "--dry-run", action="store_true", help="tiny sizes on the CPU: shows that it runs"
    )
    return parser.parse_args()


def main() -> int:
    options = parse()
    if not options.dry_run and not (torch.cuda.is_available() and cuda.is_available()):
        why = cuda.reason() or "torch sees no CUDA device"
        print(f"gpu_paging: skipped: {why}")
        return SKIPPED
    if options.dry_run:
        machine: Machine = DryMachine()
        sizes, counts, most = (KIB, 24 * KIB), (16, 64), 2 * MIB
    else:
        machine = Machine()
        sizes = tuple(KIB * size for size in options.sizes or ()) or SIZES
        counts, most = (16, 256, 1024, 4096), 1 << 30
    chosen = [
        case
        for case in sorted(cases(sizes, counts, most), key=order)
        if not case.busy or case.size in BUSY_SIZES or options.dry_run
    ]
    methods = [name for name in METHODS if not options.only or name in (*options.only, LIMIT)]
    if options.dry_run and not cuda.is_available():
        methods = [name for name in methods if name not in OURS]
    signal.signal(signal.SIGTERM, stop)
    begin = time.perf_counter()
    pinned, decoded, stores = [], [], None
    bench = Bench(machine, chosen, methods, options.rounds)
    if cuda.is_available():
        try:
            for nbytes in (8 * MIB, 16 * MIB) if options.dry_run else (8 * GIB, 64 * GIB):
                pinned.append(beside.pin(nbytes))
                print(f"pinned: {pinned[-1]}", flush=True)
            small, large = (max(_of(chosen, size), key=lambda c: c.count) for size in _ends(chosen))
            places = [(bench.place(case.size), case) for case in (small, large)]
            stores = beside.ten_stores(*places[1], options.rounds)
            decoded = beside.decode(machine, *places, 20 if options.dry_run else 500)
            for one in decoded:
                print(f"decode: {one}", flush=True)
        except Exception as error:
            bench.faults.append(f"beside: {error!r}")
        except Stopped:
            options.budget = 0
    bench.run(options.budget - (time.perf_counter() - begin))
    judged = claims.judge(bench.rows, pinned, decoded, stores)
    figures = {
        **results.facts(),
        "torch": torch.__version__,
        **machine.describe(),
        "layers": LAYERS,
        "rounds": options.rounds,
        "missing": bench.missing,
        "faults": bench.faults,
        "warnings": Ours.warnings(),
        "left_out": bench.left_out,
        "claims": [one.as_json() for one in judged],
        "pinned": [one.as_json() for one in pinned],
        "decode": [one.as_json() for one in decoded],
        "ten_stores": stores,
        "rows": [row.as_json() for row in bench.rows],
    }
    if options.json:
        print(json.dumps(figures))
    else:
        print("\n" + report.table(bench.rows))
        print("\n" + claims.table(judged))
        if options.dry_run:
            print("a dry run: the verdicts are of the machinery alone")
        for name, why in bench.missing.items():
            print(f"without {name}: {why}")
        for said in Ours.warnings():
            print(f"warning: {said}")
        for fault in bench.faults:
            print(f"FAULT: {fault}")
    if bench.left_out:
        print(f"the budget left out {len(bench.left_out)} cases", file=sys.stderr)
    write(figures, bench.rows, results.folders(options.results, options.dry_run))
    if not options.json:
        print(claims.summary(judged, bench.faults))
    return FAILED if bench.faults else 0


def write(figures: dict[str, Any], rows: list[report.Row], folders: list[Path]) -> None:
    """JSON, and a picture beside it."""
    title = f"{figures['device']}, driver {figures['driver']}, {figures['date'][:10]}"
    for path in results.write(figures, "gpu-paging", folders):
        try:
            report.picture(rows, title, path.with_suffix(".png"))
        except ImportError as error:
            print(f"no picture: {error}", file=sys.stderr)
        print(f"wrote {path}")


if __name__ == "__main__":
    sys.exit(main())
