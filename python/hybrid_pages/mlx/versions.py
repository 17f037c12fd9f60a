"""The versions of mlx-lm and mlx that this package works with, and errors of newer ones."""

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
    "SERVER",
    "UnsupportedError",
    "is_before",
    "newer",
    "require_names",
    "require_versions",
    "tolerated",
]

_log = logging.getLogger(__name__)
_told: set[str] = set()

OF_THE_USER = (SettingsError, BudgetError, DiskError, ForeignError)
"""Errors in a store's settings, which are the user's and not a newer library's."""

EXTRA = "pip install 'hybrid-pages[mlx]'"
_USER = "hybrid_pages.mlx"

MLX_LM = Supported(
    _USER, "mlx-lm", first=(0, 31, 3), end=None, remedy=EXTRA, tested=("0.31.3", "0.32.2")
)
"""mlx-lm's caches and server have no stable interface: newer versions may run uncached."""

SERVER = Supported(
    "mlx-server",
    "mlx-lm",
    first=(0, 32, 2),
    end=None,
    remedy=f"{EXTRA}, or serve by hybrid-pages vllm-mlx",
)
"""What ``mlx-server`` replaces parts of."""

MLX = Supported(_USER, "mlx", first=(0, 32), end=None, remedy=EXTRA, tested=("0.32.4",))


def require_versions(mlx_lm: str, mlx: str) -> None:
    """Rejects versions that are neither tested nor newer, and logs once that one is newer.

    Raises:
        VersionError: names what was expected, what was found and what to install.
    """
    for package, version in ((MLX_LM, mlx_lm), (MLX, mlx)):
        package.require(version)
    if mlx_lm not in MLX_LM.tested and not MLX_LM.is_newer(mlx_lm):
        raise VersionError(
            f"{_USER}: expected mlx-lm {' or '.join(MLX_LM.tested)}, found {mlx_lm}, which no test "
            f"has run: {EXTRA}"
        )
    for package, version in ((MLX_LM, mlx_lm), (MLX, mlx)):
        package.warn_if_newer(version)


def newer() -> str | None:
    """The package that is newer than tested, such as ``mlx-lm 0.40.0``; None if none is."""
    import mlx.core
    import mlx_lm

    for package, version in ((MLX_LM, mlx_lm.__version__), (MLX, mlx.core.__version__)):
        if package.is_newer(version):
            return f"{package.package} {version}"
    return None


def is_before(version: str, line: tuple[int, int]) -> bool:
    """Whether a version, such as ``0.31.3``, is older than a line of versions, such as 0.32."""
    major, minor, *_ = version.split(".")
    return (int(major), int(minor)) < line


@contextmanager
def require_names() -> Iterator[None]:
    """A context for imports from mlx-lm, whose newer versions may lack names.

    Raises:
        VersionError: names what is missing, and what to install.
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
    """A context in which errors are tolerated if a library is newer than tested.

    Such an error is logged once, and the call goes on without the cache. With tested libraries it
    is a fault, and raised.

    Args:
        doing: what is done inside, for the log.
        but: errors that are always raised, such as those of users.

    Yields:
        A list, empty unless there was an error.
    """
    failed: list[Exception] = []
    try:
        yield failed
    except Exception as error:  # a newer library may fail in any way
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
