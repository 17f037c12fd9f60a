"""`make gpu-check` with tracked files, a wheel and a Python: no Rust, network or repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "python"))

from mock_driver import build  # noqa: E402 - beside tests of Python alone

# All that the check may call, beside Python.
TOOLS = ["bash", "dirname", "grep", "head", "ls", "mkdir", "mktemp", "rm", "tail", "tee", "timeout"]
TOOLS += ["uname"]

# The environment moves elsewhere, and then there is nothing where it was.
ALONE = """
mount --bind "$1" "$2"
shift 2
while [ "$1" != -- ]; do mount -t tmpfs none "$1"; shift; done
shift
PATH=$1
shift
exec "$@"
"""


def hides(*command):
    """Whether this machine lets us take files away from a process."""
    words = ["unshare", "--map-root-user", "--mount", "--net", *command]
    return shutil.which("unshare") and not subprocess.run(words, capture_output=True).returncode


def copy(tmp_path):
    """The tracked files, and the wheel in dist/."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("expected a checkout with git, which lists the files that are tracked")
    words = ["git", "ls-files", "-z"]
    tracked = subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "dist", tmp_path / "dist")
    return next((tmp_path / "dist").glob("*.whl"))


@pytest.mark.parametrize(
    "environment", [sys.prefix, pytest.param(str(ROOT / ".venv"), marks=pytest.mark.long)]
)
def test_the_tracked_files_and_the_wheel_are_enough(environment, tmp_path):
    if not Path(environment, "bin", "python").exists():
        pytest.skip(f"expected {environment}, which make venv makes")
    wheel = copy(tmp_path / "checkout")
    library = shutil.copy(build(), tmp_path)
    path, moved = tmp_path / "path", tmp_path / "environment"
    for folder in (path, moved):
        folder.mkdir()
    for tool in TOOLS:
        (path / tool).symlink_to(shutil.which(tool))
    command = [path / "bash", tmp_path / "checkout" / "tests" / "gpu" / "check.sh"]
    python = Path(environment, "bin", "python")
    if hides("true"):
        hidden = {str(ROOT), str(Path(environment).parent)}
        words = ["unshare", "--map-root-user", "--mount", "--net", "sh", "-ec", ALONE, "sh"]
        command = [*words, environment, moved, *hidden, "--", path, *command]
        python = moved / "bin" / "python"
    done = subprocess.run(
        command,
        env={
            "PATH": os.environ["PATH"] if "unshare" in command else str(path),
            "HOME": str(tmp_path),
            "OUT": str(tmp_path / "out"),
            "PYTHON": str(python),
            "WHEEL": str(wheel),
            "HYBRID_PAGES_LIBCUDA": str(library),
            "GPU_CHECK_DRY": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "out" / "gpu-check.log").read_text() == done.stdout
    summary = done.stdout.partition("==> GPU checks, ")[2].splitlines()
    for stage in ("tests", "first-hour", "odd-shapes"):
        assert any(line.startswith(f"    {stage}: ") for line in summary), done.stdout
        assert not any(line.startswith(f"    {stage}: skipped") for line in summary), done.stdout
    # What the light environment lacks is said at the start, and skipped.
    if environment == sys.prefix:
        lacks = "benchmark: No module named 'torch'"
        assert f"==> will be skipped: {lacks}\n" in done.stdout
        assert f"    {lacks.replace(': ', ': skipped: ')}" in summary
