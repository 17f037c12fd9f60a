"""The wheel and the source distribution in dist/, each installed into an empty environment.

`make check-wheel` builds them first.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import page

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent

PROBE = """
import sys
import hybrid_pages
from importlib.metadata import distributions

assert "site-packages" in hybrid_pages.__file__, hybrid_pages.__file__
assert not {"torch", "vllm", "numpy"} & set(sys.modules)
print(hybrid_pages.__version__, *sorted(d.metadata["Name"] for d in distributions()))
"""


def built(pattern):
    """The one distribution that fits the pattern."""
    (path,) = (ROOT / "dist").glob(pattern)
    return path


def installed(path, environment):
    """Installs a distribution into a new environment and returns its interpreter."""
    settings = os.environ | {
        "UV_BUILD_CONSTRAINT": str(ROOT / "requirements" / "build.txt"),
        # Crates that were compiled for the tests are not compiled again. The wheel is what has the
        # profile of a release, and what is installed from there.
        "CARGO_TARGET_DIR": str(ROOT / "target"),
        "MATURIN_PEP517_ARGS": "--profile release",
    }
    python = environment / "bin" / "python"
    for words in (
        ["venv", "--quiet", "--python", sys.executable, environment],
        ["pip", "install", "--quiet", "--python", python, path],
    ):
        subprocess.run(
            [BIN / "uv", *words],
            check=True,
            cwd=environment.parent,
            env=settings,
        )
    return python


@pytest.mark.parametrize("pattern", ["*.whl", pytest.param("*.tar.gz", marks=pytest.mark.long)])
def test_installing_into_an_empty_environment_needs_nothing_else(pattern, tmp_path):
    python = installed(built(pattern), tmp_path / "environment")
    probe = subprocess.run(
        [python, "-I", "-c", PROBE], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    version, *names = probe.stdout.split()
    assert version in built(pattern).name
    assert names == ["hybrid-pages"]
    command = subprocess.run(
        [python.parent / "hybrid-pages", "--version"], check=True, capture_output=True, text=True
    )
    assert command.stdout == f"hybrid-pages {version}\n"


def test_the_image_would_install_the_wheel_by_its_hash_alone(tmp_path):
    """As the Dockerfile does, into an empty environment and without an index."""
    version = built("*.whl").name.split("-")[1]
    wheels = tmp_path / "dist"
    wheels.mkdir()
    shutil.copy(built("*.whl"), wheels)
    pinned = wheels / "requirements.txt"
    pinned.write_text(page.requirements(wheels, version))
    python = tmp_path / "environment" / "bin" / "python"
    subprocess.run(
        [BIN / "uv", "venv", "--quiet", "--python", sys.executable, python.parents[1]], check=True
    )
    words = ["pip", "install", "--python", python, "--no-cache", "--no-index", "--no-deps"]
    words += ["--find-links", wheels, "--require-hashes", "--requirement", pinned]
    flags = {word for word in words if str(word).startswith("--")} - {"--python"}
    assert flags <= set((ROOT / "docs" / "deploy" / "Dockerfile").read_text().split())
    subprocess.run([BIN / "uv", *words], check=True, capture_output=True, cwd=tmp_path)
    subprocess.run([python.parent / "hybrid-pages", "--version"], check=True, capture_output=True)
    pinned.write_text(re.sub(r"[0-9a-f]{64}", "0" * 64, pinned.read_text()))
    other = subprocess.run(
        [BIN / "uv", *words, "--reinstall"], capture_output=True, text=True, cwd=tmp_path
    )
    assert other.returncode != 0
    assert "hash" in other.stderr.lower()


def test_the_wheel_serves_every_supported_python():
    assert "-cp310-abi3-" in built("*.whl").name


def test_the_wheel_holds_the_package_and_nothing_else():
    names = zipfile.ZipFile(built("*.whl")).namelist()
    packages = {name.partition("/")[0].partition("-")[0] for name in names}
    assert packages == {"hybrid_pages"}
    package = {name.removeprefix("hybrid_pages/") for name in names}
    assert {"_core.abi3.so", "_core.pyi", "_stubs/geometry.pyi", "py.typed"} <= package
    for licence in ("LICENSE", "THIRD-PARTY-LICENSES.txt"):
        assert [name for name in names if name.endswith(f"dist-info/licenses/{licence}")]
    assert not [name for name in names if "__pycache__" in name]


def test_the_source_distribution_holds_what_a_build_reads_and_no_build_output():
    with tarfile.open(built("*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"Cargo.toml", "Cargo.lock", "LICENSE", "pyproject.toml", "README.md"} <= names
    assert {f"rust/{crate}/src/lib.rs" for crate in ("core", "cuda", "lab", "python")} <= names
    assert "rust/python/build_backend.py" in names
    assert {f"python/hybrid_pages/{stub}" for stub in ("_core.pyi", "_stubs/lab.pyi")} <= names
    assert {"csrc/paging.cu", "csrc/images/sm_90.cubin", "csrc/images/compute_80.ptx"} <= names
    outputs = [name for name in names if name.startswith(("target/", ".venv", "dist/", ".cache/"))]
    assert not outputs
    assert "rust-toolchain.toml" not in names
    assert not [name for name in names if name.endswith(".so")]
