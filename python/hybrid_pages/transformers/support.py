"""What this package works with, and how it refuses the rest: by name, before anything happens."""

from abc import ABC, abstractmethod
from typing import TypeVar

from hybrid_pages import HybridPagesError

_Self = TypeVar("_Self", bound="Closing")

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


class Closing(ABC):
    """Closed when it is left as a context."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of threads. Nothing the second time."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
