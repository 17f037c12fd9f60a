"""Versions of mlx-lm and mlx that this package works with, and names that other modules share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from hybrid_pages import BudgetError, DiskError, ForeignError
from hybrid_pages.adapter.errors import SettingsError, UnsupportedError, VersionError
from hybrid_pages.adapter.versions import Supported

__all__ = [
    "EXTRA",
    "MLX",
    "MLX_LM",
    "OF_THE_USER",
    "UnsupportedError",
    "newer",
    "require_names",
    "require_versions",
    "tolerated",
]

_log = logging.getLogger(__name__)
_told: set[str] = set()

OF_THE_USER = (SettingsError, BudgetError, DiskError, ForeignError)
"""Errors of a store's settings, whatever the model and mlx-lm."""

EXTRA = "pip install 'hybrid-pages[mlx]'"
_USER = "hybrid_pages.mlx"

MLX_LM = Supported(_USER, "mlx-lm", first=(0, 32, 2), end=None, remedy=EXTRA, tested=("0.32.2",))
"""Its caches and its server have no stable interface: what is newer may run uncached."""

MLX = Supported(_USER, "mlx", first=(0, 32), end=None, remedy=EXTRA, tested=("0.32.4",))


def require_versions(mlx_lm: str, mlx: str) -> None:
    """Rejects versions older than those that tests run, and says once that one is newer.

    Raises:
        VersionError: names what was expected, what was found and what to install.
    """
    for package, version in ((MLX_LM, mlx_lm), (MLX, mlx)):
        package.require(version)
    for package, version in ((MLX_LM, mlx_lm), (MLX, mlx)):
        package.warn_if_newer(version)


def newer() -> str | None:
    """What is installed that is newer than tested: ``mlx-lm 0.40.0``; None if nothing is."""
    import mlx.core
    import mlx_lm

    for package, version in ((MLX_LM, mlx_lm.__version__), (MLX, mlx.core.__version__)):
        if package.is_newer(version):
            return f"{package.package} {version}"
    return None


@contextmanager
def require_names() -> Iterator[None]:
    """For imports: what a newer mlx-lm no longer has is named.

    Raises:
        VersionError: what is missing, and what to install.
    """
    try:
        yield
    except (ImportError, AttributeError) as error:
        if newer() is None:
            raise
        raise VersionError(
            f"{_USER}: expected what mlx-lm {MLX_LM.tested[-1]} has, found {newer()} without it "
            f"({error}): {EXTRA}"
        ) from error


@contextmanager
def tolerated(doing: str, but: tuple[type[Exception], ...] = ()) -> Iterator[list[Exception]]:
    """What fails inside on libraries newer than tested is said once, and goes on without the cache.
    On tested ones it is a fault, and is raised; so is what is in ``but``, such as errors of users.

    Yields:
        A list that gets the error.
    """
    failed: list[Exception] = []
    try:
        yield failed
    except Exception as error:
        found = newer()
        if found is None or isinstance(error, but):
            raise
        failed.append(error)
        if doing not in _told:
            _told.add(doing)
            _log.warning(
                "%s is newer than tested, and it was not possible to %s, which runs without the "
                "cache: %s: %s",
                found,
                doing,
                type(error).__name__,
                error,
            )
