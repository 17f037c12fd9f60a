"""Runs the parts of `make prove` one by one, and writes what they found into a report.

    prove.py [--short] [PART...]      # all parts, or these; exit 1 where one of them fails

The report is `benches/results/prove.json`, and as a table `prove.md` beside it; docs/evidence.md
shows the table. A part that does not run keeps what it last found. Needs Python 3.11. With --short,
parts run without their settings, which takes little time, and the table is only printed.

To add a part, add a line to PARTS. A part is one command or several. Each runs in the root of the
tree, with the part's settings in its environment (those that are set there already win), and with
HYBRID_PAGES_PROVE, the name of a file. It may append lines of JSON to that file:

    {"figures": {"restores": 1000000, "wrong": 0}, "pass": true}

Numbers of the same name add up over all lines, texts replace each other. Of a command that appends
nothing, the tests are counted that pytest or cargo report. A part passes if each of its commands
ends with status 0 and none says `"pass": false`. So each command also runs alone, without a report.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from long import ROOT, counted, described, machine

RESULTS = ROOT / "benches" / "results" / "prove.json"
EVIDENCE = ROOT / "docs" / "evidence.md"
LIGHT = ".venv-light/bin/python"
FULL = ".venv/bin/python"
# Targets of the Makefile that a command's program needs.
NEEDS = {LIGHT: ["venv-light"], FULL: ["venv", "vllm-sources"]}
# The vLLMs that schedulers are tested on, beside the installed one.
SOURCES = sorted(path.stem for path in (ROOT / "requirements").glob("vllm-[0-9]*.txt"))

TIERS = "disk", "remote", "mooncake"


@dataclass(frozen=True)
class Part:
    """Commands that show one thing."""

    shows: str
    """What it shows, in a few words: a row of the report begins with it."""
    commands: Sequence[Sequence[str]]
    settings: Mapping[str, str] = field(default_factory=dict)
    """How much of it runs. The environment's own settings win."""


def cargo(crate: str, test: str, *names: str, profile: str = "--release") -> list[str]:
    """The command that runs tests of a crate: those whose names have one of these words. The test
    ``lib`` is the crate itself."""
    words = ["cargo", "test", "--locked", "--quiet", "-p", crate]
    words += ["--lib"] if test == "lib" else ["--test", test]
    return [*(word for word in [*words, profile] if word), "--", "--nocapture", *names]


def pytest(python: str, *arguments: str) -> list[str]:
    """The command that runs tests of Python, in one process."""
    return [python, "-m", "pytest", "--cases=all", "-q", *arguments]


def on_each_vllm(*arguments: str) -> list[list[str]]:
    """The same tests on the installed vLLM, and on the scheduler of every other."""
    command = pytest(FULL, *arguments)
    others = [["env", f"HYBRID_PAGES_VLLM={ROOT}/.cache/{name}", *command] for name in SOURCES]
    return [command, *others]


