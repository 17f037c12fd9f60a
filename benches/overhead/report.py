"""The tables a person reads and the JSON a program reads."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from overhead.cold import Cold, where_it_goes, whole_runs
from overhead.cold import as_json as cold_as_json
from overhead.samples import (
    COLD,
    LOCAL,
    NONE,
    OURS,
    PHASES,
    RESTORED,
    RIVAL,
    STEP_KINDS,
    Results,
    paired,
    percentile,
    spread,
)


def print_tables(
    results: Results, cold: Cold | None, variants: Sequence[str], cases: Sequence[str]
) -> None:
    print_table("time to first token, ms", _first_token(results, variants, cases))
    print_table(
        "restored: tokens that came from the connector", _restored(results, variants, cases)
    )
    print_table("scheduler: schedule + update_from_output, us per step", _steps(results, variants))
    print_table(
        "connector: all calls of the scheduler into it, us per run",
        _connector(results, variants, cases),
    )
    print_table(
        "connector: the costliest calls, us per run (mean)", _calls(results, variants, cases)
    )
    if cold is not None:
        print_table("cold runs, whole, ms: median (quartiles)", whole_runs(cold, variants, cases))
        for case in cases:
            print_table("a cold run's time, us: medians", where_it_goes(cold, variants, case))
    print(
        f"\n{results.compared} pairs of runs of one prompt took the same steps; largest difference "
        f"of log-probabilities: {results.max_logprob_difference:g}"
    )
    for problem in results.problems:
        print(f"PROBLEM {problem}")


def _first_token(
    results: Results, variants: Sequence[str], cases: Sequence[str]
) -> Iterator[list[str]]:
    yield ["prompt", "phase", *variants, "ours / vLLM's"]
    for case in cases:
        cells = {(v, p): results.samples[v, case, p].ttft_ms for v in variants for p in PHASES}
        for phase in PHASES:
            medians = [f"{statistics.median(cells[v, phase]):.1f}" for v in variants]
            yield [case, phase, *medians, _against(variants, cells, phase)]
        speedups = [
            f"{statistics.median(cells[v, COLD]) / statistics.median(cells[v, RESTORED]):.1f}x"
            for v in variants
        ]
        yield ["", "cold / restored", *speedups, ""]


def _against(
    variants: Sequence[str], cells: Mapping[tuple[str, str], Sequence[float]], phase: str
) -> str:
    if OURS not in variants or RIVAL not in variants:
        return "-"
    return paired(cells[OURS, phase], cells[RIVAL, phase])


def _restored(
    results: Results, variants: Sequence[str], cases: Sequence[str]
) -> Iterator[list[str]]:
    yield ["prompt", *variants, "vLLM's local hit"]
    for case in cases:
        external = [spread(results.samples[v, case, RESTORED].external) for v in variants]
        yield [case, *external, spread(results.samples[variants[0], case, LOCAL].cached)]


def _steps(results: Results, variants: Sequence[str]) -> Iterator[list[str]]:
    yield ["step", "variant", "count", "median", "p99", "connector median", "connector p99"]
    for kind in STEP_KINDS:
        for variant in variants:
            if times := results.steps.get((variant, kind)):
                cells = [
                    f"{figure(column):.0f}"
                    for column in zip(*times, strict=True)
                    for figure in (statistics.median, lambda c: percentile(c, 0.99))
                ]
                yield [kind, variant, str(len(times)), *cells]


def _connector(
    results: Results, variants: Sequence[str], cases: Sequence[str]
) -> Iterator[list[str]]:
    both = [v for v in variants if v != NONE]
    yield ["prompt", "phase", *both, "ours / vLLM's", "whole steps: ours / vLLM's"]
    for case in cases:
        inside = {(v, p): results.samples[v, case, p].connector_us for v in both for p in PHASES}
        whole = {(v, p): results.samples[v, case, p].step_us for v in both for p in PHASES}
        for phase in PHASES:
            medians = [f"{statistics.median(inside[v, phase]):.0f}" for v in both]
            ratios = [_against(both, inside, phase), _against(both, whole, phase)]
            yield [case, phase, *medians, *ratios]


def _calls(results: Results, variants: Sequence[str], cases: Sequence[str]) -> Iterator[list[str]]:
    both = [v for v in variants if v != NONE]
    yield ["method", *both]
    totals = {
        method: [results.calls.get((v, method), 0.0) for v in both] for _, method in results.calls
    }
    runs = sum(len(results.samples[variants[0], c, p].ttft_ms) for c in cases for p in PHASES)
    for method, figures in sorted(totals.items(), key=lambda item: -max(item[1])):
        if max(figures) >= 0.01 * max(map(max, totals.values())):
            yield [method, *(f"{total / runs:.0f}" for total in figures)]


def print_table(title: str, rows: Iterator[list[str]]) -> None:
    table = list(rows)
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    print(f"\n{title}")
    for number, row in enumerate(table):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  " + "  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())
        if number == 0:
            print("  " + "-" * (sum(widths) + 2 * (len(widths) - 1)))


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """One line a sample, so that two results compare line by line."""
    lines = []
    for key, value in content.items():
        text = json.dumps(value)
        if isinstance(value, list) and value:
            text = "[\n  " + ",\n  ".join(json.dumps(item) for item in value) + "\n ]"
        lines.append(f" {json.dumps(key)}: {text}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def as_json(
    results: Results, cold: Cold | None, options: Mapping[str, Any], engine: Mapping[str, Any]
) -> dict[str, Any]:
    """Every sample of every run; of the steps, their distribution."""
    return {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "python": platform.python_version(),
        "engine": dict(engine),
        "options": dict(options),
        "runs": [
            {"variant": variant, "prompt": case, "phase": phase}
            | {name: [round(value, 2) for value in values] for name, values in vars(found).items()}
            for (variant, case, phase), found in results.samples.items()
        ],
        "steps": [
            {
                "variant": variant,
                "kind": kind,
                "count": len(times),
                "scheduler_us": _distribution([whole for whole, _ in times]),
                "connector_us": _distribution([inside for _, inside in times]),
            }
            for (variant, kind), times in results.steps.items()
        ],
        "calls_us": [
            {"variant": variant, "method": method, "total": round(total, 1)}
            for (variant, method), total in results.calls.items()
        ],
        "cold": [] if cold is None else cold_as_json(cold),
        "compared": results.compared,
        "max_logprob_difference": results.max_logprob_difference,
        "problems": results.problems,
    }


def _distribution(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 2),
        "p99": round(percentile(values, 0.99), 2),
        "mean": round(statistics.fmean(values), 2),
    }


def machine() -> dict[str, Any]:
    """The machine's class, not the machine."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {"cpu": names[0] if names else platform.machine(), "cores": os.cpu_count()}
