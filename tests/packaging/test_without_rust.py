"""Where Rust is missing or too old, pip ends at once and says so, and downloads nothing."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEEDED = re.search(r'rust-version = "(.+)"', (ROOT / "Cargo.toml").read_text()).group(1)
HOOKS = [
    f"{hook}_{kind}"
    for hook in ("get_requires_for_build", "build", "prepare_metadata_for_build")
    for kind in ("wheel", "editable", "sdist")
    if (hook, kind) != ("prepare_metadata_for_build", "sdist")
]


@pytest.fixture
def path(tmp_path):
    """A folder that is the whole PATH, with neither cargo nor rustc."""
    folder = tmp_path / "path"
    folder.mkdir()
    return folder


def put(path, name, line):
    """A program that runs one line of shell."""
    program = path / name
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)


def toolchain(path, version):
    put(path, "cargo", f"echo cargo {version}")
    put(path, "rustc", f"echo 'rustc {version} (0123456789 2023-05-31)'")


def source_distribution():
    (found,) = (ROOT / "dist").glob("*.tar.gz")
    return found


def checkout():
    return ROOT


@pytest.fixture
def backend(path, monkeypatch):
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.delenv("RUSTC", raising=False)
    file = ROOT / "rust" / "python" / "build_backend.py"
    spec = importlib.util.spec_from_file_location("build_backend", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def refusal(path, source, target):
    """The error that pip prints when it can't install: without an index, nothing can be found."""
    settings = {name: value for name, value in os.environ.items() if name != "RUSTC"}
    words = ["install", "--no-index", "--no-cache-dir", "--target", target, source]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--isolated", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        env=settings | {"PATH": str(path)},
    )
    assert done.returncode != 0
    assert not target.exists()
    assert "Traceback" not in done.stdout
    return done.stdout


@pytest.mark.parametrize("source", [checkout, source_distribution])
def test_without_cargo_pip_says_what_is_missing(path, tmp_path, source):
    printed = refusal(path, source(), tmp_path / "target")
    assert f"hybrid-pages: expected Rust {NEEDED} or newer, found no cargo on the PATH." in printed
    assert "https://rustup.rs" in printed
    assert "needs no Rust" in printed


@pytest.mark.parametrize("source", [checkout, source_distribution])
def test_with_an_old_rust_pip_names_both_versions(path, tmp_path, source):
    toolchain(path, "1.70.0")
    printed = refusal(path, source(), tmp_path / "target")
    assert (
        f"hybrid-pages: expected Rust {NEEDED} or newer, "
        f"found rustc 1.70.0, which is {path / 'rustc'}." in printed
    )


def test_with_rust_pip_goes_on_to_maturin(path, tmp_path):
    toolchain(path, "999.0.0")
    assert "maturin" in refusal(path, ROOT, tmp_path / "target")


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_looks_for_rust_first(backend, hook):
    words = [] if hook.startswith("get") else ["nowhere"]
    with pytest.raises(SystemExit, match="found no cargo on the PATH"):
        getattr(backend, hook)(*words)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("exit 3", "found a rustc that fails: exit status 3"),
        ("echo no default toolchain >&2; exit 1", "fails: no default toolchain"),
        ("echo rustc 1.9.0", "found rustc 1.9.0"),
        ("echo rustc 1.94.1-nightly", "found rustc 1.94.1"),
    ],
)
def test_a_rust_that_will_not_do_is_refused(backend, path, monkeypatch, said, found):
    monkeypatch.setattr(backend, "_needed", lambda: "1.95")
    put(path, "cargo", "")
    with pytest.raises(SystemExit, match="found no rustc on the PATH"):
        backend.require_rust()
    put(path, "rustc", said)
    with pytest.raises(SystemExit, match=re.escape(found)):
        backend.require_rust()


@pytest.mark.parametrize(
    "version", ["1.95", "1.95.0", "1.95.0-nightly", "1.100.0", "2.0.0", "unknown"]
)
def test_a_rust_that_is_new_enough_or_of_no_version_is_tried(backend, path, monkeypatch, version):
    monkeypatch.setattr(backend, "_needed", lambda: "1.95")
    toolchain(path, version)
    backend.require_rust()
    assert backend.get_requires_for_build_wheel() == ["maturin>=1.9.4,<2"]


def test_the_rust_that_is_needed_is_that_of_the_manifest(backend):
    assert backend._needed() == NEEDED
    assert f"Rust {NEEDED} or newer" in (ROOT / "README.md").read_text()