RACES = ["--release", "--manifest-path", "tests/rust/races/Cargo.toml", "--target-dir", "target"]
PARTS = {
    "restores": Part(
        "random trees, ends inside blocks, host, disk and store, faults, kills, restarts",
        [cargo("hybrid-pages-remote", "it", "restores::")],
        {"HYBRID_PAGES_RESTORES": "1000000"},
    ),
    "races": Part(
        "the core's threads in many orders, under shuttle; many threads of Python on one cache; a "
        "driver's streams under ThreadSanitizer",
        [
            ["cargo", "test", "--locked", "--quiet", *RACES, "--", "--nocapture"],
            pytest(LIGHT, "tests/python/test_threads.py"),
            cargo("hybrid-pages-cuda", "it", "--ignored", "cuda_tsan::only"),
        ],
        {"HYBRID_PAGES_RACES": "200000", "HYBRID_PAGES_THREADS_SECONDS": "300"},
    ),
    "fuzz": Part(
        "changed files, packs, answers, traces, settings, hints and configurations of models",
        [
            *(
                cargo(f"hybrid-pages-{it}", "lib", "fuzz::")
                for it in ("disk", "remote", "mooncake", "tiers")
            ),
            cargo("hybrid-pages-lab", "it", "fuzz::"),
            pytest(LIGHT, "tests/python/test_changed_inputs.py"),
        ],
        {"HYBRID_PAGES_EXECUTIONS": "10000000"},
    ),
    "days": Part(
        "a month of traffic: what connector, cache, disk and a store's catalog remember stays flat",
        [
            pytest(FULL, "tests/scheduler/test_month.py"),
            cargo("hybrid-pages", "it", "month"),
            cargo("hybrid-pages-disk", "it", "month::"),
            cargo("hybrid-pages-remote", "it", "month::"),
        ],
    ),
    "scheduler": Part(
        "random workloads on vLLM's schedulers, over layers that check every byte",
        on_each_vllm("tests/scheduler/test_fuzz.py", "tests/scheduler/test_small_pools.py"),
        {"HYBRID_PAGES_FUZZ": "128"},
    ),
    "batch": Part(
        "random sequences of batch operations against each row alone",
        [pytest(FULL, "tests/batch/test_equality.py")],
        {"HYBRID_PAGES_FUZZ": "512"},
    ),
    "kernels": Part(
        "random launches of the CUDA kernels against their twins",
        [cargo("hybrid-pages-cuda", "kernels", profile="")],
        {"HYBRID_PAGES_FUZZ": "200000"},
    ),
    "engine": Part(
        "random trees of prompts on real vLLM engines, bit for bit",
        [pytest(FULL, "tests/engine/test_trees.py")],
        {"HYBRID_PAGES_TREES": "16"},
    ),
    "sizes": Part(
        "what calls of the cache and of each tier allocate, at long prompts and large stores",
        [
            cargo("hybrid-pages", "sizes"),
            *(cargo(f"hybrid-pages-{tier}", "lib", "sizes") for tier in TIERS),
        ],
        {"HYBRID_PAGES_SIZES": "full"},
    ),
    "soak": Part(
        "mixed traffic on real engines, tiers that fail on and off, restarts and kills; no leaks",
        [pytest(FULL, "-n0", "tests/engine/test_soak.py")],
        {"HYBRID_PAGES_SOAK": "30"},
    ),
    "real": Part(
        "the geometry of Qwen3.5-0.8B on a real engine, restored bit for bit",
        [[FULL, "benches/real_size.py"]],
    ),
    "kills": Part(
        "a process that is killed while it writes to a disk",
        [cargo("hybrid-pages-disk", "disk_crash", "kills", profile="")],
        {"HYBRID_PAGES_KILLS": "200"},
    ),
}


