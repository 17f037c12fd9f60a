"""Versions of transformers that this package works with, and names that other modules share."""

from hybrid_pages.adapter.closing import Closing
from hybrid_pages.adapter.errors import UnsupportedError
from hybrid_pages.adapter.versions import Supported

__all__ = ["EXTRA", "MINIMUM", "Closing", "UnsupportedError", "require_version"]

MINIMUM = (5, 19)
"""The first transformers version that works; earlier ones go on wrongly from some states."""

EXTRA = "pip install 'hybrid-pages[transformers]'"


def require_version(version: str) -> None:
    """Rejects a transformers older than :data:`MINIMUM`.

    Raises:
        VersionError: names what was expected, what was found and what to install.
    """
    user = "hybrid_pages.transformers"
    Supported(user, "transformers", first=MINIMUM, end=None, remedy=EXTRA).require(version)
