"""The versions of vllm-mlx and mlx-lm that this server is made of."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from hybrid_pages.adapter.errors import VersionError, missing

EXTRA = "pip install 'hybrid-pages[vllm-mlx]'"

TESTED = {"vllm-mlx": "0.6.0", "mlx-lm": "0.31.3"}
"""Parts of both are replaced that have no stable interface, so no other version is used."""


def require_installed() -> None:
    """Rejects versions that no test has run.

    Raises:
        VersionError: names what was expected, what was found and what to install.
        MissingError: a package is not installed.
    """
    for package, tested in TESTED.items():
        try:
            found = version(package)
        except PackageNotFoundError as error:
            raise missing("vllm-mlx", package, EXTRA, error) from error
        if found != tested:
            raise VersionError(
                f"vllm-mlx: expected {package} {tested}, which tests have run, found {found}: "
                f"{EXTRA}"
            )
