"""Releases: one version everywhere, current licences, workflows that call what runs anywhere."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import licences
import page
import version

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))


@pytest.fixture
def tree(tmp_path):
    """The files that state a version, as of a release of 0.1.0."""
    for name in ("Cargo.toml", "Cargo.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    text = (ROOT / "CHANGELOG.md").read_text()
    (tmp_path / "CHANGELOG.md").write_text(
        re.sub(r"^## \[Unreleased\]$", "## [0.1.0] - 2026-12-01", text, flags=re.MULTILINE)
    )
    manifest = tmp_path / "Cargo.toml"
    manifest.write_text(
        re.sub(r'^version = ".*"', 'version = "0.1.0"', manifest.read_text(), flags=re.M)
    )
    lock = tmp_path / "Cargo.lock"
    lock.write_text(
        re.sub(r'(name = "hybrid-pages[\w-]*"\nversion = )".*"', r'\1"0.1.0"', lock.read_text())
    )
    return tmp_path


def change(path, old, new):
    text = path.read_text()
    assert text.count(old) >= 1, f"{path.name} does not have {old!r}"
    path.write_text(text.replace(old, new, 1))


def test_every_place_states_the_same_version():
    assert version.problems() == []


def test_a_release_that_agrees_with_its_tag_is_passed(tree):
    assert version.problems(tree) == version.problems(tree, "v0.1.0") == []


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            "Cargo.toml",
            '[workspace.package]\nversion = "0.1.0"',
            '[workspace.package]\nversion = "0.1.1"',
            "workspace.package]: expected 0.1.0, as in Cargo.toml, found 0.1.1",
        ),
        (
            "Cargo.lock",
            'name = "hybrid-pages-lab"\nversion = "0.1.0"',
            'name = "hybrid-pages-lab"\nversion = "0.0.9"',
            "Cargo.lock hybrid-pages-lab: expected 0.1.0, as in Cargo.toml, found 0.0.9",
        ),
        ("pyproject.toml", 'dynamic = ["version"]', "dynamic = []", "expected a dynamic version"),
        (
            "CHANGELOG.md",
            "## [0.1.0]",
            "## [0.2.0]",
            "expected 0.1.0 first in a release, found 0.2.0",
        ),
        ("CHANGELOG.md", " - 2026-12-01", "", "expected `## [0.1.0] - YYYY-MM-DD`"),
        ("CHANGELOG.md", "## [0.1.0] - 2026-12-01", "## [Unreleased]", "found Unreleased"),
        ("CHANGELOG.md", "## [0.1.0] - 2026-12-01", "", "expected a heading such as"),
    ],
)
def test_a_place_that_says_something_else_is_named(tree, file, old, new, said):
    change(tree / file, old, new)
    assert said in "\n".join(version.problems(tree, "v0.1.0"))


def test_a_wrong_tag_is_named(tree):
    assert version.problems(tree, "v0.1.1") == [
        "the tag: expected v0.1.0, as in Cargo.toml, found v0.1.1"
    ]


def test_after_a_release_the_next_change_moves_the_version(tree):
    change(tree / "CHANGELOG.md", "## [0.1.0]", "## [Unreleased]\n\n## [0.1.0]")
    assert version.problems(tree) == [
        "Cargo.toml: expected a version after 0.1.0, which CHANGELOG.md has"
    ]


def test_the_notes_are_the_section_of_the_version(tree):
    change(tree / "CHANGELOG.md", "## [0.1.0]", "## [0.2.0] - 2027-01-01\n\nLater.\n\n## [0.1.0]")
    said = version.notes(tree)
    assert "### Added" in said
    assert "Later" not in said


def test_the_check_of_the_version_needs_no_package():
    words = [sys.executable, "-I", "-S", str(ROOT / "release" / "version.py"), "check"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_pins_the_hash_of_every_distribution(tmp_path):
    for name in ("hybrid_pages-1.2.3rc1-x.whl", "hybrid_pages-1.2.3rc1.tar.gz"):
        (tmp_path / name).write_bytes(name.encode())
    said = page.requirements(tmp_path, "1.2.3-rc.1")
    assert said.startswith("hybrid-pages==1.2.3rc1 \\\n    --hash=sha256:")
    assert said.count("--hash=sha256:") == 2
    with pytest.raises(
        SystemExit, match=r"expected distributions of 1\.2\.4 .* found hybrid_pages"
    ):
        page.requirements(tmp_path, "1.2.4")
    with pytest.raises(SystemExit, match="found none"):
        page.requirements(tmp_path / "empty", "1.2.3")


def test_the_page_shows_whole_paragraphs_and_links_that_lead_somewhere():
    text = (
        "### Added\n\n- **One** ([how](docs/a.md#b)),\n  and [that](https://x.y).\n- Two:\n  `c`."
    )
    at = "https://github.com/o/n"
    assert page.shown(text, "1.2.3", at) == (
        f"### Added\n\n- **One** ([how]({at}/blob/v1.2.3/docs/a.md#b)), and [that](https://x.y).\n"
        "- Two: `c`."
    )
    assert "](docs/a.md#b)" in page.shown(text, "1.2.3", "")


needs_cargo = pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo is not installed")


@needs_cargo
def test_the_licences_are_those_of_the_crates_in_the_lock_file():
    found = licences.crates()
    assert len(found) > 100
    assert {"object_store", "pyo3", "ring"} <= {crate.name for crate in found}
    text = (ROOT / "THIRD-PARTY-LICENSES.txt").read_text(encoding="utf-8")
    current = text == licences.document(found)
    assert current, "expected what `make licences` writes"


def test_licences_are_of_the_machines_that_have_wheels():
    targets = re.search(r"^WHEEL_TARGETS := (.+)$", (ROOT / "Makefile").read_text(), re.M)[1]
    assert " ".join(licences.TARGETS) == targets


def test_equal_licences_are_told_once_and_a_crate_without_one_is_refused(tmp_path):
    crates = []
    for name, text in (("one", "Be  kind.\n"), ("two", "Be\nkind."), ("three", "Be fair.")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "LICENSE-MIT").write_text(text)
        crates.append(licences.Crate(name, "1.0.0", "MIT", tmp_path / name))
    said = licences.document(crates)
    assert "    two 1.0.0: MIT\n" in said
    assert said.count("Of one 1.0.0, two 1.0.0:\n\nBe  kind.\n") == 1
    assert "Of three 1.0.0:\n\nBe fair.\n" in said
    (tmp_path / "three" / "LICENSE-MIT").rename(tmp_path / "three" / "README")
    with pytest.raises(SystemExit, match=r"expected a licence file in three 1\.0\.0, found none"):
        licences.document(crates)


def steps():
    for path in WORKFLOWS:
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            yield from job["steps"]


def test_workflows_call_targets_of_make():
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = [step["run"] for step in steps() if "run" in step]
    called = [line.split()[1:] for line in lines if line.startswith("make ")]
    assert {word for words in called for word in words if "=" not in word} <= targets
    others = {" ".join(line.split()[:3]) for line in lines if not line.startswith("make ")}
    assert others == {"rustup toolchain install", "gh release create"}


def test_workflows_use_actions_by_their_commits():
    used = [line for path in WORKFLOWS for line in path.read_text().splitlines() if "uses:" in line]
    assert used
    pinned = re.compile(r"\s*(- )?uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert [line for line in used if not pinned.fullmatch(line)] == []


def test_workflows_build_with_the_oldest_rust_that_is_allowed():
    needed = re.search(r'rust-version = "(.+)"', (ROOT / "Cargo.toml").read_text())[1]
    toolchain = re.search(r'channel = "(.+)"', (ROOT / "rust-toolchain.toml").read_text())[1]
    assert toolchain.rpartition(".")[0] == needed
    assert not any("RUSTUP_TOOLCHAIN" in path.read_text() for path in WORKFLOWS)


def test_jobs_of_ci_run_every_suite_side_by_side():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    assert not any("needs" in job for job in jobs.values())
    lines = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
    made = {word for line in lines if line.startswith("make ") for word in line.split()[1:]}
    suites = re.search(r"^test: (.+?) ##", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert made == set(suites.split())


def test_what_is_published_has_been_tested_and_built_on_every_machine():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert set(jobs["publish"]["needs"]) == {"test", "build"}
    machines = {row["machine"] for row in jobs["build"]["strategy"]["matrix"]["include"]}
    targets = re.search(r"^WHEEL_TARGETS := (.+)$", (ROOT / "Makefile").read_text(), re.M)[1]
    assert machines == {target.partition("-")[0] for target in targets.split()}
    assert jobs["publish"]["environment"]["name"] == "pypi"
    tokens = [name for name, job in jobs.items() if "id-token" in job["permissions"]]
    assert tokens == ["publish"]


def test_the_image_gets_what_is_published_and_nothing_else():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules == ["*", "!dist/*.whl", "!dist/requirements.txt"]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_forms_ask_for_what_is_installed(form):
    fields = {part["id"]: part for part in yaml.safe_load(form.read_text())["body"] if "id" in part}
    assert "`hybrid-pages info --json`" in fields["info"]["attributes"]["label"]


def test_a_bug_needs_what_is_installed():
    fields = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text())["body"]
    (info,) = [part for part in fields if part.get("id") == "info"]
    assert info["validations"]["required"] is True
