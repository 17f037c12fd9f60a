"""Versions of mlx-lm that this package works with, and names that other modules share."""

from hybrid_pages.adapter.closing import Closing
from hybrid_pages.adapter.errors import UnsupportedError, VersionError

__all__ = ["EXTRA", "TESTED", "Closing", "UnsupportedError", "require_version"]

TESTED = ("0.32.2",)
"""The versions of mlx-lm that tests run: its caches and its server have no stable interface."""

EXTRA = "pip install 'hybrid-pages[mlx]'"


def require_version(version: str) -> None:
    """Rejects an mlx-lm that no test has run.

    Raises:
        VersionError: names what was expected, what was found and what to install.
    """
    if version not in TESTED:
        raise VersionError(
            f"hybrid_pages.mlx works with mlx-lm {' or '.join(TESTED)}, found {version}: {EXTRA}"
        )
