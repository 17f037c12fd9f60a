"""Versions of mlx-lm that this package works with, and names that other modules share."""

from hybrid_pages.adapter.closing import Closing
from hybrid_pages.adapter.errors import UnsupportedError, VersionError
from hybrid_pages.adapter.versions import Supported

__all__ = ["EXTRA", "TESTED", "Closing", "UnsupportedError", "require_versions"]

TESTED = ("0.32.2",)
"""The versions of mlx-lm that tests run: its caches and its server have no stable interface."""

MLX = (0, 32), (0, 33)
"""The first version of mlx, and the first after it that no test has run."""

EXTRA = "pip install 'hybrid-pages[mlx]'"


def require_versions(mlx_lm: str, mlx: str) -> None:
    """Rejects versions of mlx-lm and mlx that no test has run.

    Raises:
        VersionError: names what was expected, what was found and what to install.
    """
    user = "hybrid_pages.mlx"
    if mlx_lm not in TESTED:
        raise VersionError(
            f"{user} works with mlx-lm {' or '.join(TESTED)}, found {mlx_lm}: {EXTRA}"
        )
    Supported(user, "mlx", first=MLX[0], end=MLX[1], remedy=EXTRA).require(mlx)