def run(command: Sequence[str], settings: Mapping[str, str]) -> tuple[int, str]:
    """Runs a command, shows what it prints, and gives its status and that."""
    lines = []
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**settings, **os.environ, "HYBRID_PAGES_PROVE": settings["HYBRID_PAGES_PROVE"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as running:
        for line in running.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    return running.returncode, "".join(lines)


def merged(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of a part: numbers of the same name add up."""
    figures: dict[str, Any] = {}
    for each in found:
        for name, value in each.get("figures", {}).items():
            both = isinstance(value, int | float) and name in figures
            figures[name] = figures[name] + value if both else value
    return figures


def proved(part: Part, short: bool = False) -> dict[str, Any]:
    """What the commands of a part find. One that fails does not keep the next from running.

    short: whether they run without settings, and so do little.
    """
    found: list[Mapping[str, Any]] = []
    given = {name: os.environ[name] for name in part.settings if name in os.environ}
    passed = True
    began = time.monotonic()
    for command in part.commands:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report"
            settings = {**({} if short else part.settings), "HYBRID_PAGES_PROVE": str(report)}
            status, text = run(command, settings)
            lines = report.read_text().splitlines() if report.exists() else []
        told = [json.loads(line) for line in lines]
        passed &= status == 0 and all(each.get("pass", True) for each in told)
        tests = {f"tests {outcome}": count for outcome, count in counted(text).items()}
        found += told or [{"figures": tests}]
    return {
        "date": datetime.date.today().isoformat(),
        "commit": described(),
        "machine": machine(),
        "seconds": round(time.monotonic() - began),
        "pass": passed,
        "figures": merged(found),
        "settings": {} if short else {**part.settings, **given},
    }


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The report as a table, in the order of PARTS. A part that never ran has no row.

    Figures with a colon in their name are details, of which the table shows what was lost and why;
    the file of results has all. Settings say how much ran.
    """
    lines = ["| part | found | passed | when |", "|---|---|---|---|"]
    for name, part in PARTS.items():
        if name not in results:
            continue
        result = results[name]
        told = [(it, value) for it, value in result["figures"].items() if ": " not in it]
        settings = [f"`{it}={value}`" for it, value in result.get("settings", {}).items()]
        figures = ", ".join([*(f"{_number(value)} {it}" for it, value in told), *settings])
        figures = ". ".join([figures, *_losses(result["figures"])])
        minutes = result["seconds"] / 60
        took = f"{minutes:.0f} min" if minutes >= 2 else f"{minutes * 60:.0f} s" if minutes else ""
        when = ", ".join(filter(None, [result["date"], result["commit"], took]))
        passed = "yes" if result["pass"] else "**no**"
        lines.append(f"| `{name}`: {part.shows} | {figures} | {passed} | {when} |")
    return "\n".join(lines)


def _losses(figures: Mapping[str, Any]) -> list[str]:
    """Of each place that something was lost from, how often by which cause, the most first."""
    lost = [it for it in figures.items() if it[0].startswith("lost from ") and ": " in it[0]]
    places: dict[str, list[str]] = {}
    for name, count in sorted(lost, key=lambda it: -it[1]):
        place, _, cause = name.partition(": ")
        places.setdefault(place.capitalize(), []).append(f"{_number(count)} {cause}")
    return [f"{place}: {', '.join(causes)}" for place, causes in sorted(places.items())]


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def shown(page: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """A page with the table between its marks."""
    before, mark, rest = page.partition("<!-- prove -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not mark or not end:
        raise ValueError("expected the lines <!-- prove --> and <!-- end --> in the page")
    return f"{before}{mark}\n{table(results)}\n\n{end}{after}"


def write(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes the report, and shows it where documents show it."""
    ordered = {name: results[name] for name in PARTS if name in results}
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
    title = "# What `make prove` found\n\nWritten by tools/make/prove.py.\n\n"
    RESULTS.with_suffix(".md").write_text(f"{title}{table(ordered)}\n")
    EVIDENCE.write_text(shown(EVIDENCE.read_text(), ordered))


def main(names: Sequence[str]) -> int:
    """Runs the parts of these names, or all of them, however the first ones end."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--short", action="store_true", help="a little of each, without a report")
    options = parser.parse_args(names)
    chosen = options.parts or list(PARTS)
    if unknown := [name for name in chosen if name not in PARTS]:
        print(f"unknown: {' '.join(unknown)}. The parts are {' '.join(PARTS)}.", file=sys.stderr)
        return 2
    programs = {word for name in chosen for command in PARTS[name].commands for word in command}
    for target in [target for word in programs for target in NEEDS.get(word, [])]:
        if subprocess.run(["make", target], cwd=ROOT).returncode:
            return 1
    found: dict[str, Any] = {}
    for name in chosen:
        print(f"==> {name}: {PARTS[name].shows}", flush=True)
        found[name] = proved(PARTS[name], options.short)
        if not options.short:
            results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            write({**results, name: found[name]})
    print(table(found))
    return int(not all(result["pass"] for result in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
