"""The documents agree with the code: commands, paths, links, tables, figures, Python blocks."""

import ast
import dataclasses
import json
import re
import shlex
from pathlib import Path

import pytest
import tomllib

from hybrid_pages._core import POLICIES
from hybrid_pages.vllm import CONNECTOR
from hybrid_pages.vllm.config.settings import Settings

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "benches/*.md", "examples/*.md", "tests/gpu/*.md")
    for path in ROOT.glob(pattern)
)
TREES = ("rust", "python", "tests", "examples", "benches", "docs", "requirements", "csrc", ".ci")


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


def anchors(path):
    """The headings of a document, as links name them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(document, written):
    """Relative links of a document that lead to no file, or to no heading of one."""
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", written):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / document).parent / name if name else ROOT / document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    assert dead_links(document, text(document)) == []


def test_a_dead_link_is_found():
    written = "[a](docs/none.md) [b](docs/vllm.md#settings) [c](docs/vllm.md#none) [d](#none)"
    assert dead_links("README.md", written) == ["docs/none.md", "docs/vllm.md#none", "#none"]


def test_every_document_can_be_reached_from_the_readme():
    reached, ahead = set(), {"README.md"}
    while ahead:
        reached |= ahead
        found = set()
        for document in ahead:
            for link in re.findall(r"\]\(([^)#:\s]+\.md)(?:#[^)]*)?\)", text(document)):
                path = ((ROOT / document).parent / link).resolve()
                found.add(str(path.relative_to(ROOT.resolve())))
        ahead = found - reached
    assert reached == set(DOCUMENTS)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_prose_is_wrapped(document):
    prose = re.sub(r"```.*?```", "", text(document), flags=re.DOTALL).splitlines()
    free = [line for line in prose if not line.startswith(("|", "    ", "#", "!["))]
    assert [line for line in free if len(line) > 120 and " " in line.strip("- ")] == []


def test_the_readme_is_short():
    assert len(text("README.md").splitlines()) <= 120
    assert len(text("README.md").encode()) <= 10 * 1024


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_that_are_named_exist(document):
    paths = re.findall(rf"`((?:{'|'.join(map(re.escape, TREES))})/[\w./-]*)`", text(document))
    assert [path for path in paths if not (ROOT / path).exists()] == []
    # Beside a folder, files of tests are named alone.
    alone = set(re.findall(r"`(\w+\.rs|(?:test|planted)_\w+\.py)`", text(document)))
    assert alone <= {path.name for path in (ROOT / "tests").rglob("*.*")}


def is_long(path):
    """Whether `make test` runs nothing of a file or a folder of tests."""
    if path.split("/")[1] in {"engine_long", "mooncake", "vllm_mlx"}:
        return True
    if not re.search(r"/test_\w+\.py$", path):
        return False
    tests = [each for each in ast.parse(text(path)).body if isinstance(each, ast.FunctionDef)]
    marks = [map(ast.unparse, test.decorator_list) for test in tests if test.name[:5] == "test_"]
    whole = "\npytestmark = pytest.mark.long\n" in text(path)
    return whole or all("pytest.mark.long" in each for each in marks)


def test_what_make_test_does_not_run_is_said_to_run_elsewhere():
    assert is_long("tests/engine/test_soak_styles.py") and is_long("tests/engine/test_nodes.py")
    assert not is_long("tests/engine/test_disk.py") and not is_long("tests/engine/test_soak.py")
    for sentence in re.split(r"(?<=\.)\s+|\n(?=[|-])", text("docs/evidence.md")):
        elsewhere = re.search(r"`make\s+(test-|prove)", sentence)
        for path in re.findall(r"`(tests/[\w./]+)`", sentence):
            assert elsewhere or not is_long(path), path


def test_parts_of_make_prove_without_a_short_form_are_named(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools/make")
    import prove

    without = {
        name
        for name, part in prove.PARTS.items()
        for word in (word for command in part.commands for word in command)
        if word == "--ignored"
        or word.startswith("benches/")
        or (word.startswith("tests/engine/") and is_long(word))
    }
    evidence = " ".join(text("docs/evidence.md").split())
    said = re.search(r"has a short form of each, but not of (.+?)\.", evidence).group(1)
    assert set(re.findall(r"`(\w+)`", said)) == without


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

    # Tests of the core run the lab's policies, too: those are no dependencies of the core itself.
    uses["hybrid-pages"] &= set(tomllib.loads(text("Cargo.toml"))["dependencies"])

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


def test_every_setting_is_listed_with_its_default():
    rows = {names(row[0])[0]: row[1] for row in table("docs/vllm.md", "Settings")}
    fields = {field.name: field.default for field in dataclasses.fields(Settings)}
    assert set(rows) == set(fields)
    machine_dependent = {"copy_threads"}
    for name in set(fields) - machine_dependent:
        assert rows[name] == f"`{json.dumps(fields[name])}`"


def test_every_policy_is_listed():
    settings = {names(row[0])[0]: names(row[2]) for row in table("docs/vllm.md", "Settings")}
    assert {name.strip('"') for name in settings["policy"]} == set(POLICIES)
    rows = table("docs/policy.md", "How the policies compare")
    assert {name for row in rows for name in names(row[0])} == set(POLICIES)


def test_every_metric_is_listed_with_its_label():
    module = "python/hybrid_pages/vllm/metrics.py"
    metrics = literal(module, "COUNTERS") | literal(module, "GAUGES")
    listed = {
        name: (names(row[1]) or [None])[0]
        for row in table("docs/metrics.md", "Metrics")
        for name in names(row[0])
    }
    assert listed == {name: label for name, (label, _) in metrics.items()}


@pytest.mark.parametrize(
    ("metric", "heading"),
    [
        ("missing_states", "Pages, but no state to resume from"),
        ("skipped_loads", "Found, but not loaded"),
        ("skipped_entries", "Computed, but not stored"),
        ("skipped_tails", "Ends that were not kept"),
    ],
)
def test_every_reason_of_a_miss_has_its_remedy(metric, heading):
    rows = table("docs/metrics.md", "Metrics")
    (meaning,) = (row[2] for row in rows if metric in names(row[0]))
    remedies = [names(row[0])[0] for row in table("docs/troubleshooting.md", heading)]
    assert remedies == names(meaning)


def test_the_families_that_are_said_to_run_on_an_engine_do():
    module = "tests/engine/test_families.py"
    run = {model for kind in ("HYBRID", "WINDOWS", "ATTENTION") for model in literal(module, kind)}
    rows = table("docs/families.md", "Model families")
    said = [(row[3], names(row[4])) for row in rows]
    assert {how for how, _ in said} == {"engine", "simulation", "reading"}
    assert {model for how, models in said if how == "engine" for model in models} == run
    assert [bool(models) for _, models in said] == [how == "engine" for how, _ in said]


def test_the_checkpoint_modes_are_as_the_bench_found_them():
    found = {row[0]: row for row in table("benches/README.md", "live_policies.py")}
    modes = ("none", "align", "all", "adaptive (the default)")
    rates, steps = zip(*(found[f"reuse, {mode}"][1:3] for mode in modes), strict=True)
    said = re.search(
        r"modes restored (.+) and (\d+) % .* with (\d+) steps of the engine .* with (\d+)\.",
        text("docs/vllm.md").replace("\n", " "),
    )
    *others, best, steered, unsteered = said.groups()
    assert [*others[0].split(", "), best] == [f"{float(rate):.0%}"[:-1] for rate in rates]
    assert [*[unsteered] * 3, steered] == list(steps)


def test_the_figures_of_the_readme_stand_in_the_documents_that_it_links():
    rows = table("README.md", "Results")
    assert rows
    for what, ours, _, theirs, ratio in rows:
        (link,) = re.findall(r"\]\(([^)#]+)#", what)
        figures = {ours, theirs, ratio.partition(" ")[0]} - {""}
        measured = set(re.findall(r"(?<![\w.])[\d.,]*\d", text(link)))
        assert figures <= measured, what


def test_both_documents_about_policies_show_the_same_rates():
    rows = table("docs/policy.md", "Hit rates, R = 3")
    last = [at for at, row in enumerate(rows) if row[0]][1]
    measured = {row[1]: [float(rate) for rate in row[2:]] for row in rows[:last]}
    lines = [
        line.split() for line in text("docs/replay.md").splitlines() if line.startswith("    ")
    ]
    shown = {
        words[0]: [float(rate) for rate in words[1:]]
        for words in lines
        if len(words) == 8 and words[0] in measured
    }
    assert set(shown) == {"page-lru", "align-lru", "junction-lru", "reuse", "bound"}
    assert shown == {name: measured[name] for name in shown}


@pytest.mark.parametrize("document", ["README.md", "docs/vllm.md"])
def test_the_flag_is_valid(document):
    (command,) = re.findall(r"^ {4}(vllm serve .*\\\n.*)$", text(document), re.MULTILINE)
    words = shlex.split(command)
    config = json.loads(words[words.index("--kv-transfer-config") + 1])
    assert config["kv_connector"] == CONNECTOR
    assert config["kv_role"] == "kv_both"
    assert Settings.parse(config["kv_connector_extra_config"])


def test_every_known_report_has_its_test():
    rows = re.findall(
        r"^\| (\S+#\d+) \| .+ \| `(\S+)`: `(\w+)`(?:, in `make test-long`)? \|$",
        text("docs/evidence.md"),
        re.MULTILINE,
    )
    assert len(rows) >= 10
    for report, path, test in rows:
        above, found, _ = re.split(
            rf"^((?:def|fn) {test}\()", (ROOT / path).read_text(), flags=re.M
        )
        assert found and f" Known report: {report}." in above.rpartition("\n\n")[2], report
