"""Errors that more than one adapter raises. Each is a ``HybridPagesError``."""

from hybrid_pages._core import HybridPagesError, InvalidArgumentError


class UnsupportedError(HybridPagesError, RuntimeError):
    """A model, a cache, an engine, or a configuration of one, that has not been shown to work."""


class VersionError(UnsupportedError, ImportError):
    """A version of a package that is outside the supported range."""


class MissingError(HybridPagesError, ImportError):
    """A package that part of this one needs and that cannot be imported."""


class SettingsError(InvalidArgumentError):
    """A setting that is unknown, of the wrong type or impossible."""


class EngineError(HybridPagesError, RuntimeError):
    """The engine did not do what this package relies on: a call is missing, or in another order."""


def missing(part: str, needed: str, install: str, cause: ImportError) -> MissingError:
    """The error for a ``part`` of this package that was imported without what it ``needed``."""
    message = f"{part} needs {needed}, found {str(cause)!r}: {install}"
    return MissingError(message, name=cause.name)
