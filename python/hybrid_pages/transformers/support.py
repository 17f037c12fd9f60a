"""What this package works with, and how it refuses the rest: by name, before anything happens."""

from hybrid_pages import HybridPagesError

MINIMUM = (5, 19)
"""The first transformers version that works; earlier ones go on wrongly from some states."""

EXTRA = "pip install 'hybrid-pages[transformers]'"


class UnsupportedError(HybridPagesError, RuntimeError):
    """A model, a cache or a version that has not been shown to work."""


def require_version(version: str) -> None:
    """Refuses a transformers older than :data:`MINIMUM`.

    Raises:
        ImportError: names what was expected, what was found and what to install.
    """
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < MINIMUM:
        expected = ".".join(map(str, MINIMUM))
        raise ImportError(
            f"hybrid_pages.transformers works with transformers>={expected}, found {version}: "
            f"{EXTRA}"
        )
