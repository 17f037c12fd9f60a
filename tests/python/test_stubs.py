"""The type stubs of the binding say what the binding has."""

import subprocess
import sys

import pytest

pytest.importorskip("mypy.stubtest", reason="mypy is not installed")


def test_stubs_match_the_binding(tmp_path):
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\ncheck_untyped_defs = True\n")
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy.stubtest",
            "--mypy-config-file",
            str(config),
            "hybrid_pages._core",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stdout + result.stderr
