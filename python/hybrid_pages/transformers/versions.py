"""The versions of transformers and torch that this package works with, and errors of newer ones."""

import functools
import logging
from typing import Any

from hybrid_pages._core import HybridPagesError
from hybrid_pages.adapter.errors import UnsupportedError
from hybrid_pages.adapter.versions import Supported

__all__ = [
    "EXTRA",
    "MINIMUM",
    "TESTED",
    "UnknownError",
    "UnsupportedError",
    "is_unknown",
    "may_be_new",
    "reason_of",
    "require_version",
    "untested",
    "warn_if_untested",
]

MINIMUM = (5, 19)
"""The first version of transformers that works. Earlier ones continue wrongly from some states."""

TESTED = {"transformers": (MINIMUM, (5, 24)), "torch": ((2, 13), (2, 15))}
"""The oldest and the newest version of each package that tests run. Newer ones work, too, after one
warning. Calls in which something is not understood run without the cache."""

EXTRA = "pip install 'hybrid-pages[transformers]'"

_log = logging.getLogger(__name__)
_warned: set[tuple[str, ...]] = set()


class UnknownError(UnsupportedError):
    """Something in transformers is not known to this package.

    A ``PrefixCache`` then runs its model without the cache, and counts the reason.
    """


def require_version(version: str) -> None:
    """Rejects a transformers older than :data:`MINIMUM`.

    Raises:
        VersionError: names what was expected, what was found and what to install.
    """
    user = "hybrid_pages.transformers"
    Supported(user, "transformers", first=MINIMUM, end=None, remedy=EXTRA).require(version)


def untested() -> list[str]:
    """The installed packages that are newer than the tested versions, each with its version."""
    found = [(name, module.__version__) for name, module in _packages().items()]
    return [f"{name} {version}" for name, version in found if not _until(name).includes(version)]


def is_unknown(error: Exception) -> bool:
    """Whether an error means only that something is not known to this package.

    That is an UnknownError, or any foreign error under a version that is newer than tested.
    """
    from hybrid_pages.transformers.compat import is_out_of_memory

    if isinstance(error, HybridPagesError):
        return isinstance(error, UnknownError)
    return not is_out_of_memory(error) and bool(untested())


def may_be_new(error: Exception) -> bool:
    """Whether an error in the middle of a call may come from something not known here."""
    return isinstance(error, UnknownError) or bool(untested())


def reason_of(error: Exception) -> str:
    """The text of an error as a reason to run without the cache."""
    return str(error) if isinstance(error, UnknownError) else f"{type(error).__name__}: {error}"


def warn_if_untested() -> None:
    """Logs once which packages are newer than tested, and what to do about it."""
    newer = tuple(untested())
    if newer and newer not in _warned:
        _warned.add(newer)
        _log.warning(
            "expected %s, the newest versions that tests run, found %s: what is not understood of "
            "it runs without the cache (stats().uncached): %s brings versions that are tested",
            " and ".join(f"{name} {_dotted(newest)}" for name, (_, newest) in TESTED.items()),
            " and ".join(newer),
            EXTRA,
        )


@functools.cache
def _packages() -> dict[str, Any]:
    """The modules as they were first imported: transformers may replace its own in sys.modules."""
    import torch
    import transformers

    return {"transformers": transformers, "torch": torch}


def _until(package: str) -> Supported:
    major, minor = TESTED[package][1]
    return Supported("", package, first=(0, 0), end=(major, minor + 1), remedy=EXTRA)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
