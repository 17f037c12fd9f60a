"""The build backend: checks that Rust is installed, then calls maturin.

maturin downloads a toolchain if it finds none, and with an old one compiles until cargo refuses.
It is required here and not in pyproject.toml, so that it is not even downloaded without Rust.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    _Settings = Mapping[str, Any] | None

_MATURIN = "maturin>=1.9.4,<2"
_ROOT = Path(__file__).resolve().parents[2]
_WHAT_TO_DO = """\
To build hybrid-pages, install Rust from https://rustup.rs (or run `rustup update`), and see that
cargo and rustc are on the PATH: rustup puts them into ~/.cargo/bin.
A wheel of hybrid-pages needs no Rust: `pip wheel .` makes one on a machine that has it."""


def require_rust() -> None:
    """Ends the build in a few lines where Rust is missing or older than Cargo.toml asks for."""
    compiler = os.environ.get("RUSTC") or "rustc"
    for program in ("cargo", compiler):
        if shutil.which(program) is None:
            raise _refusal(f"no {program} on the PATH")
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip() or f"exit status {error.returncode}"
        raise _refusal(f"a rustc that fails: {said}") from None
    except OSError as error:
        raise _refusal(f"a rustc that can't be run: {error}") from None
    # A compiler whose output has no version number is left to cargo.
    found = re.match(r"rustc (\d+(?:\.\d+)+)", done.stdout)
    if found and _numbers(found[1]) < _numbers(_needed()):
        raise _refusal(f"rustc {found[1]}, which is {shutil.which(compiler)}")


def _needed() -> str:
    found = re.search(r'^rust-version = "([\d.]+)"', (_ROOT / "Cargo.toml").read_text(), re.M)
    return found[1] if found else "0"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _refusal(found: str) -> SystemExit:
    return SystemExit(
        f"hybrid-pages: expected Rust {_needed()} or newer, found {found}.\n{_WHAT_TO_DO}"
    )


def _maturin() -> Any:
    require_rust()
    # maturin would warn that the build backend is another one.
    os.environ["MATURIN_NO_MISSING_BUILD_BACKEND_WARNING"] = "1"
    import maturin

    return maturin


def get_requires_for_build_wheel(config_settings: _Settings = None) -> list[str]:
    """The requirements of a build: maturin itself."""
    require_rust()
    return [_MATURIN]


get_requires_for_build_editable = get_requires_for_build_wheel
get_requires_for_build_sdist = get_requires_for_build_wheel


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: _Settings = None
) -> str:
    """Checks for Rust, then calls maturin, as all functions of this backend do."""
    return str(_maturin().prepare_metadata_for_build_wheel(metadata_directory, config_settings))


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_wheel(
    wheel_directory: str, config_settings: _Settings = None, metadata_directory: str | None = None
) -> str:
    return str(_maturin().build_wheel(wheel_directory, config_settings, metadata_directory))


def build_editable(
    wheel_directory: str, config_settings: _Settings = None, metadata_directory: str | None = None
) -> str:
    return str(_maturin().build_editable(wheel_directory, config_settings, metadata_directory))


def build_sdist(sdist_directory: str, config_settings: _Settings = None) -> str:
    return str(_maturin().build_sdist(sdist_directory, config_settings))
