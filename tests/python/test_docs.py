"""The documents say what is there: commands, paths, tables, code."""

import ast
import dataclasses
import json
import re
import shlex
from pathlib import Path

import pytest

from hybrid_pages.vllm import CONNECTOR
from hybrid_pages.vllm.settings import Settings

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benches/README.md",
)
TREES = ("rust", "python", "tests", "examples", "benches", "requirements", ".ci")


def text(name):
    return (ROOT / name).read_text()


def table(name, heading):
    """Rows of the first table under a heading, as lists of cells."""
    below = text(name).partition(f"# {heading}\n")[2]
    rows = re.search(r"\|---.*\n((?:\|.*\n)+)", below).group(1).splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


def literal(path, name):
    """A constant of a module that cannot be imported without an engine."""
    for statement in ast.parse(text(path)).body:
        if isinstance(statement, ast.Assign) and statement.targets[0].id == name:
            return ast.literal_eval(statement.value)
    raise AssertionError(f"{path} has no {name}")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text(document))
    assert [link for link in links if not (ROOT / document).parent.joinpath(link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_that_are_named_exist(document):
    paths = re.findall(rf"`((?:{'|'.join(map(re.escape, TREES))})/[\w./-]*)`", text(document))
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_make_targets_that_are_named_exist(document):
    targets = set(re.findall(r"^([a-z0-9-]+):", text("Makefile"), re.MULTILINE))
    named = re.findall(r"(?:^ {4}|`)make ([a-z][a-z0-9-]*)", text(document), re.MULTILINE)
    assert set(named) <= targets


def test_the_core_depends_on_no_decompressor():
    uses = {}
    for package in text("Cargo.lock").split("[[package]]\n")[1:]:
        name = re.match(r'name = "(.+)"', package).group(1)
        uses.setdefault(name, set()).update(re.findall(r'^ "([^ "]+)', package, re.MULTILINE))

    def below(crate):
        found, ahead = set(), {crate}
        while ahead:
            found |= ahead
            ahead = set().union(*(uses[crate] for crate in ahead)) - found
        return found

    decompressors = {"flate2", "ruzstd"}
    assert decompressors <= below("hybrid-pages-lab")
    assert not decompressors & below("hybrid-pages")


def test_ci_runs_the_test_command_of_the_readme():
    commands = [line for line in text(".ci/run").splitlines() if "make" in line]
    assert commands == ["exec make test"]
    assert re.search(r"^ {4}make test\b", text("README.md"), re.MULTILINE)


def test_the_readme_lists_every_setting_with_its_default():
    rows = {names(row[0])[0]: row[1] for row in table("README.md", "Settings")}
    fields = {field.name: field.default for field in dataclasses.fields(Settings)}
    assert set(rows) == set(fields)
    machine_dependent = {"copy_threads"}
    for name in set(fields) - machine_dependent:
        assert rows[name] == f"`{json.dumps(fields[name])}`"


def test_the_readme_lists_every_metric_with_its_label():
    module = "python/hybrid_pages/vllm/metrics.py"
    metrics = literal(module, "COUNTERS") | literal(module, "GAUGES")
    listed = {
        name: (names(row[1]) or [None])[0]
        for row in table("README.md", "Metrics")
        for name in names(row[0])
    }
    assert listed == {name: label for name, (label, _) in metrics.items()}


def test_the_readme_says_of_the_checkpoint_modes_what_the_bench_found():
    found = {row[0]: row for row in table("benches/README.md", "live_policies.py")}
    modes = ("none", "align", "all", "adaptive (the default)")
    rates, steps = zip(*(found[f"reuse, {mode}"][1:3] for mode in modes), strict=True)
    said = re.search(
        r"modes restored (.+) and (\d+) % .* with (\d+) steps of the engine\n.* took (\d+)\.",
        text("README.md"),
    )
    *others, best, steered, unsteered = said.groups()
    assert [*others[0].split(", "), best] == [f"{float(rate):.0%}"[:-1] for rate in rates]
    assert [*[unsteered] * 3, steered] == list(steps)


def test_the_readme_and_the_policy_document_show_the_same_rates():
    rows = table("docs/policy.md", "Hit rates, R = 3")
    last = [at for at, row in enumerate(rows) if row[0]][1]
    measured = {row[1]: [float(rate) for rate in row[2:]] for row in rows[:last]}
    lines = [line.split() for line in text("README.md").splitlines() if line.startswith("    ")]
    shown = {
        words[0]: [float(rate) for rate in words[1:]]
        for words in lines
        if len(words) == 8 and words[0] in measured
    }
    assert set(shown) == {"page-lru", "align-lru", "junction-lru", "reuse", "bound"}
    assert shown == {name: measured[name] for name in shown}


def test_the_flag_of_the_readme_is_valid():
    (command,) = re.findall(r"^ {4}(vllm serve .*\\\n.*)$", text("README.md"), re.MULTILINE)
    words = shlex.split(command)
    config = json.loads(words[words.index("--kv-transfer-config") + 1])
    assert config["kv_connector"] == CONNECTOR
    assert config["kv_role"] == "kv_both"
    assert Settings.parse(config["kv_connector_extra_config"])


def test_the_code_of_the_readme_runs():
    """What needs torch runs in `tests/batch/test_readme.py`."""
    blocks = re.findall(r"```python\n(.*?)```", text("README.md"), re.DOTALL)
    light = [code for code in blocks if "import torch" not in code]
    assert light
    for code in light:
        exec(compile(code, "README.md", "exec"), {})
